"""Bars of what callers get while a server is away or silent, and how soon it serves again."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Self

from benchmarks.bars import Bar, Lab, Target
from benchmarks.caller import RepeatedCaller, TimedCall
from benchmarks.latency import native_client
from kvferry.base.errors import CorruptError
from kvferry.client.batch import BatchResult, Status
from kvferry_lab.bench.data import Chunks
from kvferry_lab.servers.lab_server import LabServer, wait_until

__all__ = ["black_hole", "recovery", "refusals"]

_SOON = Target("<=", 1.0, "s")
_IN_TIME = Target("<=", 50.0, "ms past its deadline")
_AT_ONCE = Target("<=", 5.0, "ms")
_KEYS = 16
_CALL_LIMIT_S = 2.0
_DOWN_S = 2.0  # by then the client dials as seldom as it ever does
_LIMITS_S = (0.1, 0.5, None)  # of calls; None is by the settings
_SETTINGS_LIMIT_S = 1.0
_INTO_TRANSFER_S = 0.003
_NEAR_MS = 20.0


def recovery(lab: Lab) -> Iterator[Bar]:
    """The server is killed and started again while a caller goes on calling."""
    chunks = Chunks(lab.size_bytes(1), _KEYS, _KEYS)
    for name in lab.servers():
        recovered_s = []
        with (
            LabServer(lab.binary(name)) as server,
            closing(native_client(server.config)) as client,
            RepeatedCaller(client, chunks, _CALL_LIMIT_S) as caller,
        ):
            for _ in range(lab.rounds):
                caller.wait_for("all keys", lambda call: call.read_all, time.perf_counter())
                server.kill()
                caller.wait_for("a refusal", lambda call: call.refused, time.perf_counter())
                time.sleep(0.1 if lab.quick else _DOWN_S)
                listening_s = server.restart()
                back = caller.wait_for(
                    "an answer", lambda call: call.count(Status.OK) > 0, listening_s
                )
                recovered_s.append(back.ended_s - listening_s)
            caller.wait_for("all keys", lambda call: call.read_all, time.perf_counter())
        yield Bar(
            name=f"kill -9 and restart: first OK after it listens, {name}",
            target=_SOON,
            value=max(recovered_s),
            detail=f"of {len(recovered_s)}, median {statistics.median(recovered_s):.2f} s",
        )
        yield Bar(
            name=f"kill -9 and restart: the latest of all calls, {name}",
            target=_IN_TIME,
            value=max(call.late_s for call in caller.calls) * 1e3,
            detail=f"{len(caller.calls)} calls, {caller.verified_bytes / 1e9:.2f} GB verified",
        )
        yield refusals(name, [call for call in caller.calls if call.refused])


def refusals(name: str, calls: Sequence[TimedCall]) -> Bar:
    """While no server can be reached every call is UNAVAILABLE, at once."""
    others = [call for call in calls if call.count(Status.UNAVAILABLE) != len(call.statuses)]
    walls_ms = sorted(call.wall_s * 1e3 for call in calls)
    return Bar(
        name=f"breaker open: UNAVAILABLE, p99, {name}",
        target=_AT_ONCE,
        value=None if others else walls_ms[int((len(walls_ms) - 1) * 0.99)],
        detail=f"{len(calls)} calls, p50 {statistics.median(walls_ms):.3f} ms",
        reason=f"{len(others)} of {len(calls)} calls had another outcome" if others else "",
    )


def black_hole(lab: Lab) -> Iterator[Bar]:
    """A server that accepts everything and answers nothing: no batch outlives its deadline."""
    chunks = Chunks(lab.size_bytes(4), _KEYS, _KEYS)
    # The bytes of a key never change: a SET that was given up may yet be heard after the silence.
    chunks.next_write(chunks.batches()[0])
    for name in lab.servers():
        late_ms: list[float] = []
        with LabServer(lab.binary(name)) as server:
            config = server.config.replace(timeout_s=_SETTINGS_LIMIT_S)
            with closing(native_client(config)) as client:
                for _ in range(1 if lab.quick else 3):
                    for limit_s in _LIMITS_S:
                        _refill(client, chunks)
                        with _Suspended(server, after_s=_INTO_TRANSFER_S) as silence:
                            for verb in ("get", "set", "exists", "get"):
                                late_s = _silent_call(client, chunks, verb, limit_s)
                                late_ms.append(late_s * 1e3)
                                silence.wait()  # the first may have been over before it began
        waited = sum(late > -_NEAR_MS for late in late_ms)
        yield Bar(
            name=f"black hole: the latest of all batches, {name}",
            target=_IN_TIME,
            value=max(late_ms) if waited else None,
            detail=f"{len(late_ms)} batches, {waited} waited until their deadline",
            reason="" if waited else "no batch met a server that was silent",
        )


class _Suspended:
    """The server stops answering a moment from now, and is there again at the end."""

    def __init__(self, server: LabServer, after_s: float) -> None:
        self._server = server
        self._timer = threading.Timer(after_s, server.suspend)

    def wait(self) -> None:
        """Until it has stopped."""
        self._timer.join()

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self._server.resume()


def _refill(client: Any, chunks: Chunks) -> None:
    """Wait until the server serves again; then every key is there, and as it should be."""
    batch = chunks.batches()[0]
    wait_until("the server", lambda: bool(client.batch_set(chunks.keys, chunks.sources).ok))
    chunks.poison()
    if not client.batch_get(chunks.keys, chunks.targets).ok:
        raise CorruptError("not every key is there that was just written")
    chunks.verify(batch, chunks.targets)


def _silent_call(client: Any, chunks: Chunks, verb: str, limit_s: float | None) -> float:
    """How many seconds after its deadline a batch returned."""
    batch = chunks.batches()[0]
    chunks.poison()
    buffers = {"get": (chunks.targets,), "set": (chunks.sources,), "exists": ()}[verb]
    size_bytes = 0 if verb == "exists" else len(batch) * chunks.size_bytes
    allowed_s = client.config.deadline_s(size_bytes) if limit_s is None else limit_s
    start = time.perf_counter()
    result: BatchResult = getattr(client, f"batch_{verb}")(chunks.keys, *buffers, timeout_s=limit_s)
    late_s = time.perf_counter() - start - allowed_s
    if verb == "get":
        for index, status in enumerate(result):
            if status is Status.OK:
                chunks.verify_one(batch, index, chunks.targets[index])
    return late_s
