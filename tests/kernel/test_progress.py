"""Progress in words: seldom enough to read, with a time left that an earlier run's work does not flatter."""

from __future__ import annotations

from engcmp_assets.kernel.progress import Progress, stderr_line

_NS = 1_000_000_000


class Clock:
    """A monotonic clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> int:
        return int(self.now_s * _NS)


def progress(total: int, already: int = 0) -> tuple[Progress, list[str], Clock]:
    said: list[str] = []
    clock = Clock()
    return Progress(said.append, "[arm] rows", "rows", total, clock, already), said, clock


def test_the_first_and_the_last_are_said_and_between_them_one_line_in_two_seconds() -> None:
    told, said, clock = progress(100)
    for done in range(1, 101):
        clock.now_s += 0.125  # exact in binary
        told.update(done, f"window {done}")
    assert said[0] == "[arm] rows: window 1, 1/100 rows"
    assert said[-1] == "[arm] rows: window 100, 100/100 rows"
    assert [int(line.split("window ")[1].split(",")[0]) for line in said] == [1, 17, 33, 49, 65, 81, 97, 100]


def test_the_time_left_follows_from_the_rate_since_this_work_began() -> None:
    told, said, clock = progress(100)
    clock.now_s += 10
    told.update(20)
    assert said == ["[arm] rows, 20/100 rows, about 40 s left"]


def test_what_an_earlier_run_had_done_does_not_flatter_the_rate() -> None:
    told, said, clock = progress(100, already=80)
    clock.now_s += 10
    told.update(90)
    assert said == ["[arm] rows, 90/100 rows, about 10 s left"]


def test_no_time_is_told_from_less_than_a_second_or_from_nothing_done_or_at_the_end() -> None:
    told, said, clock = progress(10, already=4)
    clock.now_s += 0.5
    told.update(5)
    clock.now_s += 5
    told.update(4)
    clock.now_s += 5
    told.update(10)
    assert said == ["[arm] rows, 5/10 rows", "[arm] rows, 4/10 rows", "[arm] rows, 10/10 rows"]


def test_a_total_that_is_known_later_is_used_from_then_on() -> None:
    told, said, clock = progress(1)
    told.total = 4
    clock.now_s += 2
    told.update(1)
    assert said == ["[arm] rows, 1/4 rows, about 6 s left"]


def test_lines_go_to_standard_error_at_once(capfd: object) -> None:
    stderr_line("one line")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "one line\n")


def test_the_first_few_of_very_many_predict_nothing() -> None:
    told, said, clock = progress(272)
    for done in (1, 6):
        clock.now_s += 3
        told.update(done)
    assert "left" not in said[0] and said[1].endswith("about 266 s left")
