"""Loading a prefix from stores into memory: in parts, all at once, and no longer than it pays.

A load is cut into parts of consecutive chunks. All of them are submitted at once, so the wire never
idles between them; they arrive in order, so a load that is cut leaves a usable prefix. It is cut

- when nothing flows, and the budget of the request is used up: waiting longer would make it later
  than computing;
- when the rest, at the speed seen so far, would take longer than computing it;
- when the caller's deadline has come.

A part that was cut ends soon, but not at once: a store may still be writing into its pages. They go
back when it has ended, which `Leftovers` sees to, and nobody waits for that.

Chunks for which there is no page can land in buffers of the caller (`direct`), where nobody else
sees them. Then a cut has to wait until the store has let go of them: only for stores that do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvferry.client.batch import BatchResult
from kvferry.connectors.base import BufferLike, Ticket
from kvferry.engine.cost import Budget
from kvferry.engine.memory import Memory, Reserved
from kvferry.engine.prompt import Prompt
from kvferry.engine.tier import REASONS, Tier
from kvferry.errors import DeadlineExceeded, KVFerryError

__all__ = ["Leftovers", "Load", "Loaded", "Wanted"]

# A load has so many parts: enough that a cut wastes little, few enough to cost nothing.
_PARTS = 16
_PART_BYTES_MIN = 4 << 20
# How often a running load is looked at.
_LOOK_S = 0.005
# How wrong the speed seen so far may be, as a share of the time of computing.
_DOUBT = 0.02
# What a store may take to let go of a part that was cut, before the part is left behind...
_LET_GO_S = 0.02
# ... and before that is an error, where it holds buffers of the caller.
_LET_GO_DIRECT_S = 10.0


@dataclass(frozen=True)
class Wanted:
    """Chunks `start` to `end` (not included) are to come from a tier."""

    tier: Tier
    start: int
    end: int


@dataclass
class Loaded:
    """What became of a load.

    Attributes:
        end: The index behind the last chunk of the prefix that is in memory now.
        reason: Why it is not all: "", "pool_full", "cut", "deadline", or a store's reason.
        chunks: How many chunks each tier gave.
        took_s: How long it took.
    """

    end: int
    reason: str = ""
    chunks: dict[str, int] = field(default_factory=dict)
    took_s: float = 0.0


@dataclass
class _Part:
    tier: Tier
    end: int  # behind the last chunk of the prefix that is there when this part is
    reserved: Reserved  # id 0: it lands in buffers of the caller
    ticket: Ticket

    def reached(self, arrived: int) -> int:
        """The index of the first chunk that is not there, with that many of the part's arrived."""
        chunks = self.reserved.chunks
        return chunks[arrived] if arrived < len(chunks) else self.end


class Leftovers:
    """Parts that were cut and have not ended: their pages wait for that. Swept now and then."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._parts: list[tuple[Ticket, int]] = []

    def add(self, ticket: Ticket, reservation: int) -> None:
        """The pages of the reservation belong to the ticket until it ends."""
        with self._lock:
            self._parts.append((ticket, reservation))

    def sweep(self, limit_s: float = 0.0) -> int:
        """Free the pages of whatever has ended; wait `limit_s` at most. How many have not."""
        until = time.monotonic() + limit_s
        with self._lock:
            parts, self._parts = self._parts, []
        kept = []
        for ticket, reservation in parts:
            if ticket.wait(max(0.0, until - time.monotonic())) is not None:
                self._memory.abort(reservation)
            else:
                kept.append((ticket, reservation))
        with self._lock:
            self._parts += kept
            return len(self._parts)


class Load:
    """One load. `begin`, then `finish`, in one thread.

    Args:
        memory: Where to.
        prompt: What.
        budget: Until when.
        leftovers: Takes what was cut.
        arrived: Called with chunks and their pages (direct: no pages) when they have arrived and
            before anybody else sees them: the pages are the caller's for that long.
        direct: Buffers for all chunks of the prompt: land there, and not in memory.
    """

    def __init__(
        self,
        memory: Memory,
        prompt: Prompt,
        budget: Budget,
        leftovers: Leftovers,
        arrived: Callable[[Sequence[int], Sequence[int]], None] | None = None,
        direct: Sequence[BufferLike] | None = None,
    ) -> None:
        self._memory = memory
        self._prompt = prompt
        self._budget = budget
        self._leftovers = leftovers
        self._arrived = arrived
        self._direct = direct
        self._parts: list[_Part] = []
        self._began = time.monotonic()
        self._first_s = 0.0  # since the beginning of the request: when something should come
        self._flow = _Flow({}, 0.0)
        self._outcome = Loaded(0)

    def begin(self, wanted: Sequence[Wanted]) -> int:
        """Reserve pages and ask for everything; how many chunks are on their way because of it.

        `wanted` is in the order of the prefix, without gaps. Without more room it ends early.
        """
        self._outcome.end = wanted[0].start if wanted else 0
        if wanted:
            patience_s = max(6 * _LOOK_S, 0.05 * self._budget.recompute_s)
            sizes = {
                piece.tier: (piece.end - piece.start) * piece.tier.chunk_bytes for piece in wanted
            }
            self._flow = _Flow(sizes, patience_s)
            first_s = wanted[0].tier.predict_s(1)
            self._first_s = self._began - self._budget.began + first_s
        total = sum(piece.end - piece.start for piece in wanted)
        for piece in wanted:
            step = max(-(-total // _PARTS), _PART_BYTES_MIN // piece.tier.chunk_bytes, 1)
            for start in range(piece.start, piece.end, step):
                reason = self._ask(piece.tier, start, min(start + step, piece.end))
                if reason:
                    self._outcome.reason = reason
                    return self.wanted
        return self.wanted

    @property
    def wanted(self) -> int:
        """How many chunks were asked for."""
        return sum(len(part.reserved.chunks) for part in self._parts)

    @property
    def reason(self) -> str:
        """Why less was asked for than was wanted: "", "pool_full", "error"."""
        return self._outcome.reason

    def finish(self) -> Loaded:
        """Wait while that pays."""
        took_s: dict[Tier, float] = {}
        done = 0
        try:
            for part in self._parts:
                result = self._await(part)
                if result is None:
                    break
                took_s[part.tier] = time.monotonic() - self._began
                done += 1
                if not self._take(part, result):
                    break
        finally:  # also when somebody presses Ctrl-C
            self._cut(done)
        self._outcome.took_s = time.monotonic() - self._began
        self._learn(took_s)
        return self._outcome

    def _ask(self, tier: Tier, start: int, end: int) -> str:
        """Submit one part; why it is not all of it, or ""."""
        if self._direct is None:
            reserved = self._memory.reserve(self._prompt.first(end), start)
            buffers: Sequence[BufferLike] = self._memory.views(reserved.handles)
        else:
            reserved = Reserved(0, list(range(start, end)), [], 0)
            buffers = self._direct[start:end]
        if reserved.chunks:
            if reserved.shed:
                end = reserved.chunks[-1] + 1
            names = self._prompt.keys(start, end)
            try:
                ticket = tier.connector.submit_get(
                    [names[chunk - start] for chunk in reserved.chunks],
                    buffers,
                    prefix=True,
                    timeout_s=max(0.001, self._budget.deadline - time.monotonic()),
                )
            except KVFerryError:  # it has too much to do, or was closed
                self._memory.abort(reserved.id)
                return "error"
            self._parts.append(_Part(tier, end, reserved, ticket))
        return "pool_full" if reserved.shed else ""

    def _await(self, part: _Part) -> BatchResult | None:
        """Wait for a part while that pays; None when it does not."""
        budget, size, goal = self._budget, self._prompt.chunk_size, self._parts[-1].end
        while True:
            result = part.ticket.wait(_LOOK_S)
            if result is not None:
                return result
            now = time.monotonic()
            held = part.reached(part.ticket.prefix_len) * size
            if now >= budget.deadline:
                self._outcome.reason = "deadline"
                return None
            if not budget.prefill.known:
                continue
            left_s = self._flow.remaining_s(now)
            if left_s is None:  # nothing flows: was it to be expected by now?
                if now < budget.until(held, self._first_s):
                    continue
            else:
                gain_s = budget.gain_s(now, held, goal * size, left_s)
                if gain_s > -_DOUBT * budget.recompute_s:
                    continue
            self._outcome.reason = "cut"
            return None

    def _take(self, part: _Part, result: BatchResult) -> bool:
        """Put what has arrived into memory; False: the prefix ends within this part."""
        chunks, handles = part.reserved.chunks, part.reserved.handles
        count = result.prefix_len
        if self._arrived is not None and count:
            self._arrived(chunks[:count], handles[:count])
        if part.reserved.id:
            # What arrived behind a hole stays as well: it is right, and the hole may be filled.
            ok = bytes(status == 0 for status in result.statuses)
            self._memory.commit(part.reserved.id, ok)
        name = part.tier.name
        self._outcome.chunks[name] = self._outcome.chunks.get(name, 0) + count
        self._outcome.end = part.reached(count)
        if count == len(chunks):
            return True
        part.tier.refuse(self._prompt, chunks, result)
        if self._outcome.reason not in ("cut", "deadline"):
            self._outcome.reason = REASONS.get(result[count], "error")
        return False

    def _cut(self, index: int) -> None:
        """Withdraw the parts from this one on; keep what has arrived of the first of them."""
        for part in self._parts[index:]:
            part.ticket.cancel()
        until = time.monotonic() + (_LET_GO_S if self._direct is None else _LET_GO_DIRECT_S)
        whole = self._outcome.reason in ("cut", "deadline")  # else there is a hole already
        for part in self._parts[index:]:
            result = part.ticket.wait(max(0.0, until - time.monotonic()))
            if result is None:
                if self._direct is not None:
                    raise DeadlineExceeded(
                        f"{part.tier.name} holds on to buffers of a load that was withdrawn"
                    )
                self._leftovers.add(part.ticket, part.reserved.id)
                whole = False
            elif whole:
                whole = self._take(part, result)
            elif part.reserved.id:
                self._memory.abort(part.reserved.id)

    def _learn(self, took_s: dict[Tier, float]) -> None:
        """Tell each tier how fast it was, as far as it came."""
        for part in self._parts:
            took_s.setdefault(part.tier, self._outcome.took_s)
        for tier, seconds in took_s.items():
            size_bytes = self._outcome.chunks.get(tier.name, 0) * tier.chunk_bytes
            if self._outcome.reason == "cut":  # pieces of chunks count, and so does nothing at all
                size_bytes = max(size_bytes, self._flow.received(tier), tier.chunk_bytes)
            if size_bytes:
                tier.learn(size_bytes, seconds)


class _Flow:
    """How fast bytes are coming in, from all stores of a load together."""

    def __init__(self, sizes: dict[Tier, int], patience_s: float) -> None:
        self._wanted = sum(sizes.values())
        self._patience_s = patience_s
        self._start = {tier: tier.received_bytes() for tier in sizes}
        # When bytes were seen first and last, and how many there were then.
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)

    def received(self, tier: Tier) -> int:
        """What came from a store since the load began, whoever asked for it."""
        return tier.received_bytes() - self._start[tier]

    def remaining_s(self, now: float) -> float | None:
        """Seconds until the rest is here, at the speed since the first bytes; None: no flow."""
        count = sum(self.received(tier) for tier in self._start)
        if count > self._last[1]:
            self._last = (now, count)
            if self._first is None:
                self._first = (now - _LOOK_S, 0)
        if self._first is None or now - self._last[0] > self._patience_s:
            return None
        rate = count / (now - self._first[0])
        return max(0.0, self._wanted - count) / rate
