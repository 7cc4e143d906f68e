"""Two encoders, one canonical form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weightlease.canonical import canonical_json, canonical_plain

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), PLAIN))
def test_the_quick_encoder_writes_the_same_bytes(value: dict[str, object]) -> None:
    assert canonical_plain(value) == canonical_json(value)
