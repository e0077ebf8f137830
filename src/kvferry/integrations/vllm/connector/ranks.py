"""The scheduler asks the workers how much of a prompt they could load.

What a cache of a process holds in memory, only that process knows. So each worker answers for
itself, under a name that follows from the engine's id and the rank (`kvferry.rpc.local`). The
scheduler asks all ranks at once and believes the smallest answer. Within one process no socket is
used.

    worker      answers = RankAnswers(address(engine_id, rank), finder)
    scheduler   ranks = RankFinder([address(engine_id, rank) for rank in range(ranks)], limit_s)

Calls are "find" (a `Prompt`), "renewed" (the ended and the new half of generations, 8 bytes each),
"size" (tokens of a chunk) and "release" (leave the engine's blocks alone); each is answered with a
`_RankSays`. For people there are "explain" (a `Prompt`, or nothing) and "status", answered with
text and JSON.

All ranks of an engine have to run on one host, and share a runtime folder; `RankFinder.check`
refuses others when the engine starts. A rank that does not answer in time is not asked again for a
moment, and counts as one that has nothing: prompts are computed.

Threads: any. One of its own answers, and some find what has to be waited for.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvferry.base.errors import UsageError
from kvferry.base.local_secret import local_secret
from kvferry.base.threads import Guarded, noticed
from kvferry.chunks.generation import FIRST, shared_of
from kvferry.chunks.prompt import Prompt
from kvferry.integrations.vllm.connector.interfaces import Finder
from kvferry.rpc.channel import Channel, new_id
from kvferry.rpc.link import Away, LinkTimedOut, ServerLink
from kvferry.rpc.local import (
    LocalCall,
    LocalReply,
    LocalService,
    local_names,
    local_url,
    read_local_reply,
)
from kvferry.rpc.service import HungUp

__all__ = ["PREFIX", "RankAnswers", "RankFinder", "address", "running"]

_log = logging.getLogger("kvferry.integrations.vllm")

PREFIX = "vllm-"
_THREADS = 32  # as many as one scheduler asks from (`lookup_threads`)
# What a rank may take beyond the limit of its stores: it has a lot to do besides.
_GRACE_S = 0.2
# How long a rank that did not answer is not asked, so that each prompt does not wait for it anew.
_REST_S = 1.0
_MEET_RANK_S = 2.0  # for the first answer of a worker that begins
_RENEWED_S = 30.0  # a thread waits for it, and nothing else does
_SIZE_S = 5.0  # asked once, at the start
# More than `WorkerHalf.release_blocks` takes.
_RELEASE_BLOCKS_S = 15.0
# Ranks answer before the scheduler is made; this is patience with a busy machine.
_CHECK_S = 10.0
_CHECK_EVERY_S = 0.1
_CLOSE_S = 1.0

# The answering sides of this process.
_here: dict[str, RankAnswers] = {}


class _RankSays(msgspec.Struct, array_like=True, frozen=True):
    """How many chunks or tokens, or 1: it is done; and the shared half of generations."""

    number: int
    shared: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_RankSays).decode


def address(engine_id: str, rank: int) -> str:
    """The name of a rank."""
    return f"{PREFIX}{hashlib.sha256(engine_id.encode()).hexdigest()[:16]}-{rank}"


def running() -> list[str]:
    """The names of the ranks of this host and user.

    Raises:
        OSError: There is no folder for them.
    """
    return [name for name in local_names() if name.startswith(PREFIX)]


class RankAnswers:
    """Answers for one rank.

    Args:
        name: From `address`.
        finder: Is asked; closed by its owner.
        explain: Says for people what is known of a prompt; of None, what this rank is.
        release_blocks: See `WorkerHalf.release_blocks`.
        chunk_size: Tokens of a chunk of this rank.
        status: What `kvferry top` shows of this process, as JSON.

    Raises:
        OSError: Somebody has the name.
    """

    def __init__(
        self,
        name: str,
        finder: Finder,
        explain: Callable[[Prompt | None], str] | None = None,
        release_blocks: Callable[[], bool] = lambda: True,
        *,
        chunk_size: int = 0,
        status: Callable[[], bytes] = bytes,
    ) -> None:
        self._name = name
        self.finder = finder
        self.release_blocks = release_blocks
        self._explain = explain
        self._chunk_size = chunk_size
        self._status = status
        self._service: LocalService | None = None
        try:
            self._service = LocalService(name, self._answer, _THREADS)
        except OSError as error:  # e.g. there is no folder that is ours alone
            if error.errno == errno.EADDRINUSE:
                raise
            _log.warning("only a scheduler in this process can ask this rank: %s", error)
        _here[name] = self

    def close(self) -> None:
        """Answer nobody any more."""
        if _here.get(self._name) is self:
            del _here[self._name]
        if self._service is not None:
            self._service.close()

    def _answer(self, what: str, body: bytes) -> bytes | Callable[[], bytes]:
        if what == "find":
            prompt = _read(body)
            found = self.finder.now(prompt)
            if found is None:
                return lambda: self._says(self.finder.find(prompt))
            return self._says(found)
        if what == "renewed" and len(body) == 16:
            return lambda: self._renewed(body[:8], body[8:])
        if what == "size":
            return self._says(self._chunk_size)
        if what == "release":
            return lambda: self._says(self.release_blocks())
        if what == "explain" and self._explain is not None:
            explain, about = self._explain, _read(body) if body else None
            return lambda: explain(about).encode()
        if what == "status":
            return self._status
        raise HungUp(f"no call of a rank: {what}")

    def _renewed(self, ended: bytes, own: bytes) -> bytes:
        self.finder.renewed(ended, own)
        return self._says(1)

    def _says(self, number: int) -> bytes:
        return _encode(_RankSays(int(number), self.finder.shared))


def _read(body: bytes) -> Prompt:
    try:
        return Prompt.decode(body)
    except msgspec.MsgspecError as error:
        raise HungUp(f"no prompt: {error}") from None


class RankFinder:
    """Asks all ranks of an engine; see `Finder`.

    Args:
        names: Of the ranks.
        limit_s: How long each of them may take; it waits for its stores no longer than that pays.
    """

    def __init__(self, names: Sequence[str], limit_s: float) -> None:
        self._ranks = [_Rank(name) for name in names]
        self._limit_s = limit_s
        self._telling: list[threading.Thread] = []

    def find(self, prompt: Prompt) -> int:
        """How many leading chunks every rank could load."""
        here = [_here.get(rank.name) for rank in self._ranks]
        if all(rank is not None for rank in here):
            return min(rank.finder.find(prompt) for rank in here if rank is not None)
        return min(self._ask("find", prompt.encode(), self._limit_s + _GRACE_S))

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
            self._ask("renewed", ended + own, _RENEWED_S)

    def chunk_size(self) -> int:
        """The chunk size of all ranks; 0: they have different ones, or one does not say."""
        said = {*self._ask("size", b"", _SIZE_S)}
        return said.pop() if len(said) == 1 else 0

    def release_blocks(self) -> bool:
        """Have every rank leave the engine's blocks alone; whether all do."""
        here = [_here.get(rank.name) for rank in self._ranks]
        if all(rank is not None for rank in here):
            done = [rank.release_blocks() for rank in here if rank is not None]
            return all(done)
        return all(self._ask("release", b"", _RELEASE_BLOCKS_S, insist=True))

    def check(self) -> None:
        """Make sure that every rank can be asked from here; some seconds are waited for one.

        Raises:
            UsageError: One cannot; the sentence says what to do.
            ConfigError: There is no folder for the sockets of ranks.
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
                        f"from the scheduler's host (there is no {rank.name} in the runtime folder "
                        "of its process): kvferry's connector needs all tensor and pipeline "
                        "parallel ranks of an engine on one host; use one host, and one "
                        "XDG_RUNTIME_DIR, for each engine, or leave the connector out"
                    )
                time.sleep(_CHECK_EVERY_S)

    def close(self) -> None:
        """End the connections."""
        for thread in self._telling:
            thread.join(_CLOSE_S)
        for rank in self._ranks:
            rank.close()

    def _ask(self, what: str, body: bytes, limit_s: float, *, insist: bool = False) -> list[int]:
        """What each rank answers; 0 for one that does not, or is left alone. `insist`: none is."""
        call, until = LocalCall(new_id(), what, body), time.monotonic() + limit_s
        # All of them, before the first is waited for.
        asked = [rank.begin(call, insist) for rank in self._ranks]
        said = [rank.end(line, call, until) for rank, line in zip(self._ranks, asked, strict=True)]
        return [max(0, number or 0) for number in said]


class _Rank:
    """One rank, and the way to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shared = shared_of(FIRST)
        self._lock = threading.Lock()
        self._link: ServerLink[LocalReply] | None = None
        self._rest_until = 0.0
        self._told = False

    def there(self) -> bool:
        """Whether it answers; the connection is kept, so that nobody has to wait for it later."""
        if self.name not in running():
            return False
        call = LocalCall(new_id(), "size")
        until = time.monotonic() + _MEET_RANK_S
        return self.end(self.begin(call, insist=True), call, until) is not None

    def begin(self, call: LocalCall, insist: bool) -> Channel | None:
        now = time.monotonic()
        if now < self._rest_until and not insist:
            return None
        try:
            with self._lock:
                if self._link is None:
                    url = local_url(self.name)
                    self._link = ServerLink(url, read_local_reply, _ignore)
            return self._link.begin_exchange(call, now + _GRACE_S)
        except (Away, OSError) as error:
            self._failed(error)
            return None

    def end(self, channel: Channel | None, call: LocalCall, until: float) -> int | None:
        if channel is None or self._link is None:
            return None
        try:
            said = _decode(self._link.end_exchange(channel, call.id, until).body)
        except (Away, LinkTimedOut, msgspec.MsgspecError) as error:
            self._failed(error)
            return None
        self.shared, self._told = said.shared, False
        return said.number

    def close(self) -> None:
        if self._link is not None:
            self._link.end()

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self._rest_until = time.monotonic() + _REST_S
            told, self._told = self._told, True
        if not told:
            _log.warning(
                "the worker at %s does not say what it has (%s); prompts are computed meanwhile",
                self.name,
                error,
            )


def _ignore(_: Any) -> None: ...
