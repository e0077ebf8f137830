"""One connection through the fault proxy: its two directions, and how each is slowed and edited.

A Pipe holds what was read and not yet delivered, each piece with the time at which it is due. Its
faults edit the bytes on the way in, as the server sent them; its Shape rules the way out. All of
it belongs to the proxy's thread, or runs under the proxy's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import random
import socket
import struct
import sys
import termios
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from support.resp import ReplyFramer, Segment

READ_BYTES = 256 * 1024
DELAYED_BYTES_MAX = 64 << 20  # held for a delay, per direction of a connection
BYTE_FAULTS = ("cut", "stall", "flip")
SLACK_S = 0.01  # a limited flow may catch up with what the timer's grain cost it

Ending = Literal["fin", "rst"]
Mark = Literal["eof", "stall", "fin", "rst"]  # eof: the source's own end; the others are faults


class _Clock:
    """When the connections of a shape that share a bandwidth may send again."""

    next_send_at = 0.0


@dataclass
class Shape:
    """How one direction flows. All fields may change at any time."""

    delay_s: float = 0.0  # every byte arrives this much later; bytes in flight overlap
    jitter_s: float = 0.0  # and up to so much more, at random; order is kept
    bandwidth_bytes_per_s: float | None = None
    shared: bool = False  # the bandwidth is that of all connections together
    slice_bytes: int | None = None  # at most so many per send
    slice_interval_s: float = 0.0  # and so long between sends
    slice_random: bool = False  # 1 to slice_bytes, at random
    flips_per_byte: float = 0.0  # how often a bit is turned over, at random
    reading: bool = True  # False: the sender's window fills up, and nothing arrives
    clock: _Clock = field(default_factory=_Clock, repr=False)


@dataclass
class Tally:
    """What went through one direction so far, on all connections."""

    bytes: int = 0
    flips: int = 0  # of flips_per_byte


@dataclass(eq=False)
class Fault:
    """An armed fault. ``fired`` counts the connections that it has hit."""

    kind: str
    at: int  # bytes or replies from where ``base`` says
    times: int = 1
    data: bytes = b""
    mask: int = 0
    ending: Ending = "rst"
    fired: int = 0
    base: dict[Pipe, int] = field(default_factory=dict)
    event: threading.Event = field(default_factory=threading.Event)

    def wait_fired(self, timeout_s: float = 20.0) -> None:
        assert self.event.wait(timeout_s), f"the fault {self.kind!r} did not fire"

    def arm(self, pipe: Pipe) -> None:
        """Count from here on this connection; on later ones from their beginning."""
        self.base[pipe] = pipe.bytes_seen if self.kind in BYTE_FAULTS else pipe.replies_begun

    def due(self, pipe: Pipe) -> int:
        """How many bytes or replies lie before it; negative: past, or spent."""
        if self.fired >= self.times:
            return -1
        position = pipe.bytes_seen if self.kind in BYTE_FAULTS else pipe.replies_begun
        return self.base.get(pipe, 0) + self.at - position

    def fire(self, pipe: Pipe) -> None:
        self.fired += 1
        self.base[pipe] = -(1 << 62)  # never again on this connection
        self.event.set()


class Pipe:
    """One direction of one connection."""

    def __init__(
        self,
        shape: Shape,
        source: socket.socket,
        sink: socket.socket,
        tally: Tally,
        seed: str,
        framer: ReplyFramer | None = None,
    ) -> None:
        self.shape, self.source, self.sink, self.tally = shape, source, sink, tally
        self.framer = framer  # without one, faults that count replies do not fire
        self._rng, self._flip_rng = random.Random(seed), random.Random(f"{seed} flips")
        self.held: deque[tuple[float, memoryview | Mark]] = deque()
        self.held_bytes = 0
        self.next_send_at = 0.0
        self.stalled = False
        self.ended = False  # the source has nothing more
        self.finished = False  # and the sink knows
        self.blocked = False  # the sink takes no more now
        self.bytes_seen = self.replies_begun = 0
        self._editing: Fault | None = None  # drops or duplicates the reply that is passing
        self._copy: list[bytes] = []
        self._next_flip: int | None = None  # bytes from here

    def wants_read(self) -> bool:
        limit = DELAYED_BYTES_MAX if self.shape.delay_s or self.shape.jitter_s else 2 * READ_BYTES
        return not self.ended and self.held_bytes < limit

    # In.

    def take(self, data: bytes, faults: Sequence[Fault], now: float) -> None:
        """Hold what the source sent, as the faults would have it."""
        if self.framer is None:
            self._edit_bytes(memoryview(data), faults, now)
            return
        for segment in self.framer.feed(data):
            self._edit_reply(segment, faults, now)

    def hold(self, item: memoryview | Mark, now: float) -> None:
        if isinstance(item, str) or item:
            late_s = self.shape.delay_s + self._rng.random() * self.shape.jitter_s
            self.held.append((now + late_s, item))
            self.held_bytes += len(item) if isinstance(item, memoryview) else 0

    def _edit_reply(self, segment: Segment, faults: Sequence[Fault], now: float) -> None:
        if segment.begins and segment.kind != b">":
            for fault in faults:
                if fault.kind in BYTE_FAULTS or fault.due(self) != 0:
                    continue
                fault.fire(self)
                if fault.kind == "insert":
                    self.hold(memoryview(fault.data), now)
                else:
                    self._editing = fault
            self.replies_begun += 1
        kind = self._editing.kind if self._editing else "pass"
        if kind == "drop":
            self.bytes_seen += len(segment.data)
        else:
            self._edit_bytes(segment.data, faults, now)
        if kind == "duplicate":
            self._copy.append(bytes(segment.data))
        if segment.ends:
            for piece in self._copy:
                self.hold(memoryview(piece), now)
            self._copy, self._editing = [], None

    def _edit_bytes(self, data: memoryview, faults: Sequence[Fault], now: float) -> None:
        data = self._flip_at_random(data)
        mine = [fault for fault in faults if fault.kind in BYTE_FAULTS]
        for fault in sorted(mine, key=lambda fault: fault.due(self)):
            at = fault.due(self)
            if not 0 <= at < len(data):
                continue
            fault.fire(self)
            if fault.kind == "flip":
                changed = bytearray(data)
                changed[at] ^= fault.mask
                data = memoryview(changed)
                continue
            self.hold(data[:at], now)
            self.hold(fault.ending if fault.kind == "cut" else "stall", now)
            self.bytes_seen += at
            data = data[at:]
        self.bytes_seen += len(data)
        self.hold(data, now)

    def _flip_at_random(self, data: memoryview) -> memoryview:
        """Which bits depends on the seed and on how many bytes came before, not on the pieces."""
        rate = self.shape.flips_per_byte
        if not rate:
            self._next_flip = None
            return data
        at = int(self._flip_rng.expovariate(rate)) if self._next_flip is None else self._next_flip
        if at < len(data):
            data = memoryview(bytearray(data))
        while at < len(data):
            data[at] ^= 1 << self._flip_rng.randrange(8)
            self.tally.flips += 1
            at += 1 + int(self._flip_rng.expovariate(rate))
        self._next_flip = at - len(data)
        return data

    # Out.

    def wake_at(self) -> float | None:
        """When something can be delivered; None: waiting for time does not help."""
        if self.stalled or self.blocked or not self.held:
            return None
        return max(self.held[0][0], self.next_send_at)

    def deliver(self, now: float) -> Mark | None:
        """Send what is due; returns the mark at which it had to stop, if it met one."""
        while (wake_at := self.wake_at()) is not None and wake_at <= now:
            due, item = self.held.popleft()
            if isinstance(item, str):
                return item
            try:
                sent = self.sink.send(item[: self._piece_bytes()])
            except BlockingIOError:
                sent, self.blocked = 0, True
            if sent < len(item):
                self.held.appendleft((due, item[sent:]))
            self.held_bytes -= sent
            self.tally.bytes += sent
            self._space_sends(sent, now)
        return None

    def _piece_bytes(self) -> int:
        piece = self.shape.slice_bytes or READ_BYTES
        if self.shape.slice_random:
            piece = self._rng.randint(1, piece)
        if rate := self.shape.bandwidth_bytes_per_s:
            piece = min(piece, max(1, int(rate * 0.002)))
        return piece

    def _space_sends(self, sent: int, now: float) -> None:
        if not sent:
            return
        if rate := self.shape.bandwidth_bytes_per_s:
            clock = self.shape.clock if self.shape.shared else self
            clock.next_send_at = max(clock.next_send_at, now - SLACK_S) + sent / rate
            self.next_send_at = max(self.next_send_at, clock.next_send_at)
        if self.shape.slice_bytes and self.shape.slice_interval_s:
            self.next_send_at = max(self.next_send_at, now + self.shape.slice_interval_s)


class Link:
    """A client's connection, ours to the server behind it, and a Pipe each way."""

    def __init__(self, client: socket.socket, server: socket.socket, up: Pipe, down: Pipe) -> None:
        self.client, self.server, self.up, self.down = client, server, up, down
        self.pipes = (up, down)
        self.swallows = False  # bytes of either side are read and thrown away
        self.spared = False  # no fault, no hole: a connection between the servers themselves
        self.reset_at: float | None = None  # then at the latest, close with RST
        for end in (client, server):
            end.setblocking(False)
            if end.family != socket.AF_UNIX:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ends(self) -> tuple[tuple[socket.socket, Pipe, Pipe], ...]:
        """Each socket with the pipe that it feeds and the pipe that it drains."""
        return (self.client, self.up, self.down), (self.server, self.down, self.up)

    def close(self, ending: Ending) -> None:
        if ending == "rst":
            with contextlib.suppress(OSError):
                at_once = struct.pack("ii", 1, 0)
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self.client.close()
        self.server.close()

    def unsent_bytes(self) -> int:
        """What the client's side has not acknowledged yet; a reset would destroy it."""
        answer = fcntl.ioctl(self.client, termios.TIOCOUTQ, b"\0" * 4)
        return int.from_bytes(answer, sys.byteorder)
