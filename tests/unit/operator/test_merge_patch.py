"""A merge patch turns the old object into the new one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from weightlease_operator.merge_patch import merge_patch

LEAVES = st.one_of(st.booleans(), st.integers(), st.text(max_size=3), st.lists(st.integers()))
OBJECTS = st.dictionaries(
    st.sampled_from("abcd"),
    st.recursive(LEAVES, lambda inner: st.dictionaries(st.sampled_from("abcd"), inner)),
)


def applied(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = applied(result.get(name), value)
    return result


@given(OBJECTS, OBJECTS)
def test_applying_it_gives_the_new_object(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert applied(old, merge_patch(old, new)) == new


@given(OBJECTS)
def test_nothing_changed_is_an_empty_patch(value: dict[str, Any]) -> None:
    assert merge_patch(value, value) == {}
