"""What may be read of a key, told from what was written: the checker of the chaos runs.

    history = History(["a", "b"])
    write = history.begins("a", "set", now)             # a new version, write.version, to be stored
    history.ends(write, now, OK, ...)                   # raises Violation where it could not be
    read = history.begins("a", "get", now)
    history.ends(read, now, OK, version=3)

A machine: it sees neither socket nor clock. Threads: any; one lock.

A write *settles* at the moment after which it can take effect no more. One that was answered while
nothing was wrong (`clean`) has settled when it ended. Any other one may still lie in a buffer, and
an OK one may have been sent twice; they settle at the next `barrier`, which the runner passes when
nothing is under way. What a finished write, delete or read *proves* about the moment between its
begin and its end shuts out every write that had settled before. So each of these is a Violation:

    unknown   a version that nobody began to write
    stale     a version that was overwritten or deleted before the read began
    lost      a miss, or an absence, of a value that was stored and that nothing can have removed
    ghost     EXISTS found a key of which no version can be there

Legal are all values whose time is not provably over, and every miss while the server forgets:
`forgetting` (eviction, kill: values vanish) and `rolling_back` (failover: older ones may return).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from kvferry.client.batch import Status

__all__ = ["History", "Operation", "Verb", "Violation"]

Verb = Literal["get", "set", "exists", "touch", "delete"]
OLD_S = 60.0  # longer than any call: what was over before that is over for every read
SETTLED_REMOVALS_MAX = 8  # listed for each key; older ones only count
NEVER = -math.inf


class Violation(AssertionError):
    """Something was read that cannot have been there, or was not read and must have been."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass(slots=True, eq=False)
class Operation:
    """One key of one call. Times are the caller's, in seconds."""

    key: str
    verb: Verb
    start: float
    version: int = 0  # of a set
    end: float = math.inf
    ok: bool = False
    settled: float = math.inf  # no effect on the server after this
    over: float = math.inf  # of a set: no read that begins after this may return it


@dataclass(slots=True)
class _Key:
    name: str
    versions: int = 0  # begun so far
    writes: dict[int, Operation] = field(default_factory=dict)  # those that are not long over
    removals: list[Operation] = field(default_factory=list)  # what can make it absent
    removed_until: float = NEVER  # removals that are not listed any more settled by then
    returned: bool = False  # versions that are not listed any more may be back


class History:
    """The keys of one lane.

    Args:
        striped: Values are stored in pieces: two writes at a time may leave a mixture, a miss.
    """

    def __init__(self, keys: Iterable[str], striped: bool = False) -> None:
        self.striped = striped
        self._keys = {key: _Key(key) for key in keys}
        self._lock = threading.Lock()
        self._lost = NEVER  # what was stored before that may be gone
        self._unproved = NEVER  # what began before that proves nothing

    def begins(self, key: str, verb: Verb, now: float) -> Operation:
        """An operation on a key begins; a set gets its version."""
        operation = Operation(key, verb, now)
        with self._lock:
            state = self._keys[key]
            if verb == "set":
                state.versions += 1
                operation.version = state.versions
                state.writes[operation.version] = operation
            if verb == "delete" or (verb == "set" and self.striped):
                _list_removal(state, operation)
        return operation

    def ends(
        self,
        operation: Operation,
        now: float,
        status: Status,
        *,
        version: int = 0,
        clean: bool = False,
        trusted: bool = True,
    ) -> None:
        """It ended, with that status.

        Args:
            version: What a get that is OK has read.
            clean: Nothing was wrong from its begin to its end, and it was sent once.
            trusted: Replies were not tampered with on the way.

        Raises:
            Violation: See the module.
        """
        with self._lock:
            state = self._keys[operation.key]
            operation.end = now
            if clean and status in (Status.OK, Status.MISS):
                operation.settled = now
            if status is Status.CORRUPT:  # the client deletes it, when it gets to that
                _list_removal(state, Operation(operation.key, "delete", operation.start, end=now))
            if status is Status.OK and operation.verb == "get":
                self._ends_read(state, operation, version, trusted)
            elif trusted and status is Status.OK:
                operation.ok = True
                if operation.verb != "set":
                    self._check_presence(state, operation)
                if operation.verb in ("set", "delete"):
                    self._prove(state, operation.start, now, operation.version)
            elif trusted and status is Status.MISS:
                if clean or operation.verb != "delete":  # one sent twice misses what it removed
                    self._check_absence(state, operation)
                self._prove(state, operation.start, now, 0)

    def barrier(self, begun: float, now: float) -> None:
        """Whatever ended before `begun` has no effect after `now`."""
        with self._lock:
            for state in self._keys.values():
                for operation in (*state.writes.values(), *state.removals):
                    if operation.end < begun:
                        operation.settled = min(operation.settled, now)

    def pardon(self, now: float) -> None:
        """The evidence so far was not good: nothing that began before `now` proves anything."""
        with self._lock:
            self._unproved = self._lost = now
            for state in self._keys.values():
                state.returned = True
                for write in state.writes.values():
                    write.over = math.inf

    @contextmanager
    def forgetting(self, clock: Callable[[], float]) -> Iterator[None]:
        """While in it, values may vanish."""
        self._lost = math.inf
        yield
        self._lost = clock()

    @contextmanager
    def rolling_back(self, clock: Callable[[], float]) -> Iterator[None]:
        """While in it, values may vanish and older ones come back."""
        self.pardon(math.inf)
        yield
        self.pardon(clock())

    # Inside, under the lock.

    def _prove(self, state: _Key, start: float, end: float, version: int) -> None:
        """Between start and end that version was stored (0: none was)."""
        if start <= self._unproved:
            return
        state.returned = False
        for number, write in list(state.writes.items()):
            if number != version and write.settled < start:
                write.over = min(write.over, end)
                if write.over < end - OLD_S:
                    del state.writes[number]

    def _ends_read(self, state: _Key, read: Operation, version: int, trusted: bool) -> None:
        if not 1 <= version <= state.versions:
            raise Violation("unknown", f"{state.name}: version {version} was never written")
        if not trusted:  # an old reply may have been repeated
            return
        write = state.writes.get(version)
        over = NEVER if write is None else write.over
        if over < read.start and not (write is None and state.returned):
            raise Violation(
                "stale",
                f"{state.name}: version {version} was over {_ago(read.start - over)} before the "
                f"read began; the last version begun is {state.versions}",
            )
        if write is None:  # it came back: list it again
            write = Operation(state.name, "set", NEVER, version, end=NEVER, settled=NEVER)
            state.writes[version] = write
        self._prove(state, max(write.start, read.start), read.end, version)

    def _check_absence(self, state: _Key, read: Operation) -> None:
        since = max(self._lost, state.removed_until)
        for write in state.writes.values():
            if write.ok and since < write.start and write.end < read.start:
                others = (r for r in state.removals if r is not write and r is not read)
                if not any(removal.settled >= write.start for removal in others):
                    raise Violation(
                        "lost",
                        f"{state.name}: {read.verb} missed version {write.version}, stored "
                        f"{_ago(read.start - write.end)} before and never removed",
                    )

    def _check_presence(self, state: _Key, read: Operation) -> None:
        possible = self.striped or (state.returned and state.versions > 0)
        if not possible and all(write.over < read.start for write in state.writes.values()):
            raise Violation(
                "ghost",
                f"{state.name}: {read.verb} found it; of {state.versions} versions none is left",
            )


def _list_removal(state: _Key, operation: Operation) -> None:
    """List it, and sum up older ones: of those that ended, only when they settle matters."""
    running = [one for one in state.removals if one.end == math.inf]
    ended = [one for one in state.removals if one.end < math.inf]
    # Two are enough: of a write that may also have removed, there has to be another one.
    unsettled = [one for one in ended if one.settled == math.inf][-2:]
    settled = sorted((one for one in ended if one.settled < math.inf), key=lambda one: one.settled)
    for gone in settled[:-SETTLED_REMOVALS_MAX]:
        state.removed_until = max(state.removed_until, gone.settled)
    state.removals = [*settled[-SETTLED_REMOVALS_MAX:], *unsettled, *running, operation]


def _ago(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < OLD_S else "long"
