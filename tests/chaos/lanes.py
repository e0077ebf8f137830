"""A lane: one client, its keys and their history. Makes calls, and judges what came back.

Found here, each a Violation: whatever the history says; `wrong` bytes; `late_write` into a buffer
after its call had ended; `size_mismatch`, `corrupt`, `error`: a status that nothing explains;
`refused`: a call that failed in times of peace.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chaos.callers import Caller, Request
from chaos.calls import Call, Shape
from kvferry.client.batch import BatchResult, Status
from support.history import History, Operation, Violation
from support.proxy import FaultProxy
from support.stamps import MIB, WrongBytes, check, poisoned, stamped

__all__ = ["Lane", "Peace", "Retired"]

PEACE_TIMEOUT_S = 8.0
RETIRED_BYTES_MAX = MIB  # of a call
RETIRED_S = 0.1
OURS = 0x3C
# Errors that the troubles of the servers explain.
EXPLAINED = ("OOM", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED")


@dataclass(eq=False)
class Peace:
    """A time in which nothing goes wrong. ``retried``: of each lane, at its beginning."""

    retried: dict[str, int]
    pardoned: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Retired:
    """Buffers of calls that ended. They are ours again: nobody else may write to them."""

    def __init__(self) -> None:
        self._buffers: deque[tuple[float, bytearray]] = deque()

    def add(self, buffers: Sequence[bytearray]) -> None:
        room = RETIRED_BYTES_MAX
        until = time.monotonic() + RETIRED_S
        for buffer in buffers:
            if (room := room - len(buffer)) >= 0:
                buffer[:] = bytes([OURS]) * len(buffer)
                self._buffers.append((until, buffer))

    def check(self) -> None:
        """Violation if one was written to. Old ones are let go."""
        for _, buffer in self._buffers:
            if buffer.count(OURS) != len(buffer):
                raise Violation("late_write", f"{len(buffer)} bytes, after their call had ended")
        now = time.monotonic()
        while self._buffers and self._buffers[0][0] < now:
            self._buffers.popleft()

    def let_go(self) -> None:
        """All of them, checked for the last time."""
        self.check()
        self._buffers.clear()


class Lane:
    """See the module.

    Args:
        connect: Opens its client; called once for each opening of the lane.
        damaging: Replies are tampered with on its way, so its values are framed.
        way: The proxy between its client and the server, if there is one.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        connect: Callable[[], Caller],
        *,
        striped: bool = False,
        damaging: bool = False,
        way: FaultProxy | None = None,
    ) -> None:
        self.name, self.shape, self.way, self.damaging = name, shape, way, damaging
        self.keys = [f"{name}:{index}" for index in range(len(shape.sizes))]
        self.history = History(self.keys, striped)
        self.outcomes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.damaged = False  # since the last barrier replies may be out of step
        self.answered_since = 0.0  # a call that began then was served
        self._connect = connect
        self._caller: Caller | None = None
        self._lock = threading.Lock()

    @property
    def caller(self) -> Caller:
        assert self._caller is not None, "the lane is closed"
        return self._caller

    def open(self) -> None:
        self._caller = self._connect()

    def close(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None

    def allowed_s(self, call: Call, peace: Peace | None) -> float:
        """How long that call may take."""
        if peace is not None:
            return PEACE_TIMEOUT_S
        size = sum(self.shape.sizes[index] for index in call.keys)
        limit_s = call.timeout_s or self.caller.deadline_s(size)
        return limit_s if call.cancel_after_s is None else min(limit_s, call.cancel_after_s)

    def perform(
        self, call: Call, retired: Retired, peace: Callable[[], Peace | None]
    ) -> BatchResult:
        """Make the call and judge what came of it; raises Violation."""
        before = peace()
        trusted = not self.damaged
        names = [self.keys[index] for index in call.keys]
        start = time.monotonic()
        operations = [self.history.begins(name, call.verb, start) for name in names]
        buffers = self._buffers(call, operations)
        result = self.caller.call(
            Request(
                call.verb,
                names,
                buffers,
                call.prefix,
                PEACE_TIMEOUT_S if before else call.timeout_s,
                None if before else call.cancel_after_s,
            )
        )
        now = time.monotonic()
        trusted &= not self.damaged
        calm = before if before is peace() else None
        try:
            self._judge(operations, buffers, result, now, calm is not None, trusted)
        except Violation as violation:
            if calm is None or not self._pardoned(calm):
                raise violation from None
        self._count(call.verb, result, start)
        if call.verb == "set":
            retired.add(buffers)
        elif buffers:
            pairs = zip(buffers, result, strict=True)
            retired.add([buffer for buffer, status in pairs if status is not Status.OK])
        return result

    def _buffers(self, call: Call, operations: Sequence[Operation]) -> list[bytearray]:
        sizes = [self.shape.sizes[index] for index in call.keys]
        if call.verb == "get":
            return [poisoned(size) for size in sizes]
        if call.verb == "set":
            pairs = zip(operations, sizes, strict=True)
            return [bytearray(stamped(one.key, one.version, size)) for one, size in pairs]
        return []

    def _judge(
        self,
        operations: Sequence[Operation],
        buffers: Sequence[bytearray],
        result: BatchResult,
        now: float,
        clean: bool,
        trusted: bool,
    ) -> None:
        violations = []
        for index, (operation, status) in enumerate(zip(operations, result, strict=True)):
            version = 0
            try:
                if operation.verb == "get" and status is Status.OK:
                    version = check(operation.key, buffers[index])
                self._check_status(f"{operation.verb} {operation.key}", status, result, clean)
                self.history.ends(
                    operation, now, status, version=version, clean=clean, trusted=trusted
                )
            except WrongBytes as error:
                violations.append(Violation("wrong", str(error)))
            except Violation as violation:
                violations.append(violation)
        if violations:
            raise violations[0]

    def _check_status(self, what: str, status: Status, result: BatchResult, clean: bool) -> None:
        text = f"{what}: {status.name}, {result.error}"
        explained = any(word in text for word in EXPLAINED)
        if status is Status.SERVER_ERROR and not explained and not self.damaged:
            raise Violation("error", text)
        if status in (Status.CORRUPT, Status.SIZE_MISMATCH) and not self.damaging:
            raise Violation(status.name.lower(), text)
        if clean and status in (Status.TIMEOUT, Status.UNAVAILABLE, Status.SERVER_ERROR):
            raise Violation("refused", f"{text}, in peace")

    def _pardoned(self, peace: Peace) -> bool:
        """Whether commands were sent twice in this peace: then it was none, and proves nothing."""
        with peace.lock:
            if self.caller.retried() == peace.retried[self.name]:
                return False
            peace.pardoned.add(self.name)
            self.history.pardon(time.monotonic())
            return True

    def settle(self, peace: Peace) -> None:
        """At the end of a peace: if it was none, nothing of it counts."""
        self._pardoned(peace)

    def _count(self, verb: str, result: BatchResult, start: float) -> None:
        with self._lock:
            self.outcomes.update(f"{verb} {status.name}" for status in result)
            if result.error:
                self.errors[result.error[:80]] += 1
            if result.count(Status.OK) or result.count(Status.MISS):
                self.answered_since = max(self.answered_since, start)
