"""A cache keeps the latest of what events, answers and lists say."""

from __future__ import annotations

from typing import Any

from weightlease_operator.cache import Cache
from weightlease_operator.views import Raw


def thing(name: str, version: int, value: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "team", "resourceVersion": str(version)},
        "value": value,
    }


def cache() -> Cache[str]:
    def view(raw: Raw) -> str:
        return str(raw["value"])

    return Cache(view, lambda value: value[:1])


def test_an_older_event_never_wins() -> None:
    things = cache()
    things.put(thing("a", 5, "new"))
    assert not things.put(thing("a", 4, "old")).visible
    assert things.get("team", "a") == "new"
    assert not things.remove(thing("a", 4)).visible
    assert things.get("team", "a") == "new"


def test_a_deleted_object_does_not_come_back_with_a_late_event() -> None:
    things = cache()
    things.put(thing("a", 5))
    things.remove(thing("a", 6))
    things.put(thing("a", 5))
    assert things.get("team", "a") is None
    things.put(thing("a", 7, "again"))
    assert things.get("team", "a") == "again"


def test_a_list_finds_the_deletion_that_a_watch_missed() -> None:
    things = cache()
    things.put(thing("a", 5))
    things.put(thing("b", 6))
    (change,) = things.replace([thing("b", 6)], "8")
    assert (change.key, change.after) == (("team", "a"), None)
    assert things.keys() == [("team", "b")]


def test_a_list_does_not_remove_what_is_younger_than_it() -> None:
    things = cache()
    things.put(thing("a", 9, "young"))
    assert things.replace([], "8") == []
    assert things.get("team", "a") == "young"


def test_a_list_does_not_revive_what_was_deleted_after_it() -> None:
    things = cache()
    things.put(thing("a", 5))
    things.remove(thing("a", 9))
    things.replace([thing("a", 5)], "8")
    assert things.get("team", "a") is None


def test_groups_follow_the_views() -> None:
    things = cache()
    things.put(thing("a", 1, "x1"))
    things.put(thing("b", 2, "x2"))
    assert things.select("x") == ["x1", "x2"]
    things.put(thing("a", 3, "y1"))
    assert (things.select("x"), things.select("y")) == (["x2"], ["y1"])
    things.forget("team", "b")
    assert things.select("x") == []


def test_what_a_view_does_not_show_changes_nothing() -> None:
    things = cache()
    assert things.put(thing("a", 1, "x")).visible
    assert not things.put(thing("a", 2, "x")).visible
