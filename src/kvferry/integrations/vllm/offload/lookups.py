"""Which chunks a store has: one question for each request, and answers that never keep it waiting.

A scheduler asks key by key, and asks again in its next step what was left open. So the first time a
key is written down (None: ask again), the keys of a request go out together as one batch at the end
of the step, and the next steps find the answers here. A key that is not answered within the
deadline is not there.

Answers live until the request is forgotten, for `AGE_S` seconds at most: what the store has may
change. A chunk that could not be loaded is marked as missing, so that nobody tries it again.

`Known` remembers which chunks the store was heard to have, so that they are not stored once more.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress

from kvferry.client.batch import BatchResult
from kvferry.integrations.vllm.offload.wire import Wire

__all__ = ["Known", "Lookups", "chunk_name", "chunk_names"]

AGE_S = 10.0
REQUESTS_MAX = 4096
KNOWN_MAX = 1 << 17
# How often answers are looked for by who asks for a key again within a step.
_LOOK_S = 200e-6
_FIRST_GROUP = bytes(4)
_HASH_BYTES = 16
_LENGTH_MIN = _HASH_BYTES + len(_FIRST_GROUP)
# Statuses as flags, for `bytes.translate`.
_IS_OK = bytes([1, *bytes(255)])
_IS_MISS = bytes([0, 1, *bytes(254)])


def chunk_name(key: bytes) -> str:
    """The name of a chunk in the store: 128 bits of vLLM's block hash and group index, in hex.

    Args:
        key: An ``OffloadKey``: a hash and four bytes for the group of layers.
    """
    return chunk_names((key,))[0]


def chunk_names(keys: Iterable[bytes]) -> list[str]:
    """`chunk_name` of each."""
    return [
        key[:_HASH_BYTES].hex()
        if key.endswith(_FIRST_GROUP) and len(key) >= _LENGTH_MIN
        else hashlib.sha256(key).digest()[:_HASH_BYTES].hex()
        for key in keys
    ]


class Known:
    """Chunks that the store has, as far as was heard; the oldest are forgotten first."""

    def __init__(self, keys_max: int = KNOWN_MAX) -> None:
        # Unlike of a dict, its oldest entry is found at once however many went before.
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._keys_max = keys_max

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def add(self, keys: Iterable[bytes]) -> None:
        """The store has these."""
        known = self._keys
        for key in keys:
            known[key] = None
        for _ in range(len(known) - self._keys_max):
            known.popitem(last=False)

    def discard(self, keys: Iterable[bytes]) -> None:
        """The store has these not."""
        known = self._keys
        if known:
            for key in keys:
                known.pop(key, None)


@dataclass(slots=True)
class _Request:
    born: float
    answers: dict[bytes, bool | None] = field(default_factory=dict)
    fresh: list[bytes] = field(default_factory=list)  # not asked for yet
    asked: list[tuple[float, Sequence[bytes]]] = field(default_factory=list)  # until when, what


class Lookups:
    """See the head of this module.

    Args:
        wire: The store.
        known: Told of what is there.
        counts: Counts chunks as ``lookup_hit``, ``_miss``, ``_timeout``, ``_down``.
        timeout_s: The deadline.
    """

    def __init__(self, wire: Wire, known: Known, counts: Counter[str], timeout_s: float) -> None:
        self._wire = wire
        self._known = known
        self._counts = counts
        self._timeout_s = timeout_s
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
        answers = request.answers
        if key in answers:
            if answers[key] is None:
                self._look(request_id, request)
            return answers.get(key, False)
        if not request.fresh:  # one look at the gate is enough for all of a step
            if self._wire.shut:
                self._counts["lookup_down"] += 1
                return False
            self._fresh.add(request_id)
        answers[key] = None
        request.fresh.append(key)
        return None

    def flush(self) -> None:
        """Ask for what is fresh: one batch for each request. At the end of a step."""
        while self._fresh:
            request = self._requests.get(self._fresh.pop())
            if request is not None:
                self._send(request)

    def expire(self) -> None:
        """Give up what is late, and forget what is old. Once a step."""
        now = self._wire.clock()
        for request in list(self._asked.values()):
            self._give_up(request, now)
        while self._requests:
            oldest = next(iter(self._requests.values()))
            if oldest.asked or oldest.fresh or now - oldest.born < AGE_S:
                break
            self._requests.popitem(last=False)

    def forget(self, request_id: str) -> None:
        """The request is over."""
        request = self._requests.pop(request_id, None)
        self._fresh.discard(request_id)
        if request is not None:
            self._asked.pop(id(request), None)

    def mark_missing(self, keys: Iterable[bytes]) -> None:
        """These could not be loaded."""
        gone = set(keys)
        self._known.discard(gone)
        for request in self._requests.values():
            for key in gone & request.answers.keys():
                request.answers[key] = False

    def _begin(self, request_id: str) -> _Request:
        if len(self._requests) >= REQUESTS_MAX:
            self.forget(next(iter(self._requests)))
        request = self._requests[request_id] = _Request(self._wire.clock())
        return request

    def _look(self, request_id: str, request: _Request) -> None:
        """A key is asked for again: see what has come, and ask if nobody did."""
        now = self._wire.clock()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        if request.fresh:  # a new step began, and nobody said that the last one ended
            self._fresh.discard(request_id)
            self._send(request)
        self._wire.poll()
        self._give_up(request, now)

    def _send(self, request: _Request) -> None:
        keys, request.fresh = request.fresh, []
        names = chunk_names(keys)

        def answered(result: BatchResult) -> None:
            self._answered(request, keys, result)

        if self._wire.shut or self._wire.touch(names, self._timeout_s, answered) is None:
            request.answers.update(dict.fromkeys(keys, False))
            self._counts["lookup_down"] += len(keys)
            return
        request.asked.append((self._wire.clock() + self._timeout_s, keys))
        self._asked[id(request)] = request

    def _answered(self, request: _Request, keys: Sequence[bytes], result: BatchResult) -> None:
        asked = [entry for entry in request.asked if entry[1] is not keys]
        late = len(asked) == len(request.asked)
        request.asked = asked
        self._settle(request)
        flags = result.statuses.translate(_IS_OK)
        there = list(compress(keys, flags))
        missing = list(compress(keys, result.statuses.translate(_IS_MISS)))
        self._known.discard(missing)
        self._known.add(there)
        if not late:
            request.answers.update(zip(keys, map(bool, flags), strict=True))
            self._counts["lookup_hit"] += len(there)
            self._counts["lookup_miss"] += len(missing)
            self._counts["lookup_timeout"] += len(keys) - len(there) - len(missing)

    def _give_up(self, request: _Request, now: float) -> None:
        late = [entry for entry in request.asked if entry[0] <= now]
        request.asked = [entry for entry in request.asked if entry[0] > now]
        for _, keys in late:
            request.answers.update(dict.fromkeys(keys, False))
            self._counts["lookup_timeout"] += len(keys)
        if late:
            self._settle(request)
            self._wire.shut_gate()

    def _settle(self, request: _Request) -> None:
        if not request.asked:
            self._asked.pop(id(request), None)
