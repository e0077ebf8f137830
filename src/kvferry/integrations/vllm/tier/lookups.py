"""Which chunks a store has: one question for each request, and answers that never keep it waiting.

A scheduler asks key by key, and asks again in its next step what was left open. So the first time a
key is written down (None: ask again), the keys of a request go out together as one batch at the end
of the step, and the next steps find the answers here. A key that is not answered for as long as
waiting can pay is not there, and neither is one that is computed sooner than it is loaded. What the
presence view of the store knows to be absent is answered at once, and what it knows to be there in
the next step: then a hit waits for its values alone.

Answers live until the request is forgotten, for `AGE_S` seconds at most: what the store has may
change. A chunk that could not be loaded is marked as missing, so that nobody tries it again.

`KnownChunks` remembers which ones the store was heard to have, so that they are not stored again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvferry import _native
from kvferry._native import KnownChunks, chunk_names
from kvferry.client.batch import BatchResult, Status
from kvferry.integrations.vllm.tier.store_channel import StoreChannel
from kvferry.integrations.vllm.tier.tier_cost import Patience

__all__ = ["KNOWN_MAX", "Lookups", "chunk_name", "chunk_names"]

AGE_S = 10.0
REQUESTS_MAX = 4096
# How long a question lives that nobody waits for.
_UNWAITED_S = 2.0
KNOWN_MAX = 1 << 17
# How often answers are looked for by who asks for a key again within a step.
_LOOK_S = 200e-6
_HASH_BYTES = 16
# What `_native.Answers.ask` says besides no (0) and yes (1).
_PENDING, _NEW = 2, 3


def chunk_name(key: bytes) -> str:
    """The name of a chunk in the store: 128 bits of vLLM's block hash and group index, in hex.

    Args:
        key: An ``OffloadKey``: a hash and four bytes for the group of layers.
    """
    return chunk_names((key,))[0]


@dataclass(slots=True)
class _Request:
    born: float
    answers: _native.Answers = field(default_factory=_native.Answers)
    is_fresh: bool = False  # has keys that were not sent yet
    asked: list[tuple[float, bytes]] = field(default_factory=list)  # until when, which question


class Lookups:
    """See the head of this module.

    Args:
        channel: The store.
        known: Told of what is there.
        counts: Counts chunks as ``lookup_hit``, ``_miss``, ``_timeout``, ``_down``, ``_declined``.
        patience: Says how long to wait, and whether a load pays.
    """

    def __init__(
        self, channel: StoreChannel, known: KnownChunks, counts: Counter[str], patience: Patience
    ) -> None:
        self._channel = channel
        self._known = known
        self._counts = counts
        self._patience = patience
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._fresh: set[str] = set()  # requests with fresh keys
        self._asked: dict[int, _Request] = {}  # those with questions, by id()
        self._looked = 0.0

    @property
    def pending(self) -> bool:
        """Whether a request waits for an answer."""
        return bool(self._fresh or self._asked)

    def ask(self, request_id: str, key: bytes) -> bool | None:
        """Whether the store has a chunk; None: ask again."""
        request = self._requests.get(request_id)
        if request is None:
            request = self._begin(request_id)
        found = request.answers.ask(key)
        if found < _PENDING:
            return found == 1
        if found == _NEW:
            if self._channel.absent(chunk_name(key)):  # the presence view knows: it costs no step
                request.answers.take_back()
                self._counts["lookup_miss"] += 1
                return False
            if request.is_fresh:  # one look is enough for all of a step
                return None
            if self._channel.shut:
                request.answers.take_back()
                self._counts["lookup_down"] += 1
                return False
            request.is_fresh = True
            self._fresh.add(request_id)
            return None
        now = self._channel.clock()
        if now - self._looked < _LOOK_S:
            return None
        self._look(request_id, request, now)
        found = request.answers.ask(key)
        return found == 1 if found < _PENDING else None

    def flush(self) -> None:
        """Ask for what is fresh: one batch for each request. At the end of a step."""
        while self._fresh:
            request = self._requests.get(self._fresh.pop())
            if request is not None:
                self._send(request)

    def expire(self) -> None:
        """Give up what is late, and forget what is old. Once a step."""
        now = self._channel.clock()
        for request in list(self._asked.values()):
            self._give_up(request, now)
        while self._requests:
            oldest = next(iter(self._requests.values()))
            if oldest.asked or oldest.is_fresh or now - oldest.born < AGE_S:
                break
            self._requests.popitem(last=False)

    def renew(self, known: KnownChunks) -> None:
        """Everything was cleared: what was heard of the store is of before."""
        self._known = known
        self._requests.clear()
        self._fresh.clear()
        self._asked.clear()

    def forget(self, request_id: str) -> None:
        """The request is over."""
        request = self._requests.pop(request_id, None)
        self._fresh.discard(request_id)
        if request is not None:
            self._asked.pop(id(request), None)

    def mark_missing(self, keys: Iterable[bytes]) -> None:
        """These could not be loaded."""
        gone = list(keys)
        self._known.discard(gone)
        for request in self._requests.values():
            request.answers.miss(gone)

    def _begin(self, request_id: str) -> _Request:
        if len(self._requests) >= REQUESTS_MAX:
            self.forget(next(iter(self._requests)))
        request = self._requests[request_id] = _Request(self._channel.clock())
        return request

    def _look(self, request_id: str, request: _Request, now: float) -> None:
        """A key is asked for again: see what has come, and ask if nobody did."""
        self._looked = now
        if request.is_fresh:  # a new step began, and nobody said that the last one ended
            self._fresh.discard(request_id)
            self._send(request)
        self._channel.poll()
        self._give_up(request, now)

    def _send(self, request: _Request) -> None:
        question, names = request.answers.take()
        request.is_fresh = False

        known = self._known

        def answered(result: BatchResult) -> None:
            if known is self._known:  # else everything was cleared meanwhile
                self._answered(request, question, result)

        now = self._channel.clock()
        if known_there := self._channel.leading(names):
            request.asked.append((now, question))
            missing = bytes([Status.MISS]) * (len(names) - known_there)
            answered(BatchResult(bytes(known_there) + missing, [0] * len(names), 0.0))
            return
        limit_s = self._patience.question_s(len(names), now)
        # Who does not wait asks all the same: the next ones may know more.
        asked_s = limit_s or _UNWAITED_S
        if self._channel.shut or self._channel.touch(names, asked_s, answered) is None:
            request.answers.deny(question)
            self._counts["lookup_down"] += len(names)
            return
        if not limit_s:
            request.answers.deny(question)
            self._counts["lookup_declined"] += len(names)
            return
        request.asked.append((now + limit_s, question))
        self._asked[id(request)] = request

    def _answered(self, request: _Request, question: bytes, result: BatchResult) -> None:
        asked = [entry for entry in request.asked if entry[1] is not question]
        late = len(asked) == len(request.asked)
        request.asked = asked
        self._stop_watching(request)
        there, missing = self._known.hear(question, result.statuses)
        count = len(result.statuses)
        pays = True
        if there + missing == count:
            found, now = result.prefix_len, self._channel.clock()
            pays = self._patience.answered(count, found, result.elapsed_s, now) or not found
        if not late and not pays:
            request.answers.deny(question)
            self._counts["lookup_declined"] += count
        elif not late:
            request.answers.resolve(question, result.statuses)
            self._counts["lookup_hit"] += there
            self._counts["lookup_miss"] += missing
            self._counts["lookup_timeout"] += len(result.statuses) - there - missing

    def _give_up(self, request: _Request, now: float) -> None:
        late = [entry for entry in request.asked if entry[0] <= now]
        request.asked = [entry for entry in request.asked if entry[0] > now]
        for _, question in late:
            request.answers.deny(question)
            count = len(question) // _HASH_BYTES
            self._counts["lookup_timeout"] += count
            self._patience.unanswered(count, now - request.born)
        if late:
            self._stop_watching(request)
            self._channel.pause()

    def _stop_watching(self, request: _Request) -> None:
        if not request.asked:
            self._asked.pop(id(request), None)
