"""A pytest plugin: a test that failed while the host had our processors is run again.

The host of a shared machine gives its processors to others now and then, for up to seconds. Linux
counts that as steal (proc_stat(5)). Our bounds are for a machine that runs: what failed while more
than STOLEN_SHARE of a processor was taken away has no verdict yet. It is run again, at most RERUNS
times and each time later, because such spells take a while; the summary names it and what it said.
All tests together have five such tries (pyproject.toml).

Never run again is what failed on processors that were ours, or outside of FOLDERS; what read wrong
bytes; and what failed when it was torn down, where leaks and secrets show: time explains neither.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support import summary
from support.stamps import WrongBytes

STAT = Path("/proc/stat")
FOLDERS = {"cli", "faults", "integration", "lifecycle"}
RERUNS = 3
DELAY_S, DELAY_FACTOR = 5.0, 3.0
STOLEN_SHARE = 0.1  # of one processor, over the whole test
SAID_MAX = 200
TITLE = "failed without its processors, and was run again"
_AT = 8  # in the line of all processors: cpu user nice system idle iowait irq softirq steal
_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_BEGAN = pytest.StashKey[tuple[float, float]]()
_TIMER = pytest.StashKey[Any]()  # what pytest-timeout has set for a test
_STOPPED = pytest.StashKey[bool]()
_FINAL = pytest.StashKey[bool]()  # whether no time explains this failure


def stolen_s() -> float:
    """Processor seconds that others have had of ours since boot; 0 where that is not counted."""
    words = STAT.read_text().partition("\n")[0].split()
    return int(words[_AT]) * _SECONDS if len(words) > _AT else 0.0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    delays = {"reruns_delay": DELAY_S, "reruns_delay_backoff_factor": DELAY_FACTOR}
    for item in items:
        if item.path.parent.name in FOLDERS:
            condition = partial(_was_robbed, item)
            item.add_marker(pytest.mark.flaky(reruns=RERUNS, condition=condition, **delays))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[_BEGAN] = stolen_s(), time.monotonic()
    item.stash[_FINAL] = False
    if item.stash.get(_STOPPED, False):  # every attempt has a limit, and all of it
        item.stash[_STOPPED] = False
        item.config.hook.pytest_timeout_set_timer(item=item, settings=item.stash[_TIMER])
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo and (call.when == "teardown" or isinstance(call.excinfo.value, WrongBytes)):
        item.stash[_FINAL] = True
    return (yield)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    item.stash[_TIMER] = settings


def _was_robbed(item: pytest.Item, error: BaseException | None) -> bool:
    """Whether the failure that is just over says nothing; asked without one, too."""
    if error is None or item.stash[_FINAL]:
        return False
    stolen_before, began = item.stash[_BEGAN]
    stolen, took_s = stolen_s() - stolen_before, time.monotonic() - began
    robbed = stolen > STOLEN_SHARE * took_s
    if robbed:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:SAID_MAX]
        told = f"{item.nodeid}: {stolen:.2f} s stolen in {took_s:.2f} s; {said}"
        summary.add(item.config, TITLE, told)
        item.stash[_STOPPED] = _TIMER in item.stash  # pytest-timeout stops it at a failure
    return robbed
