"""What a store says about a prefix, and why a chunk is not to be had from it."""

from __future__ import annotations

from dataclasses import dataclass

from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import BatchResult, Status
from kvferry.connectors.base import Ticket

__all__ = ["REASONS", "Asked", "Probe", "reason_of"]

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
