"""Every background thread of the product, its work made to raise: noticed, counted, nobody hangs.

The list of threads is read from the sources. A new kind of thread fails here until it has a
scenario, in `tests/support/threads_of_*.py`.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvferry.base import threads as _threads
from kvferry.base.errors import UnavailableError
from kvferry.base.threads import Guarded, Workers, failures, noticed
from support import clock, threads_of_caches, threads_of_engines, threads_of_services
from support.stamps import until
from support.thread_faults import LIMIT_S, SCENARIOS, Fault, Scenario, kinds

MODULES = (threads_of_caches, threads_of_engines, threads_of_services)
ERRORS: dict[str, Callable[[], Exception]] = {
    "ValueError": lambda: ValueError("of a plug-in"),
    "OSError": lambda: OSError(errno.EMFILE, "too many open files"),
    "MemoryError": MemoryError,
    "KeyError": lambda: KeyError("a bug"),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "_PAUSE_MAX_S", 0.05)
    monkeypatch.setattr(_threads, "_said", set())


@pytest.fixture
def fault(error: str, tmp_path: Path) -> Iterator[Fault]:
    made = Fault(ERRORS[error], tmp_path)
    yield made
    made.mend()


def test_every_thread_of_the_product_has_a_scenario() -> None:
    started = {kind: where for where, kind in kinds()}
    tried = {kind for kind, _, _ in SCENARIOS}
    assert len(started) > 30  # else they are not found any more
    missing = {kind: where for kind, where in started.items() if kind not in tried}
    assert not missing, f"threads whose work is never made to raise: {missing}"
    assert tried <= started.keys(), "scenarios of threads that there are not"


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    ("kind", "run", "ordinary"), SCENARIOS, ids=[f"{one[0]}-{one[1].__name__}" for one in SCENARIOS]
)
def test_a_thread_whose_work_raises_is_noticed_and_costs_nothing_but_hits(
    kind: str,
    run: Scenario,
    ordinary: tuple[type[Exception], ...],
    fault: Fault,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = failures().get(kind, 0)
    with caplog.at_level(logging.ERROR, "kvferry.threads"):
        run(fault)
    assert fault.raised
    if isinstance(fault.error(), ordinary):
        return
    until(lambda: failures().get(kind, 0) > before, LIMIT_S)

    def said() -> list[str]:
        ours = [record for record in caplog.records if record.name == "kvferry.threads"]
        return [text for one in ours if repr(kind) in (text := one.getMessage())]

    until(lambda: bool(said()), LIMIT_S)
    assert len(said()) == 1  # however often it raised


# --- The guard itself ---


@pytest.mark.parametrize("error", [*ERRORS.values(), lambda: SystemExit(1), KeyboardInterrupt])
def test_work_that_raises_begins_anew_behind_what_makes_its_owner_safe(
    error: Callable[[], BaseException],
) -> None:
    events: list[str] = []

    def work() -> None:
        events.append("work")
        if events.count("work") < 4:
            raise error()

    thread = Guarded(work, "a test", failed=lambda _: events.append("safe"))
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert events == ["work", "safe"] * 3 + ["work"]


def test_an_owner_that_cannot_be_made_safe_has_its_thread_all_the_same() -> None:
    done = threading.Event()
    raised = [ValueError(), ValueError()]

    def work() -> None:
        if raised:
            raise raised.pop()
        done.set()

    def failed(_: BaseException) -> None:
        raise OSError

    before = failures().get("a test", 0)
    Guarded(work, "a test", failed=failed).start()
    assert done.wait(LIMIT_S)
    assert failures()["a test"] == before + 4


def test_an_errand_is_not_repeated() -> None:
    count: list[int] = []

    def work() -> None:
        count.append(1)
        raise ValueError

    thread = Guarded(work, "a test", errand=True)
    thread.start()
    thread.join(LIMIT_S)
    assert count == [1]


def test_work_that_always_raises_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "_PAUSE_MAX_S", 1.0)
    pauses: list[float] = []
    over = threading.Event()

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 12:
            over.set()

    def work() -> None:
        if not over.is_set():
            raise ValueError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_threads, "time", _Time(sleep))
        thread = Guarded(work, "a test")
        thread.start()
        thread.join(LIMIT_S)
    assert pauses[:3] == [0.02, 0.04, 0.08]
    assert pauses[-1] == 1.0


class _Time:
    monotonic = staticmethod(time.monotonic)

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep


def test_a_thread_that_has_ended_keeps_nothing_of_its_owner() -> None:
    class Owner:
        def run(self) -> None: ...

    import weakref

    owner = Owner()
    gone = weakref.ref(owner)
    thread = Guarded(owner.run, "a test", failed=lambda _, owner=owner: None)  # type: ignore[misc]
    thread.start()
    thread.join(LIMIT_S)
    del owner
    assert gone() is None


def test_the_same_failure_is_said_once_and_another_one_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(error: Exception) -> Exception:
        try:
            raise error
        except Exception as raised:
            return raised

    for _ in range(100):
        noticed("a test", fails(ValueError("one")))
    for _ in range(100):
        noticed("a test", fails(OSError("two")))
    said = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert ["ValueError" in said[0].getMessage(), "OSError" in said[1].getMessage()] == [True, True]
    assert len(said) == 2
    assert all(record.exc_info for record in said)


def test_what_a_call_in_an_executor_raises_is_counted_and_told() -> None:
    before = failures().get("a test", 0)

    def fails(error: BaseException) -> None:
        raise error

    with Workers(1, "a test") as workers:
        assert isinstance(workers.submit(fails, ValueError()).exception(LIMIT_S), ValueError)
        assert failures()["a test"] == before + 1
        # An answer, which somebody reads.
        told = workers.submit(fails, UnavailableError("away")).exception(LIMIT_S)
        assert isinstance(told, UnavailableError)
        assert failures()["a test"] == before + 1
        # Who reads it goes on.
        told = workers.submit(fails, SystemExit(1)).exception(LIMIT_S)
        assert isinstance(told, RuntimeError)
        assert failures()["a test"] == before + 2
        assert workers.submit(lambda: 5).result(LIMIT_S) == 5


def test_threads_that_cannot_begin_are_noticed() -> None:
    def fails() -> None:
        raise OSError("no such device")

    before = failures().get("a test", 0)
    began = clock.now_s()
    with Workers(1, "a test", fails) as workers, pytest.raises(RuntimeError):
        workers.submit(lambda: 5).result(LIMIT_S)
    assert failures()["a test"] > before
    assert clock.now_s() - began < LIMIT_S
