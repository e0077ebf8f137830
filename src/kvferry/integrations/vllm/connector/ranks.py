"""The scheduler asks the workers how much of a prompt they could load.

What a cache of a process holds in memory, only that process knows. So each worker answers for
itself, at a Unix socket whose name follows from the engine's id and the rank. The scheduler asks
all ranks at once and believes the smallest answer. Within one process no socket is used.

    worker      answers = RankAnswers(address(engine_id, rank), finder)
    scheduler   ranks = RankFinder([address(engine_id, rank) for rank in range(ranks)], limit_s)

The names are in the abstract namespace: nothing is left behind by a process that was killed. They
are for anybody to take, so both sides of a connection begin with a proof that they know the secret
of this user's processes, which share a runtime folder: 16 random bytes of the rank, 16 of whoever
asks with its proof, and the proof of the rank. What is asked for are hashes, and the answer is a
number:

    question   u32 length of what follows, u8 kind ("f"ind, "r"enewed, "e"xplain, "s"ize of chunks,
               "l"et go), u32 chunk size, u64 tokens, computed tokens, queued tokens, queued pairs,
               16 bytes of the generation, u16 length of a text, 16 bytes for each chunk; with "r"
               the ended and the new half of generations instead; the text: HOST:PORT of the node
               that the prompt names, or empty
    answer     i64: chunks; for "r" and "l" 1 if it was done; for "e" the length of a text that
               follows; for "s" tokens. 8 bytes: the shared half of generations

all little-endian. So all ranks of an engine have to run on one host, and in one network namespace;
`RankFinder.check` refuses others when the engine starts. A rank that does not answer in time is not
asked again for a moment, and counts as one that has nothing: prompts are computed.

Threads: those of the asking side are any. The answering side has one for each connection.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from kvferry.base.errors import ConfigError, UsageError
from kvferry.base.local_secret import NONCE_BYTES, is_own_process, local_proof, local_secret
from kvferry.base.threads import Guarded, noticed
from kvferry.chunks.generation import FIRST, shared_of
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.chunks.prompt import Prompt
from kvferry.config.remote_sources import read_node, show_node
from kvferry.integrations.vllm.connector.interfaces import Finder

__all__ = ["RankAnswers", "RankFinder", "address", "ask_text"]

_log = logging.getLogger("kvferry.integrations.vllm")

_ANSWER = struct.Struct("<q8s")
# What a rank may take beyond the limit of its stores: it has a lot to do besides.
_GRACE_S = 0.2
# How long a rank that did not answer is not asked, so that each prompt does not wait for it anew.
_REST_S = 1.0
_PROOF_BYTES = 32
# What a proof is waited for: by a scheduler, of a worker that begins; by a worker, of whoever asks.
_MEET_RANK_S = 2.0
_MEET_ASKER_S = 5.0
_HEAD = struct.Struct("<IcIQQQQ16sH")
_QUESTION_BYTES_MAX = 64 << 20  # of hashes: 4 million chunks
_CONNECTIONS_MAX = 64  # twice the threads of one scheduler that ask (`lookup_threads`)
_RENEWED_S = 30.0  # a thread waits for it, and nothing else does
_SIZE_S = 5.0  # asked once, at the start
# More than `WorkerHalf.release_blocks` takes.
_RELEASE_BLOCKS_S = 15.0
# Ranks answer before the scheduler is made; this is patience with a busy machine.
_CHECK_S = 10.0
_CHECK_EVERY_S = 0.1
_CLOSE_S = 1.0  # for threads whose sockets are shut

# The answering sides of this process.
_here: dict[str, RankAnswers] = {}


def address(engine_id: str, rank: int) -> str:
    """The name of a rank's socket."""
    return f"kvferry-vllm-{os.getuid()}-{engine_id}-{rank}"[:100]


class RankAnswers:
    """Answers for one rank.

    Args:
        name: From `address`.
        finder: Is asked; closed by its owner.
        explain: Says for people what is known of a prompt; of an empty one, what this rank is.
        release_blocks: See `WorkerHalf.release_blocks`.
        chunk_size: Tokens of a chunk of this rank.

    Raises:
        OSError: The name is taken.
    """

    def __init__(
        self,
        name: str,
        finder: Finder,
        explain: Callable[[Prompt], str] | None = None,
        release_blocks: Callable[[], bool] = lambda: True,
        *,
        chunk_size: int = 0,
    ) -> None:
        self._name = name
        self.finder = finder
        self.release_blocks = release_blocks
        self._explain = explain
        self._chunk_size = chunk_size
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
        _here[name] = self
        self._accepting = Guarded(self._accept, "answers")
        self._accepting.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._closed = True
        if _here.get(self._name) is self:
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
                if self._closed:
                    return
                raise  # e.g. no descriptors: it is tried again
            try:
                self._begin(peer)
            except BaseException:
                peer.close()
                raise

    def _begin(self, peer: socket.socket) -> None:
        with self._lock:
            if self._closed or len(self._open) >= _CONNECTIONS_MAX or not is_own_process(peer):
                peer.close()
                return
            thread = Guarded(self._answer, "answer", peer, errand=True)
            thread.start()
            self._open[peer] = thread

    def _answer(self, peer: socket.socket) -> None:
        try:
            peer.settimeout(_MEET_ASKER_S)
            _greet(peer, self._name)
            peer.settimeout(None)
            while True:
                head = _read(peer, _HEAD.size)
                length, kind, chunk_size, *about, generation, source = _HEAD.unpack(head)
                generation = generation if any(generation) else FIRST
                if length > _QUESTION_BYTES_MAX or length % DIGEST_BYTES or not chunk_size:
                    return
                hashes = _read(peer, length)
                node = _read(peer, source).decode()
                prompt, text = _prompt(hashes, chunk_size, about, generation, node), b""
                if kind == b"f":
                    result = self.finder.find(prompt)
                elif kind == b"r" and length == DIGEST_BYTES:
                    self.finder.renewed(hashes[:8], hashes[8:])
                    result = 1
                elif kind == b"s":
                    result = self._chunk_size
                elif kind == b"l":
                    result = int(self.release_blocks())
                elif kind == b"e" and self._explain is not None:
                    text = self._explain(prompt).encode()
                    result = len(text)
                else:
                    return
                peer.sendall(_ANSWER.pack(result, self.finder.shared) + text)
        except OSError:
            return  # the scheduler is gone, or we are
        except Exception as error:  # ours; the scheduler counts it as nothing
            noticed("answer", error)
        finally:
            peer.close()  # first: who is not in `_open` any more is not waited for
            with self._lock:
                self._open.pop(peer, None)


class RankFinder:
    """Asks all ranks of an engine; see `Finder`.

    Args:
        names: Of their sockets.
        limit_s: How long each of them may take; it waits for its stores no longer than that pays.
    """

    def __init__(self, names: Sequence[str], limit_s: float) -> None:
        self._ranks = [_Rank(name) for name in names]
        self._limit_s = limit_s
        self._telling: list[threading.Thread] = []

    def find(self, prompt: Prompt) -> int:
        """How many leading chunks every rank could load."""
        question = _question(b"f", prompt)
        here = [_here.get(rank.name) for rank in self._ranks]
        if all(rank is not None for rank in here):
            return min(rank.finder.find(prompt) for rank in here if rank is not None)
        return min(self._ask(question, self._limit_s + _GRACE_S))

    def now(self, prompt: Prompt) -> int | None:
        """See `Finder`. Ranks in other processes have to be waited for."""
        fewest = prompt.chunks
        for rank in self._ranks:
            here = _here.get(rank.name)
            found = here.finder.now(prompt) if here is not None else None
            if found is None:
                return None
            fewest = min(fewest, found)
        return fewest

    @property
    def shared(self) -> bytes:
        """See `Finder`; what the first rank said last."""
        here = _here.get(self._ranks[0].name)
        return self._ranks[0].shared if here is None else here.finder.shared

    def renewed(self, ended: bytes, own: bytes) -> None:
        """Tell every rank, in a thread: nothing of it is waited for."""
        tell = Guarded(self._tell_renewed, "renewed", ended, own, errand=True)
        self._telling = [one for one in self._telling if one.is_alive()] + [tell]
        tell.start()

    def _tell_renewed(self, ended: bytes, own: bytes) -> None:
        here = [found for rank in self._ranks if (found := _here.get(rank.name)) is not None]
        for found in here:
            try:
                found.finder.renewed(ended, own)
            except Exception as error:  # the others are told all the same
                noticed("renewed", error)
        if len(here) < len(self._ranks):
            self._ask(_question(b"r", Prompt(ended + own, 0, 1)), _RENEWED_S)

    def chunk_size(self) -> int:
        """The chunk size of all ranks; 0: they have different ones, or one does not say."""
        said = {*self._ask(_question(b"s", Prompt(b"", 0, 1)), _SIZE_S)}
        return said.pop() if len(said) == 1 else 0

    def release_blocks(self) -> bool:
        """Have every rank leave the engine's blocks alone; whether all do."""
        here = [_here.get(rank.name) for rank in self._ranks]
        if all(rank is not None for rank in here):
            done = [rank.release_blocks() for rank in here if rank is not None]
            return all(done)
        return all(self._ask(_question(b"l", Prompt(b"", 0, 1)), _RELEASE_BLOCKS_S, insist=True))

    def check(self) -> None:
        """Make sure that every rank can be asked from here; some seconds are waited for one.

        Raises:
            UsageError: One cannot, or there is no secret; the sentence says what to do.
        """
        if not all(rank.name in _here for rank in self._ranks):
            local_secret()
        until = time.monotonic() + _CHECK_S
        for number, rank in enumerate(self._ranks):
            while rank.name not in _here and not rank.there():
                if time.monotonic() >= until:
                    self.close()
                    raise UsageError(
                        f"rank {number} of the {len(self._ranks)} of this engine cannot be asked "
                        f"from the scheduler's host (there is no socket @{rank.name} of a process "
                        "that shares its runtime folder): kvferry's connector needs all tensor and "
                        "pipeline parallel ranks of an engine on one host; use one host, and one "
                        "XDG_RUNTIME_DIR, for each engine, or leave the connector out"
                    )
                time.sleep(_CHECK_EVERY_S)

    def close(self) -> None:
        """End the connections."""
        for thread in self._telling:
            thread.join(_CLOSE_S)
        for rank in self._ranks:
            rank.close()

    def _ask(self, question: bytes, limit_s: float, *, insist: bool = False) -> list[int]:
        """What each rank answers; 0 for one that does not, or is left alone. `insist`: none is."""
        until = time.monotonic() + limit_s
        # All of them, before the first is waited for.
        asked = [rank.send(question, insist) for rank in self._ranks]
        return [rank.receive(line, until) for rank, line in zip(self._ranks, asked, strict=True)]


class _Rank:
    """One rank, and connections to it that nobody uses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._rest_until = 0.0
        self._told = False
        self.shared = shared_of(FIRST)

    def there(self) -> bool:
        """Whether it listens; the connection is kept, so that nobody has to wait for it later."""
        try:
            line = _connect(self.name, _MEET_RANK_S)
        except OSError:
            return False
        with self._lock:
            self._idle.append(line)
        return True

    def send(self, question: bytes, insist: bool) -> socket.socket | None:
        with self._lock:
            line = self._idle.pop() if self._idle else None
            if line is None and time.monotonic() < self._rest_until and not insist:
                return None
        try:
            if line is None:
                line = _connect(self.name, _GRACE_S)
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
            result, self.shared = _ANSWER.unpack(_read(line, _ANSWER.size))
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
                "the worker at %s does not say what it has (%s); prompts are computed meanwhile",
                self.name,
                error,
            )


def ask_text(name: str, prompt: Prompt, limit_s: float) -> str:
    """What a rank explains of a prompt; of an empty one, what the rank is.

    Raises:
        OSError: It is not there, or does not answer in time.
    """
    with _connect(name, limit_s) as line:
        line.sendall(_question(b"e", prompt))
        length, _ = _ANSWER.unpack(_read(line, _ANSWER.size))
        return _read(line, length).decode()


def _prompt(
    hashes: bytes, chunk_size: int, about: Sequence[int], generation: bytes, source: str
) -> Prompt:
    tokens, computed, *queued = about
    return Prompt(
        hashes,
        tokens,
        chunk_size,
        generation,
        computed_tokens=computed,
        queued=(queued[0], queued[1]),
        source=read_node(source),
    )


def _question(kind: bytes, prompt: Prompt) -> bytes:
    generation = prompt.generation or bytes(DIGEST_BYTES)
    about = (prompt.tokens, prompt.computed_tokens, *prompt.queued)
    source = show_node(prompt.source).encode()
    head = _HEAD.pack(len(prompt.hashes), kind, prompt.chunk_size, *about, generation, len(source))
    return head + prompt.hashes + source


def _shut(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()


def _connect(name: str, limit_s: float) -> socket.socket:
    """A connection to a rank, which is one of ours.

    Raises:
        OSError: It is not there, or is another user's, or late.
    """
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(limit_s)
        line.connect("\0" + name)
        nonces = _read(line, NONCE_BYTES) + secrets.token_bytes(NONCE_BYTES)
        line.sendall(nonces[NONCE_BYTES:] + _proof("scheduler", name, nonces))
        _check(line, "rank", name, nonces)
    except BaseException:
        line.close()
        raise
    return line


def _greet(line: socket.socket, name: str) -> None:
    """Begin a connection that somebody has made to a rank.

    Raises:
        OSError: It is another user's.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    line.sendall(nonce)
    nonces = nonce + _read(line, NONCE_BYTES)
    _check(line, "scheduler", name, nonces)
    line.sendall(_proof("rank", name, nonces))


def _proof(side: str, name: str, nonces: bytes) -> bytes:
    try:
        return local_proof(f"{side} of {name}", nonces)
    except ConfigError as error:
        raise PermissionError(str(error)) from None


def _check(line: socket.socket, side: str, name: str, nonces: bytes) -> None:
    shown = _read(line, _PROOF_BYTES)
    if not is_own_process(line) or not hmac.compare_digest(shown, _proof(side, name, nonces)):
        raise PermissionError("the other side is no process that shares this user's runtime folder")


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
