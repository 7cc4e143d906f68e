"""Formulas: how each metric follows from raw samples, so that anybody can compute it again.

A script names its metrics once, as formulas over the names of its samples. The results file keeps
the samples; applying the formulas to them again gives the metrics that it states.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import TypeAlias

Samples: TypeAlias = Mapping[str, list[float]]
Formula: TypeAlias = Callable[[Samples], float]


def percentile(name: str, share: float) -> Formula:
    """The smallest sample that at least `share` (0..1) of all samples do not exceed."""

    def compute(samples: Samples) -> float:
        ordered = sorted(samples[name])
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return compute


def median(name: str) -> Formula:
    """The median of one list of samples."""
    return lambda samples: statistics.median(samples[name])


def largest(*names: str) -> Formula:
    """The largest sample of several lists."""
    return lambda samples: max(max(samples[name]) for name in names)


def quotient(above: Formula, below: Formula) -> Formula:
    """One figure over another."""
    return lambda samples: above(samples) / below(samples)


def paired(of_round: Callable[[dict[str, float]], float], *names: str) -> Formula:
    """The median over rounds of a figure computed from the samples of one round."""

    def compute(samples: Samples) -> float:
        rounds = zip(*(samples[name] for name in names), strict=True)
        return statistics.median(of_round(dict(zip(names, each, strict=True))) for each in rounds)

    return compute


def compute(formulas: Mapping[str, Formula], samples: Samples) -> dict[str, float]:
    """Every metric, in the order of its formula."""
    return {name: formula(samples) for name, formula in formulas.items()}
