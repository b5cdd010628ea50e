"""When a run on another machine counts as lost."""

from __future__ import annotations

from engcmp_assets.beats import cursor_of, heard_of
from engcmp_assets.kernel.silent_runs import SILENT_S, Heard, look


def test_a_run_whose_beat_changes_is_alive_however_far_apart_the_looks_are() -> None:
    heard, silent = look({}, {"a": "0"}, 0.0)
    for count in range(1, 5):
        heard, silent = look(heard, {"a": str(count)}, count * 10 * SILENT_S)
        assert silent == []


def test_a_run_whose_beat_stands_still_is_lost_after_the_limit_and_not_before() -> None:
    heard, _ = look({}, {"a": "7", "b": "1"}, 100.0)
    heard, silent = look(heard, {"a": "7", "b": "2"}, 100.0 + SILENT_S - 1)
    assert silent == []
    heard, silent = look(heard, {"a": "7", "b": "3"}, 100.0 + SILENT_S)
    assert silent == ["a"] and set(heard) == {"b"}


def test_a_run_that_never_said_anything_counts_from_the_first_look() -> None:
    heard, silent = look({}, {"a": ""}, 5.0)
    assert (heard, silent) == ({"a": Heard("", 5.0)}, [])
    assert look(heard, {"a": ""}, 5.0 + SILENT_S)[1] == ["a"]


def test_a_run_that_has_ended_is_forgotten_and_a_clock_that_was_set_back_ends_nothing() -> None:
    heard, _ = look({}, {"a": "1", "b": "1"}, 1000.0)
    assert set(look(heard, {"b": "1"}, 1001.0)[0]) == {"b"}
    heard, silent = look(heard, {"a": "1"}, 10.0)
    assert (heard, silent) == ({"a": Heard("1", 10.0)}, [])


def test_a_cursor_remembers_what_was_heard() -> None:
    heard = {"a": Heard("3", 12.5), "b": Heard("", 1.0)}
    assert heard_of(cursor_of(heard)) == heard
    assert heard_of(None) == {}
