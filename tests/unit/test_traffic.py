"""What instances have done: sums, windows and rates, on a clock of the test."""

from __future__ import annotations

from kvferry.sharing.controller.traffic import HELD_S, Traffic
from kvferry.sharing.membership.messages import Hits, WorkDone


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_process_that_began_before_the_controller_or_anew_is_not_counted_twice() -> None:
    traffic = Traffic()
    traffic.add(
        "two", 0, WorkDone(10, 1.0, (Hits("l1", 5, 50),)), WorkDone(30, 3.0, (Hits("l1", 6, 60),))
    )
    traffic.add("two", 1, WorkDone(), WorkDone(5, 2.0, (Hits("peer one", 5, 50),)))
    done = traffic.window(60)
    assert (done.requested_tokens, done.saved_s) == (25, 2.0)  # ranks save the same seconds
    assert done.tokens == {"memory": 1, "peers": 5}
    traffic.add(
        "two", 0, WorkDone(30, 3.0), WorkDone(1, 0.1)
    )  # fewer than before: nothing to take away
    assert traffic.window(60).requested_tokens == 25
    [moved] = traffic.moved(10)
    assert (moved["from"], moved["to"]) == ("one", "two/1")


def test_a_window_is_what_was_done_in_it_and_samples_are_kept_for_half_an_hour() -> None:
    clock = Clock()
    traffic = Traffic(clock)
    for second in range(2400):  # a token each second
        traffic.add(
            "one", 0, WorkDone(second, second * 0.5), WorkDone(second + 1, (second + 1) * 0.5)
        )
        clock.now += 1
        traffic.tick()
    for seconds in (60, 300):
        done = traffic.window(seconds)
        assert abs(done.at - seconds) <= 2
        assert done.requested_tokens == done.at
        assert done.saved_s == 0.5 * done.at
    assert HELD_S - 4 <= traffic.window(1e9).at <= HELD_S
    series = traffic.series(HELD_S, 90)
    assert 80 <= len(series) <= 90
    assert all(one.requested_tokens == one.at for one in series)


def test_a_rate_of_a_pair_is_that_of_the_last_minute() -> None:
    clock = Clock()
    traffic = Traffic(clock)
    traffic.add("two", 0, WorkDone(), WorkDone(hits=(Hits("peer one", 1, 6000),)))
    for _ in range(120):
        clock.now += 1
        traffic.tick()
    [old] = traffic.moved(10)
    assert (old["bytes"], old["window_bytes"]) == (6000, 0)
    before = WorkDone(hits=(Hits("peer one", 1, 6000),))
    traffic.add("two", 0, before, WorkDone(hits=(Hits("peer one", 2, 6600),)))
    [new] = traffic.moved(10)
    assert (new["bytes"], new["window_bytes"]) == (6600, 600)
    assert 50 <= new["window_s"] <= 60


def test_names_of_stores_are_bounded() -> None:
    traffic = Traffic()
    hits = tuple(Hits(f"store {number}", 1, 1) for number in range(100))
    traffic.add("one", 0, WorkDone(), WorkDone(hits=hits))
    tokens = traffic.window(60).tokens
    assert sum(tokens.values()) == 100
    assert len(tokens) <= 33
