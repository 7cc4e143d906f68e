"""Ask for an artifact that is not there; the refusal is the point."""

from __future__ import annotations

import sys

import weightlease
from weightlease.errors import WeightLeaseError

try:
    with weightlease.connect() as store:
        store.acquire(sys.argv[1])
except WeightLeaseError as error:
    print(error.failure.code)
