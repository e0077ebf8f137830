"""The watchman of chaos runs: growth, what it forgives, what it does not."""

from __future__ import annotations

import os
import threading

import pytest

from chaos.journal import Journal
from chaos.watch import Usage, Watch, growth_bytes


@pytest.mark.parametrize(
    ("samples", "growth"),
    [
        ([], 0),
        ([5, 9], 0),
        ([0, 50, 90, 100, 100, 100, 100, 100, 100], 0),  # it warms up
        ([0, 10, 20, 30, 40, 50, 60, 70, 80], 30),
        ([100, 100, 100, 100, 900, 100, 100, 100, 900], 0),  # single peaks are no growth
    ],
)
def test_growth(samples: list[int], growth: float) -> None:
    assert growth_bytes(samples) == growth


def test_usage_counts_descriptors_and_threads() -> None:
    before = Usage()
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    reader, writer = os.pipe()
    thread.start()
    during = Usage()
    end.set()
    thread.join()
    os.close(reader)
    os.close(writer)
    assert during.fds == before.fds + 2
    assert during.threads == before.threads + 1
    assert during.rss_bytes > 1 << 20


def test_a_call_in_time_is_no_fault() -> None:
    journal = Journal()
    with Watch(journal) as watch:
        watch.begins("a call", 5.0)
        watch.ends()
    assert not journal.faults
    assert watch.overdue_s_max == 0


def test_a_late_call_is_one() -> None:
    journal = Journal()
    with Watch(journal, late_s=-5.0) as watch:
        watch.begins("a call", 1.0)
        watch.ends()
    assert journal.kinds() == {"late"}
    assert "a call" in journal.faults[0]["text"]


def test_a_watch_that_gets_no_processor_gives_calls_that_time_back_before_it_wakes() -> None:
    journal = Journal()
    with Watch(journal, late_s=0.15) as watch:
        watch.begins("a call", 0.0)
        with watch._lock:  # it cannot look, as on a machine that is full
            threading.Event().wait(0.3)
            watch.ends()
    assert not journal.faults


def test_a_call_that_does_not_come_back_is_told_once_with_all_stacks() -> None:
    journal = Journal()
    with Watch(journal, hung_s=-5.0) as watch:
        watch.begins("a call", 1.0)
        assert journal.failed.wait(10)
        threading.Event().wait(0.2)
        watch.ends()
    assert journal.kinds() == {"hang"}
    assert "test_a_call_that_does_not_come_back" in journal.faults[0]["text"]
