"""Threads of ours: the one way to start them, and what becomes of work that raises in one.

    Guarded(self._run, "write", detail=tier.name).start()
    Workers(4, "load")  # an executor

What work raises in a thread is a fault of ours, of a plug-in or of the machine. It is noticed:
logged when it is new, and counted, which ``kvferry_thread_failures_total`` shows. Then `failed`
puts the owner into its safe state, in which its cache misses, and the work is begun anew after a
pause: a loop whose body has raised goes on. An errand is not repeated.

Threads: any.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from kvferry.base.errors import KVFerryError

__all__ = ["Guarded", "Workers", "failures", "noticed"]

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("kvferry.threads")

# Until work begins anew: doubled while it raises, and the first again when it went well for so
# long.
_PAUSE_S, _PAUSE_MAX_S = 0.02, 1.0
_WELL_S = 10.0
_SAID_MAX = 1000

_lock = threading.Lock()
_counts: Counter[str] = Counter()
_said: set[tuple[str, type[BaseException], str]] = set()


class Guarded(threading.Thread):
    """A thread that its work does not end by raising; see the module.

    Args:
        work: Is called, and again after it has raised, until it returns.
        kind: What it is in metrics and in the log, with ``kvferry-`` in front the thread's name.
        args: For the work.
        detail: Tells it from others of its kind, in its name.
        errand: The work is called once.
        failed: Called with what the work raised, before it is called again: puts its owner into a
            safe state.
        daemon: See `threading.Thread`.
    """

    def __init__(
        self,
        work: Callable[..., object],
        kind: str,
        *args: Any,
        detail: object = "",
        errand: bool = False,
        failed: Callable[[BaseException], object] | None = None,
        daemon: bool = True,
    ) -> None:
        end = f"-{detail}" if detail != "" else ""
        super().__init__(name=f"kvferry-{kind}{end}", daemon=daemon)
        self._kind = kind
        self._errand = errand
        self._work: Callable[[], object] | None = lambda: work(*args)
        self._failed = failed

    def run(self) -> None:
        """See `threading.Thread`."""
        pause_s = _PAUSE_S
        while (work := self._work) is not None:
            began = time.monotonic()
            if self._does(work) or self._errand:
                self._work = self._failed = None  # and with them their owner
                return
            pause_s = _PAUSE_S if time.monotonic() - began > _WELL_S else pause_s
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _does(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except BaseException as error:  # not even a SystemExit of a plug-in may end it
            noticed(self._kind, error)
            try:
                if self._failed is not None:
                    self._failed(error)
            except BaseException as worse:
                noticed(self._kind, worse)
            return False
        return True


class Workers(ThreadPoolExecutor):
    """An executor whose calls are noticed when they raise: many futures are read by nobody.

    Errors of ours are answers, and for whoever reads them.

    Args:
        count: Of threads.
        kind: As for `Guarded`.
        thread_start: What each thread does first.
    """

    def __init__(
        self, count: int, kind: str, thread_start: Callable[[], object] | None = None
    ) -> None:
        self._kind = kind
        super().__init__(
            count,
            f"kvferry-{kind}",
            None if thread_start is None else lambda: self._guarded(thread_start),
        )

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `ThreadPoolExecutor`."""
        return super().submit(self._guarded, partial(fn, *args, **kwargs))

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except KVFerryError:
            raise
        except Exception as error:
            noticed(self._kind, error)
            raise
        except BaseException as error:  # a SystemExit of a plug-in must not end who waits for it
            noticed(self._kind, error)
            raise RuntimeError(f"{type(error).__name__} in a thread") from error


def noticed(kind: str, error: BaseException) -> None:
    """Something was raised in a thread of this kind that its work does not expect: count it, and
    log it if it is new there."""
    with suppress(Exception):  # there may be no memory for any of it
        with _lock:
            _counts[kind] += 1
            mark = (kind, type(error), _place(error))
            new = mark not in _said and len(_said) < _SAID_MAX
            if new:
                _said.add(mark)
        level = logging.ERROR if new else logging.DEBUG
        text = "the thread %r failed: %s; the same again is counted, and not logged"
        _log.log(level, text, kind, type(error).__name__, exc_info=error)


def failures() -> dict[str, int]:
    """How often work has raised in this process, by the kind of its thread."""
    with _lock:
        return dict(_counts)


def _place(error: BaseException) -> str:
    """Where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
