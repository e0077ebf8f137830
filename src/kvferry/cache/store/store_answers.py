"""What a store has said: about a prefix, about single chunks, and too late.

`Asked` and `Probe` are a question and its answer; `reason_of` says why a chunk is not to be had.
`Known` and `Refusals` remember which chunks the store had, and which of them were corrupt.

A question that is not answered in time is left (`LateAnswers`), and until its answer comes nobody
should wait for the store. How long a late answer took is learnt all the same. A question whose
answer never comes is given up, and another one is sent to see whether the store answers again.

Threads: any.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeAlias

from kvferry.base.errors import KVFerryError
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import BatchResult, Status
from kvferry.connectors.base import Connector, Ticket

__all__ = ["REASONS", "Asked", "Known", "LateAnswers", "Probe", "Refusals", "reason_of"]

# Why a key is not to be had, by the status that says so.
REASONS = {
    Status.MISS: "evicted",
    Status.SIZE_MISMATCH: "size",
    Status.CORRUPT: "checksum",
    Status.TIMEOUT: "deadline",
    Status.UNAVAILABLE: "unavailable",
    Status.SERVER_ERROR: "error",
    Status.CANCELLED: "cancelled",
}
# The same of a corrupt value, by the cause that the driver names; any other is "checksum".
_CAUSES = {
    "identity": "identity",
    "key": "key",
    "stripe": "key",
    "size": "size",
    "shape": "size",
    "version": "version",
    "codec": "version",
    "flags": "version",
}


def reason_of(result: BatchResult, index: int) -> str:
    """Why this key of a result is not to be had."""
    status = result[index]
    if status is Status.CORRUPT and result.error is not None:
        return _CAUSES.get(result.error, "checksum")
    return REASONS.get(status, "error")


class Probe:
    """What a tier said about a prefix.

    Attributes:
        end: The index of the first chunk that the tier does not have.
        reason: Why the prefix ends there: "" (it does not), "never_stored", "deadline"...
        took_s: How long the answer took.
    """

    __slots__ = ("end", "reason", "took_s")

    def __init__(self, end: int, reason: str, took_s: float = 0.0) -> None:
        self.end = end
        self.reason = reason
        self.took_s = took_s


@dataclass(slots=True)
class Asked:
    """A question that a tier was sent: how much of a prompt is there from chunk `start` on?

    Attributes:
        touch: What is there counts as used.
        until: The moment up to which the answer may be waited for.
        began: When it was sent.
        sure: The first chunk is known to be absent, so nobody need wait for the answer.
        ticket: Of the job; None: there is an answer already.
        probe: The answer, from `start` on.
        result: What the store said of each chunk; None: not yet, or not in so many words.
    """

    prompt: Prompt
    start: int
    touch: bool
    until: float
    began: float
    sure: bool = False
    ticket: Ticket | None = None
    probe: Probe | None = None
    result: BatchResult | None = None

    def behind(self, start: int) -> Probe | None:
        """The answer from a later chunk on; None: nothing was said about that."""
        probe, result = self.probe, self.result
        if probe is None or start < self.start:
            return None
        if start == self.start or start <= probe.end or result is None:
            return probe if start <= probe.end else None
        at = start - self.start
        found = len(result.statuses) - at - len(result.statuses[at:].lstrip(b"\0"))
        reason = ""
        if at + found < len(result):
            status = result[at + found]
            reason = "never_stored" if status is Status.MISS else REASONS.get(status, "error")
        return Probe(start + found, reason, probe.took_s)


_log = logging.getLogger("kvferry.cache")

# What is asked of a store to see whether it answers.
_CANARY = "canary"
# A question that was left is given up after this time, and another one sent.
_GIVEN_UP_S = 10.0
# How much longer than expected an answer may take that nobody ever waited for, before the store
# counts as silent.
_UNAWAITED_GRACE_S = 0.02
_TELL_EVERY_S = 60.0


class _Late(NamedTuple):
    """A question that was left: since when, and from when on its silence counts."""

    ticket: Ticket
    began: float
    silent_at: float
    is_canary: bool


class LateAnswers:
    """The late answers of one store.

    Args:
        name: Of the store, for people.
        connector: To it.
        answered: Learns from an answer: how many seconds it took, and whether the question only
            looked whether the store answers. False: it is none.
    """

    def __init__(
        self, name: str, connector: Connector, answered: Callable[[BatchResult, float, bool], bool]
    ) -> None:
        self._name = name
        self._connector = connector
        self._answered = answered
        self._lock = threading.Lock()
        self._late: list[_Late] = []
        self._told_silent = False
        self._tell_at = -math.inf

    @property
    def silent(self) -> bool:
        """Whether a question that was left has no answer yet, so that nobody should wait."""
        if not self._late:
            return False
        now = time.monotonic()
        with self._lock:
            late, self._late = self._late, []
        kept, hung = [], False
        for each in late:
            result = each.ticket.wait(0)
            if result is None and now - each.began < _GIVEN_UP_S:
                kept.append(each)
            elif result is None or not self._answered(result, result.elapsed_s, each.is_canary):
                each.ticket.cancel()
                hung = True
        if hung and not kept and self._connector.available:
            with suppress(KVFerryError):  # else the next request asks
                kept.append(_Late(self._connector.submit_exists([_CANARY]), now, now, True))
        with self._lock:
            self._late += kept
            silent = any(each.silent_at <= now for each in self._late)
            told, self._told_silent = self._told_silent, self._told_silent and silent
        if told and not silent:
            _log.info("%s answers again", self._name)
        return silent

    def leave(self, ticket: Ticket, began: float, limit_s: float, question_s: float) -> None:
        """Nobody waits for this answer any more.

        Args:
            limit_s: How long somebody did; 0: nobody, and it has its time.
            question_s: What a question is expected to take.
        """
        now, waited = time.monotonic(), limit_s > 0
        with self._lock:
            silent_at = now if waited else now + 2 * question_s + _UNAWAITED_GRACE_S
            self._late.append(_Late(ticket, began, silent_at, False))
            if not waited or self._told_silent or now < self._tell_at:
                return
            self._told_silent, self._tell_at = True, now + _TELL_EVERY_S
        _log.warning(
            "%s did not answer in %.0f ms, which is as long as waiting for it may pay; nobody "
            "waits for it until it does",
            self._name,
            limit_s * 1e3,
        )


# How many chunks are remembered that a store had, and that were corrupt.
_KNOWN_MAX = 100_000
_REFUSALS_MAX = 4096


# A chunk of a prompt, and since when the store had it. A plain tuple: one is made for each chunk of
# a load.
_Seen: TypeAlias = tuple[Prompt, int, float]


class Known:
    """Chunks that a store had: by their hashes a prompt that they belong to, and since when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: OrderedDict[bytes, _Seen] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, prompt: Prompt, chunks: Iterable[int]) -> None:
        """These chunks were written now, or found there."""
        now = time.monotonic()
        with self._lock:
            for chunk in chunks:
                digest = prompt.digest(chunk)
                self._chunks[digest] = (prompt, chunk, now)
                self._chunks.move_to_end(digest)
            while len(self._chunks) > _KNOWN_MAX:
                self._chunks.popitem(last=False)

    def discard(self, prompt: Prompt, chunks: Iterable[int]) -> None:
        """These chunks are of no interest any more."""
        with self._lock:
            for chunk in chunks:
                self._chunks.pop(prompt.digest(chunk), None)

    def of(self, prompt: Prompt, end: int) -> dict[int, float]:
        """Which of the first `end` chunks of a prompt the store had, and since when."""
        with self._lock:
            found = ((i, self._chunks.get(prompt.digest(i))) for i in range(end))
            return {i: seen[2] for i, seen in found if seen is not None}

    def prompts(self) -> list[tuple[Prompt, list[int]]]:
        """All chunks, as they came."""
        with self._lock:
            all_seen = list(self._chunks.values())
        groups = groupby(all_seen, key=lambda seen: id(seen[0]))
        listed = [list(group) for _, group in groups]
        return [(group[0][0], sorted(chunk for _, chunk, _ in group)) for group in listed]

    def forget(self, which: Callable[[bytes], bool]) -> None:
        """Nothing of these generations is wanted there any more."""
        with self._lock:
            seen = self._chunks.items()
            kept = ((digest, one) for digest, one in seen if not which(one[0].generation))
            self._chunks = OrderedDict(kept)


class Refusals:
    """Why chunks of one store were refused lately, by hash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._why: OrderedDict[bytes, str] = OrderedDict()

    def add(self, digest: bytes, why: str) -> None:
        """It is refused; the oldest ones are forgotten."""
        with self._lock:
            self._why[digest] = why
            while len(self._why) > _REFUSALS_MAX:
                self._why.popitem(last=False)

    def why(self, digest: bytes) -> str | None:
        """Why the chunk with this hash was refused lately."""
        with self._lock:
            return self._why.get(digest)

    def stored(self, digests: Sequence[bytes]) -> None:
        """These chunks were written anew: what was wrong with them is history."""
        with self._lock:
            if self._why:
                for digest in digests:
                    self._why.pop(digest, None)
