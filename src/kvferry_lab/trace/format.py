"""Request traces in the formats in which they are published, as the keys of their chunks.

    mooncake       JSON lines with `hash_ids`, one id for each block of 512 tokens (Mooncake,
                   FAST'25); with `chat_id` too, blocks of 16 (Qwen-Bailian)
    agentic        JSON lines, one session each, block ids that hold inside it (kv-cache-tester)
    text           JSON lines with `input`, the prompts themselves (lmcache-agent-trace)

A trace becomes one list of chunk hashes for each request, in the order of the requests, made by the
function that the cache uses: of block ids instead of token ids, which says the same, because an id
stands for the content of a block. Chained over all blocks before it, a hash is a prefix. A last
block that is not full counts as its publisher counts it: Mooncake gives it an id of its own. Files
that only hold lengths say nothing about what requests share, and are refused.

Agentic sessions are woven into one stream of requests. A session has a clock of its own, so
somebody must say who runs at the same time: `users` people, each of whom begins the next session of
the file when their last one has ended. Requests of a sub-agent run beside those of its session.
What sessions have in common, tools and system prompt, is not in their block ids; a part of it
(`warm`) is given ids that all sessions of the same model share.

Text is cut into words, marks and spaces, in the same way on every machine. These are no model's
tokens; what two prompts share, they share in these as well, and there are about as many of them.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import json
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvferry import _native
from kvferry.base.errors import UsageError

__all__ = ["Trace", "TraceOptions", "load_trace"]


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """How to read a trace.

    Attributes:
        block_tokens: Tokens of a block of the file; None: as its format says.
        chunk_tokens: Tokens of a chunk of the cache, a multiple of that; None: one block, and 512
            for agentic traces, 256 for text.
        limit: Read this many requests at most.
        users: Sessions that run at the same time, where the file has sessions without a common
            clock.
        warm: Part of the tool and system prompt that sessions of one model share, where the file
            does not say.
    """

    block_tokens: int | None = None
    chunk_tokens: int | None = None
    limit: int | None = None
    users: int = 40
    warm: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Sequenced:
    """One request as a format knows it: numbers that stand for blocks, below 2**32, and a salt."""

    blocks: array[int]
    salt: bytes = b""


HASH_BYTES = 16
_LINE_BYTES_MAX = 64 << 20
_LENGTHS_ONLY = ("ContextTokens", "num_prefill_tokens", "Request tokens")


@dataclass(frozen=True)
class Trace:
    """Requests as chunk hashes.

    Attributes:
        name: Of the file.
        form: Of the format.
        chunk_tokens: Tokens of a chunk.
        requests: For each request its hashes, 16 bytes each, root first.
        chunks: All chunks that are asked for.
        distinct: How many different ones.
        prefix_hits_max: Chunks that a cache without limits would find in an unbroken run from the
            beginning of their request.
        block_hits_max: Chunks that it would find anywhere.
    """

    name: str
    form: str
    chunk_tokens: int
    requests: tuple[bytes, ...] = field(repr=False)
    chunks: int = 0
    distinct: int = 0
    prefix_hits_max: int = 0
    block_hits_max: int = 0

    @classmethod
    def of(cls, name: str, form: str, chunk_tokens: int, requests: Iterable[bytes]) -> Trace:
        """Count what the requests share."""
        kept = tuple(requests)
        seen: set[bytes] = set()
        chunks = prefix_hits = block_hits = 0
        for hashes in kept:
            keys = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
            found = [key in seen for key in keys]
            chunks += len(keys)
            block_hits += sum(found)
            prefix_hits += found.index(False) if False in found else len(found)
            seen.update(keys)
        return cls(name, form, chunk_tokens, kept, chunks, len(seen), prefix_hits, block_hits)


def load_trace(
    path: Path,
    options: TraceOptions | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> Trace:
    """Read a trace, plain or gzip, in whichever format it is.

    Args:
        progress: Called with the number of requests that were read, now and then.

    Raises:
        UsageError: The file cannot be read, its format is unknown, a line of it is malformed, or
            it says nothing about what requests share.
    """
    options = options or TraceOptions()
    lines = _Lines(path)
    first = lines.first()
    if isinstance(first, str):
        if found := next((name for name in _LENGTHS_ONLY if name in first), None):
            raise UsageError(
                f"{path} holds lengths only: it does not say which requests share what, so no hit "
                f"rate can come of it{lines.typical(found)}"
            )
        raise UsageError(f"{path} is no trace that we know: its first line is no JSON object")
    sequenced: Iterable[Sequenced]
    if "hash_ids" in first:
        form, block, chunk = "mooncake", 16 if "chat_id" in first else 512, None
        sequenced = _mooncake(lines)
    elif "requests" in first:
        form, block, chunk = "agentic", int(first.get("block_size") or 64), 512
        sequenced = _agentic_requests(lines, options)
    elif isinstance(first.get("input"), str):
        form, block, chunk = "text", 1, 256
        sequenced = _text_requests(lines)
    else:
        known = ", ".join(map(repr, list(first)[:8]))
        raise UsageError(f"{path} is no trace that we know: its objects hold {known}")
    block = options.block_tokens or block
    chunk = options.chunk_tokens or max(chunk or block, block)
    if chunk % block:
        raise UsageError(f"chunks of {chunk} tokens are no multiple of the blocks of {block}")
    requests = _hashed(sequenced, chunk // block, options.limit, progress)
    return Trace.of(path.name, form, chunk, requests)


def _hashed(
    sequenced: Iterable[Sequenced],
    blocks: int,
    limit: int | None,
    progress: Callable[[int], object],
) -> Iterator[bytes]:
    count = 0
    for request in sequenced:
        if limit is not None and count >= limit:
            return
        hashes = _native.hash_chunks(request.blocks, blocks, request.salt)
        if hashes:
            yield hashes
            count += 1
            if count % 256 == 0:
                progress(count)


class _Lines:
    """The lines of a file as JSON objects; errors name the line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def first(self) -> dict[str, Any] | str:
        """The first object, or the first line where that is none."""
        for _, line in self._raw():
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            return found if isinstance(found, dict) else line[:200].decode(errors="replace")
        raise UsageError(f"{self.path} is empty")

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each object, after how an error calls its line."""
        for number, line in self._raw():
            where = f"{self.path}:{number}"
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                raise UsageError(f"{where} is no JSON") from None
            if not isinstance(found, dict):
                raise UsageError(f"{where} is no JSON object")
            yield where, found

    def typical(self, column: str) -> str:
        """What to ask instead about a table of lengths; nothing where it has no whole numbers."""
        text = (line.decode(errors="replace") for _, line in self._raw())
        found = [row.get(column) or "" for row in csv.DictReader(text)]
        lengths = sorted(int(word) for word in found if word.isdecimal())
        if not lengths:
            return ""
        return (
            f"; with one that is assumed, `kvferry roi --prompt-tokens {lengths[len(lengths) // 2]}"
            " --hit-rate R` answers for its median"
        )

    def _raw(self) -> Iterator[tuple[int, bytes]]:
        try:
            with self.path.open("rb") as plain:
                packed = plain.read(2) == b"\x1f\x8b"
            with gzip.open(self.path) if packed else self.path.open("rb") as file:
                number = 0
                while line := file.readline(_LINE_BYTES_MAX + 1):
                    number += 1
                    if len(line) > _LINE_BYTES_MAX:
                        raise UsageError(f"{self.path}:{number} is longer than 64 MiB")
                    if line.strip():
                        yield number, line
        except (OSError, EOFError) as error:
            text = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"{self.path} cannot be read: {text}") from None


def _mooncake(lines: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Sequenced]:
    """Ids may be any whole numbers; they are numbered anew as they appear."""
    numbers: dict[int, int] = {}
    for where, item in lines:
        ids = item.get("hash_ids")
        if not isinstance(ids, list) or not all(type(one) is int for one in ids):
            raise UsageError(f"{where}: hash_ids is no list of whole numbers")
        yield Sequenced(blocks=array("I", [numbers.setdefault(one, len(numbers)) for one in ids]))


_BLOCKS_MAX = 1 << 20  # of one request
_IDS_MAX = 1 << 31  # the other half is for what sessions share

_Request = tuple[float, "array[int]"]


def _agentic_requests(
    lines: Iterable[tuple[str, dict[str, Any]]], options: TraceOptions
) -> Iterator[Sequenced]:
    """The requests of all users in the order of time."""
    sessions = _Sessions(lines, options)
    # When, whose, which request of the session, when the session began, its requests.
    queue: list[tuple[float, int, int, float, list[_Request]]] = []
    for user in range(options.users):
        if requests := sessions.next():
            heapq.heappush(queue, (requests[0][0], user, 0, 0.0, requests))
    while queue:
        now, user, index, began, requests = heapq.heappop(queue)
        yield Sequenced(blocks=requests[index][1])
        index += 1
        if index == len(requests):
            index, began, requests = 0, now, sessions.next()
        if requests:
            heapq.heappush(queue, (began + requests[index][0], user, index, began, requests))


class _Sessions:
    """The sessions of a file, each with block ids that no other one has, but for what is warm."""

    def __init__(self, lines: Iterable[tuple[str, dict[str, Any]]], options: TraceOptions) -> None:
        self._lines = iter(lines)
        self._warm = options.warm
        self._base = 0
        self._shared: dict[tuple[str, int], int] = {}

    def next(self) -> list[_Request]:
        """The requests of the next session that has some, by time; empty at the end."""
        for where, session in self._lines:
            block_tokens = int(session.get("block_size") or 64)
            try:
                requests = list(self._requests(session, 0.0, block_tokens))
                own = (one for _, blocks in requests for one in blocks if one < _IDS_MAX)
                self._base = 1 + max(own, default=self._base)
            except (KeyError, TypeError, ValueError, OverflowError):
                raise UsageError(f"{where} is no session with requests and hash_runs") from None
            if self._base >= _IDS_MAX:
                raise UsageError(f"{where}: the sessions have more blocks than can be told apart")
            if requests:
                return sorted(requests, key=lambda request: request[0])
        return []

    def _requests(
        self, holder: dict[str, Any], begin: float, block_tokens: int
    ) -> Iterator[_Request]:
        """Those of a session or of a sub-agent, whose clock begins at `begin`."""
        common = holder.get("tool_tokens", 0) + holder.get("system_tokens", 0)
        shared = int(common * self._warm / block_tokens)
        for item in holder["requests"]:
            time = begin + float(item["t"])
            if "requests" in item:
                yield from self._requests(item, time, block_tokens)
            elif "hash_runs" in item:
                yield time, self._blocks(item, shared)

    def _blocks(self, item: dict[str, Any], shared: int) -> array[int]:
        blocks = array("I")
        for first, count in item["hash_runs"]:
            if first < 0 or not 0 < count <= _BLOCKS_MAX - len(blocks):
                raise ValueError("not a run")
            blocks.extend(range(self._base + first, self._base + first + count))
        for place in range(min(shared, len(blocks))):
            key = (str(item.get("model")), place)
            blocks[place] = _IDS_MAX + self._shared.setdefault(key, len(self._shared))
        return blocks


_TOKEN = re.compile(r" ?\w{1,8}|\s+|[^\w\s]")


def _text_requests(lines: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Sequenced]:
    """Every prompt, in the order of time where there is one, else in that of the file."""
    prompts = []
    for where, item in lines:
        time, text = item.get("timestamp", 0), item.get("input")
        if not isinstance(text, str) or not isinstance(time, int | float):
            raise UsageError(f"{where} has no text as input, or no number as timestamp")
        prompts.append((time, text))
    numbers: dict[str, int] = {}
    for _, text in sorted(prompts, key=lambda prompt: prompt[0]):
        yield Sequenced(
            blocks=array("I", [_number(token, numbers) for token in _TOKEN.findall(text)])
        )


def _number(token: str, numbers: dict[str, int]) -> int:
    found = numbers.get(token)
    if found is None:
        found = numbers[token] = zlib.crc32(token.encode(errors="surrogatepass"))
    return found
