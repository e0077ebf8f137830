"""The scheduler asks the workers how much of a prompt they could load.

What a cache of a process holds in memory, only that process knows. So each worker answers for
itself, at a Unix socket whose name follows from the engine's id and the rank. The scheduler asks
all ranks at once and believes the smallest answer. Within one process no socket is used.

    worker      answers = RankAnswers(address(engine_id, rank), finder)
    scheduler   ranks = RankFinder([address(engine_id, rank) for rank in range(ranks)], limit_s)

The names are in the abstract namespace: nothing is left behind by a process that was killed. Only
processes of the same user are answered. What is asked for are hashes, and the answer is a number:

    question   u32 length of what follows, u8 kind ("f"ind, "c"lear, "e"xplain), u32 chunk size,
               u64 tokens, 16 bytes for each chunk
    answer     i64: chunks; for "c" 1 if it was done; for "e" the length of a text that follows

all little-endian. A rank that does not answer in time is not asked again for a moment, and counts
as one that has nothing: prompts are computed.

Threads: those of the asking side are any. The answering side has one for each connection.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from kvferry.engine.prompt import Prompt
from kvferry.integrations.vllm.backend import Finder
from kvferry.keys import DIGEST_BYTES

__all__ = ["RankAnswers", "RankFinder", "address", "ask_text"]

_log = logging.getLogger("kvferry.integrations.vllm")

_HEAD = struct.Struct("<IcIQ")
_ANSWER = struct.Struct("<q")
_QUESTION_BYTES_MAX = 64 << 20
_CONNECTIONS_MAX = 64
# What a rank may take beyond the limit of its stores: it has a lot to do besides.
_GRACE_S = 0.2
_CLEAR_S = 30.0
_CLOSE_S = 1.0
# How long a rank that did not answer is left alone.
_REST_S = 1.0

# The answering sides of this process.
_here: dict[str, Finder] = {}


def address(engine_id: str, rank: int) -> str:
    """The name of a rank's socket."""
    return f"kvferry-vllm-{os.getuid()}-{engine_id}-{rank}"[:100]


class RankAnswers:
    """Answers for one rank.

    Args:
        name: From `address`.
        finder: Is asked; closed by its owner.
        explain: Says for people what is known of a prompt; of an empty one, what this rank is.

    Raises:
        OSError: The name is taken.
    """

    def __init__(
        self, name: str, finder: Finder, explain: Callable[[Prompt], str] | None = None
    ) -> None:
        self._name = name
        self._finder = finder
        self._explain = explain
        self._closed = False
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind("\0" + name)
            self._socket.listen(_CONNECTIONS_MAX)
        except OSError:
            self._socket.close()
            raise
        _here[name] = finder
        self._accepting = threading.Thread(target=self._accept, name="kvferry-answers", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._closed = True
        if _here.get(self._name) is self._finder:
            del _here[self._name]
        with self._lock:
            threads = [self._accepting, *self._open.values()]
            for each in (self._socket, *self._open):
                _shut(each)
        until = time.monotonic() + _CLOSE_S
        for thread in threads:  # the name is taken for as long as one of them waits
            thread.join(max(0.0, until - time.monotonic()))

    def _accept(self) -> None:
        while not self._closed:
            try:
                peer = self._socket.accept()[0]
            except OSError:
                return
            with self._lock:
                if self._closed or len(self._open) >= _CONNECTIONS_MAX or not _is_ours(peer):
                    peer.close()
                    continue
                thread = threading.Thread(
                    target=self._answer, args=(peer,), name="kvferry-answer", daemon=True
                )
                self._open[peer] = thread
                thread.start()

    def _answer(self, peer: socket.socket) -> None:
        try:
            while True:
                head = _read(peer, _HEAD.size)
                length, kind, chunk_size, tokens = _HEAD.unpack(head)
                if length > _QUESTION_BYTES_MAX or length % DIGEST_BYTES or not chunk_size:
                    return
                hashes = _read(peer, length)
                if kind == b"f":
                    result = self._finder.find(Prompt(hashes, tokens, chunk_size))
                elif kind == b"c":
                    result = int(self._finder.clear())
                elif kind == b"e" and self._explain is not None:
                    text = self._explain(Prompt(hashes, tokens, chunk_size)).encode()
                    peer.sendall(_ANSWER.pack(len(text)) + text)
                    continue
                else:
                    return
                peer.sendall(_ANSWER.pack(result))
        except OSError:
            return  # the scheduler is gone, or we are
        except Exception:  # ours; the scheduler counts it as nothing
            _log.exception("a rank could not answer")
        finally:
            peer.close()  # first: who is not in `_open` any more is not waited for
            with self._lock:
                self._open.pop(peer, None)


class RankFinder:
    """Asks all ranks of an engine; see `Finder`.

    Args:
        names: Of their sockets.
        limit_s: How long each of them may wait for its stores.
    """

    def __init__(self, names: Sequence[str], limit_s: float) -> None:
        self._ranks = [_Rank(name) for name in names]
        self._limit_s = limit_s

    def find(self, prompt: Prompt) -> int:
        """How many leading chunks every rank could load."""
        question = _HEAD.pack(len(prompt.hashes), b"f", prompt.chunk_size, prompt.tokens)
        here = [_here.get(rank.name) for rank in self._ranks]
        if all(finder is not None for finder in here):
            return min(finder.find(prompt) for finder in here if finder is not None)
        return min(self._ask(question + prompt.hashes, self._limit_s + _GRACE_S))

    def now(self, prompt: Prompt) -> int | None:
        """See `Finder`. Ranks in other processes have to be waited for."""
        fewest = prompt.chunks
        for rank in self._ranks:
            finder = _here.get(rank.name)
            found = finder.now(prompt) if finder is not None else None
            if found is None:
                return None
            fewest = min(fewest, found)
        return fewest

    def clear(self) -> bool:
        """Have every rank forget everything of this model; whether all did."""
        here = [_here.get(rank.name) for rank in self._ranks]
        if all(finder is not None for finder in here):
            done = [finder.clear() for finder in here if finder is not None]  # every one of them
            return all(done)
        return all(self._ask(_HEAD.pack(0, b"c", 1, 0), _CLEAR_S))

    def close(self) -> None:
        """End the connections."""
        for rank in self._ranks:
            rank.close()

    def _ask(self, question: bytes, limit_s: float) -> list[int]:
        """What each rank answers; 0 for one that does not."""
        until = time.monotonic() + limit_s
        asked = [rank.send(question) for rank in self._ranks]  # all, before the first is waited for
        return [rank.receive(line, until) for rank, line in zip(self._ranks, asked, strict=True)]


def ask_text(name: str, prompt: Prompt, limit_s: float) -> str:
    """What a rank explains of a prompt; of an empty one, what the rank is.

    Raises:
        OSError: It is not there, or does not answer in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(limit_s)
        line.connect("\0" + name)
        head = _HEAD.pack(len(prompt.hashes), b"e", prompt.chunk_size, prompt.tokens)
        line.sendall(head + prompt.hashes)
        (length,) = _ANSWER.unpack(_read(line, _ANSWER.size))
        return _read(line, length).decode()


class _Rank:
    """One rank, and connections to it that nobody uses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._rest_until = 0.0
        self._told = False

    def send(self, question: bytes) -> socket.socket | None:
        with self._lock:
            line = self._idle.pop() if self._idle else None
            if line is None and time.monotonic() < self._rest_until:
                return None
        try:
            if line is None:
                line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                line.settimeout(_GRACE_S)
                line.connect("\0" + self.name)
            line.settimeout(_GRACE_S)
            line.sendall(question)
        except OSError as error:
            self._failed(line, error)
            return None
        return line

    def receive(self, line: socket.socket | None, until: float) -> int:
        if line is None:
            return 0
        try:
            line.settimeout(max(0.001, until - time.monotonic()))
            (result,) = _ANSWER.unpack(_read(line, _ANSWER.size))
        except OSError as error:
            self._failed(line, error)
            return 0
        with self._lock:
            self._idle.append(line)
        self._told = False
        return max(0, int(result))

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    def _failed(self, line: socket.socket | None, error: OSError) -> None:
        if line is not None:
            line.close()
        with self._lock:
            self._rest_until = time.monotonic() + _REST_S
            told, self._told = self._told, True
        if not told:
            _log.warning(
                "the worker at %s does not say what it has (%s); prompts are computed meanwhile. "
                "Workers on other hosts cannot be asked",
                self.name,
                error,
            )


def _read(line: socket.socket, count: int) -> bytes:
    """So many bytes.

    Raises:
        OSError: The other side is gone, or late.
    """
    data = bytearray()
    while len(data) < count:
        part = line.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the other side closed the connection")
        data += part
    return bytes(data)


def _is_ours(peer: socket.socket) -> bool:
    """Whether the other side is a process of our user."""
    try:
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return False
    return bool(struct.unpack("3i", raw)[1] == os.getuid())


def _shut(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()
