"""The table of a connection's states."""

from __future__ import annotations

import pytest

from weightlease.wire import METHOD_PARAMS
from weightlease_node_agent.states import TRANSITIONS, State, next_state


def reachable() -> set[State]:
    seen = {State.NEW, State.FAILED}
    while more := {to for (at, _), to in TRANSITIONS.items() if at in seen} - seen:
        seen |= more
    return seen


def test_every_method_of_the_protocol_is_allowed_somewhere() -> None:
    assert {method for _, method in TRANSITIONS} == set(METHOD_PARAMS)


def test_every_state_is_reached_and_left() -> None:
    assert reachable() == set(State)
    assert {at for at, _ in TRANSITIONS} == set(State)


def test_nothing_but_hello_is_allowed_to_a_stranger() -> None:
    assert [method for at, method in TRANSITIONS if at is State.NEW] == ["hello"]


@pytest.mark.parametrize("state", [State.NEW, State.READY, State.PUBLISHING])
def test_raw_bytes_are_only_expected_while_a_file_is_open(state: State) -> None:
    assert next_state(state, "write") is None


@pytest.mark.parametrize("state", [State.PUBLISHING, State.WRITING, State.FAILED])
def test_a_publication_can_always_be_aborted(state: State) -> None:
    assert next_state(state, "abort") is State.READY


def test_what_has_failed_can_not_go_on() -> None:
    after = {to for (at, _), to in TRANSITIONS.items() if at is State.FAILED}
    assert after == {State.FAILED, State.READY}
