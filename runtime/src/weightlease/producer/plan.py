"""A checkpoint plan: how the tensors of a canonical checkpoint become a final layout, as data.

    {"schema_version": 1, "plan_id": "…", "version": "…",
     "representation": {"name", "dtype"}, "layout": "…", "restorer_schema": "…",
     "rules": [{"op": "select", "patterns": […]}, …]}

    op           what it does to the tensors that are there when its turn comes
    select       keeps what matches, drops the rest
    drop         drops what matches
    rename       `from` becomes `to`, wildcards carried over in order
    concatenate  `sources` become one tensor `target`, along `dim`
    column       splits dimension 0 by tensor parallelism
    row          splits dimension 1 by tensor parallelism
    packed       splits each of `sections` of dimension 0 by itself, then joins the parts
    expert       keeps the owned experts of dimension 0
    cast         floats become `dtype`; those that match `preserve_float32` become F32

Rules run in order. `*` stands for one part of a dotted name, `**` for any number and comes once.
A pattern that matches nothing is a mistake and refused, unless the rule is `optional`. The plan's
canonical bytes are hashed into the identity, so another plan never makes the same key.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import msgspec

from weightlease.canonical import canonical_json, sha256_hex
from weightlease.errors import Failure, FailureCode, Stage, WeightLeaseError
from weightlease.safetensors_format import DTYPES

SCHEMA_VERSION = 1
MAX_PLAN_BYTES = 1024 * 1024
MAX_RULES = 1000
FLOATS = ("F64", "F32", "F16", "BF16")


class PlanError(WeightLeaseError):
    """A plan that is malformed, or does not fit the checkpoint that it is applied to."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(
            Failure(
                Stage.PRODUCTION,
                FailureCode.PRODUCER_FAILED,
                retryable=False,
                message=message,
                details=details,
            )
        )


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="op"):
    optional: bool = False


class _Matching(_Rule, frozen=True, kw_only=True):
    patterns: tuple[str, ...]


class Select(_Matching, frozen=True, kw_only=True, tag="select"):
    """Keep what matches."""


class Drop(_Matching, frozen=True, kw_only=True, tag="drop"):
    """Drop what matches."""


class Rename(_Rule, frozen=True, kw_only=True, tag="rename"):
    """Give what matches `source` the name `target`."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")


class Concatenate(_Rule, frozen=True, kw_only=True, tag="concatenate"):
    """Join `sources`, in this order, along `dim`; the sources are gone afterwards."""

    sources: tuple[str, ...]
    target: str
    dim: int = 0


class Column(_Matching, frozen=True, kw_only=True, tag="column"):
    """Split dimension 0."""


class Row(_Matching, frozen=True, kw_only=True, tag="row"):
    """Split dimension 1."""


class Packed(_Matching, frozen=True, kw_only=True, tag="packed"):
    """Split each section of dimension 0; `sections` are relative sizes that add up to it."""

    sections: tuple[int, ...]


class Expert(_Matching, frozen=True, kw_only=True, tag="expert"):
    """Keep the owned experts of dimension 0."""


class Cast(_Rule, frozen=True, kw_only=True, tag="cast"):
    """Change the dtype of floats; integers stay."""

    dtype: str
    preserve_float32: tuple[str, ...] = ()


Rule: TypeAlias = Select | Drop | Rename | Concatenate | Column | Row | Packed | Expert | Cast


class PlanRepresentation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The representation that the plan makes."""

    name: str
    dtype: str


class CheckpointPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One versioned plan."""

    schema_version: int
    plan_id: str
    version: str
    representation: PlanRepresentation
    layout: str
    restorer_schema: str
    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            raise PlanError(
                f"plan schema_version {self.schema_version} is unknown; it is {SCHEMA_VERSION}"
            )
        if not (self.plan_id and self.version and self.layout and self.restorer_schema):
            raise PlanError("plan_id, version, layout and restorer_schema must not be empty")
        if len(self.rules) > MAX_RULES:
            raise PlanError(f"the plan has {len(self.rules)} rules, more than {MAX_RULES}")
        for number, rule in enumerate(self.rules):
            _require_rule(number, rule)

    @property
    def sha256(self) -> str:
        """Digest of the plan, which enters identities."""
        return sha256_hex(canonical_json(msgspec.to_builtins(self)))


_decoder = msgspec.json.Decoder(CheckpointPlan, strict=True)


def parse_plan(data: bytes) -> CheckpointPlan:
    """Read a plan.

    Raises:
        PlanError: too large, malformed, or a rule that makes no sense.

    """
    if len(data) > MAX_PLAN_BYTES:
        raise PlanError(f"a plan of {len(data)} bytes is larger than {MAX_PLAN_BYTES}")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError(f"the plan is malformed: {error}") from error


def compiled(pattern: str) -> re.Pattern[str]:
    """The expression of a name pattern, whose groups are its wildcards.

    Raises:
        PlanError: an empty pattern, or `**` more than once.

    """
    parts = pattern.split(".")
    # a wildcard is a whole part, so that no pattern costs more than the name is long
    plain = all(part in {"*", "**"} or "*" not in part for part in parts)
    if not pattern or not plain or parts.count("**") > 1:
        raise PlanError(
            f"pattern {pattern!r} must not be empty; '*' and '**' are whole parts, '**' comes once"
        )
    found = {"**": "(.+)", "*": "([^.]+)"}
    return re.compile(r"\.".join(found.get(part, re.escape(part)) for part in parts))


def filled(target: str, wildcards: tuple[str, ...]) -> str:
    """`target` with its wildcards replaced by `wildcards`, in order."""
    parts = re.split(r"\*\*|\*", target)
    return "".join(part + value for part, value in zip(parts, [*wildcards, ""], strict=True))


def _require_rule(number: int, rule: Rule) -> None:
    if isinstance(rule, _Matching) and not rule.patterns:
        raise PlanError(f"rule {number} has no pattern")
    match rule:
        case Rename(source=source, target=target):
            patterns = [source]
            _require_same_wildcards(number, [source, target])
        case Concatenate(sources=sources, target=target):
            patterns = list(sources)
            if len(sources) < 2 or rule.dim < 0:
                raise PlanError(f"rule {number} must join at least two tensors along a dimension")
            _require_same_wildcards(number, [*sources, target])
        case Cast(dtype=dtype):
            patterns = list(rule.preserve_float32)
            if dtype not in FLOATS or dtype not in DTYPES:
                raise PlanError(f"rule {number} casts to {dtype!r}; it may be {', '.join(FLOATS)}")
        case Packed(sections=sections):
            patterns = list(rule.patterns)
            if not sections or min(sections) < 1:
                raise PlanError(
                    f"rule {number} has the sections {sections}, which must be positive"
                )
        case _:
            patterns = list(rule.patterns)
    for pattern in patterns:
        compiled(pattern)


def _require_same_wildcards(number: int, patterns: list[str]) -> None:
    counts = {tuple(re.findall(r"\*\*|\*", pattern)) for pattern in patterns}
    if len(counts) > 1:
        raise PlanError(f"rule {number} has other wildcards in {patterns[0]!r} than in its others")
