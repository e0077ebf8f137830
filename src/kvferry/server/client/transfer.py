"""Chunks into shared pages, and out of them: three steps, of which only two are messages.

    store       Reserve    copy into the pages      Commit
    retrieve    Retrieve   copy out, or show them   Release

The last step tells whether the pages were ours all the time. If not, or if nobody answers, nothing
was stored, or nothing was retrieved: what lies in the caller's buffers is not known then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kvferry.base.errors import SystemResourceError
from kvferry.cache import Retrieved, Stored
from kvferry.cache.memory import check_lengths, targets, wanted_chunks
from kvferry.cache.store.store_tiers import MEMORY
from kvferry.chunks.layout import ELEMENTS, KVLayout
from kvferry.chunks.prompt import Prompt
from kvferry.client.buffers import BufferLike, readable
from kvferry.rpc.link import Away
from kvferry.server.client.attachment import ClientSession
from kvferry.server.client.caller import Caller
from kvferry.server.protocol import (
    HASHES_MAX,
    Commit,
    Committed,
    Leased,
    Reserve,
    ReservedPages,
    Retrieve,
)

__all__ = ["Transfer", "in_tokens"]


class Held(Retrieved):
    """Pages of the server. Who drops it without `release` has them released some time soon."""

    def __init__(self, forget: Callable[[], object], **fields: Any) -> None:
        self._forget = forget
        super().__init__(**fields)

    def __del__(self) -> None:  # anywhere, at any moment: it must not wait
        release, self._release = self._release, None
        if release is not None:
            self._forget()


class Transfer:
    """See `Client.store` and `Client.retrieve`. Threads: any.

    Args:
        caller: Of the client.
        layout: Of the chunks.
        copy_threads: Threads that copy.
    """

    def __init__(self, caller: Caller, layout: KVLayout, copy_threads: int) -> None:
        self._caller = caller
        self._layout = layout
        self._copy_threads = copy_threads

    # --- Writing ---

    def store(self, prompt: Prompt, chunks: Sequence[BufferLike], first_chunk: int) -> Stored:
        """Keep the chunks from `first_chunk` on."""
        wanted = wanted_chunks(prompt, chunks, first_chunk)
        size = self._layout.chunk_bytes
        views = check_lengths([readable(buffer) for buffer in chunks], size)
        end = min(prompt.chunks, HASHES_MAX)
        session = self._caller.session() if first_chunk < end else None
        if session is None:
            return Stored(chunks=0, known=0, shed=wanted)
        told = self._caller.ask(session, ReservedPages, Reserve, prompt.cut(end), first_chunk)
        if told is None:
            return Stored(chunks=0, known=0, shed=wanted)
        if not _possible(told, session, first_chunk, end):
            self._caller.nonsense()
            self._caller.abort(session, told.reservation)
            return Stored(chunks=0, known=0, shed=wanted)
        beyond = prompt.chunks - end
        known = wanted - beyond - len(told.chunks) - told.shed
        shed = told.shed + beyond
        if not told.chunks:
            return Stored(chunks=0, known=known, shed=shed)
        done = self._write(session, told, [views[c - first_chunk] for c in told.chunks])
        if done is None or done.chunks < len(told.chunks):
            self._caller.counters.add("lost_leases")
        if done is None:
            return Stored(chunks=0, known=known, shed=shed + len(told.chunks))
        self._caller.counters.add("bytes_stored", done.chunks * self._layout.chunk_bytes)
        return Stored(
            chunks=done.chunks,
            known=known,
            shed=shed + len(told.chunks) - done.chunks,
            queued=done.queued,
            dropped=done.dropped,
        )

    def _write(
        self, session: ClientSession, told: ReservedPages, views: Sequence[memoryview]
    ) -> Committed | None:
        try:
            with session.attachment.used() as pages:
                pages.copy(told.pages, views, True, self._copy_threads)
        except (Away, SystemResourceError):  # the session has ended; or there is no memory behind
            self._caller.abort(session, told.reservation)
            return None
        except BaseException:
            self._caller.abort(session, told.reservation)
            raise
        done = self._caller.ask(session, Committed, Commit, told.reservation)
        if done is not None and not 0 <= done.chunks <= len(told.pages):
            self._caller.nonsense()
            return None
        return done

    # --- Reading ---

    def retrieve(
        self, prompt: Prompt, into: Sequence[BufferLike] | None, timeout_s: float
    ) -> Retrieved:
        """Bring the prefix of a prompt, as much of it as pays."""
        size = self._layout.chunk_bytes
        given = None if into is None else targets(prompt, into, size)
        if not prompt.chunks:
            return self._nothing("")
        session = self._caller.session()
        if session is None:
            return self._nothing("unavailable")
        wanted = prompt.cut(HASHES_MAX)
        told = self._caller.ask(session, Leased, Retrieve, wanted, waits_s=timeout_s)
        if told is None:
            return self._nothing("unavailable")
        if not told.lease or not told.pages:
            self._caller.forget(session, told.lease)
            return self._nothing(told.reason or "never_stored", told)
        if len(told.pages) > prompt.chunks or not session.attachment.names(told.pages):
            self._caller.nonsense()
            self._caller.forget(session, told.lease)
            return self._nothing("unavailable")
        if given is None:
            return self._show(prompt, session, told)
        return self._read(prompt, session, told, given)

    def _read(
        self, prompt: Prompt, session: ClientSession, told: Leased, into: Sequence[memoryview]
    ) -> Retrieved:
        count = len(told.pages)
        try:
            with session.attachment.used() as pages:
                pages.copy(told.pages, into[:count], False, self._copy_threads)
        except (Away, SystemResourceError):
            self._caller.release(session, told.lease)
            return self._nothing("lease_lost", told)
        except BaseException:
            self._caller.forget(session, told.lease)
            raise
        if not self._caller.release(session, told.lease):
            return self._nothing("lease_lost", told)
        self._caller.counters.add("bytes_retrieved", count * self._layout.chunk_bytes)
        return Retrieved(**self._fields(prompt, told))

    def _show(self, prompt: Prompt, session: ClientSession, told: Leased) -> Retrieved:
        try:
            with session.attachment.used() as pages:
                views = [memoryview(pages.view(page)).toreadonly() for page in told.pages]
        except Away:
            self._caller.counters.add("lost_leases")
            return self._nothing("lease_lost", told)
        self._caller.counters.add("bytes_retrieved", len(views) * self._layout.chunk_bytes)
        return Held(
            partial(self._caller.forget, session, told.lease),
            pages=views,
            release=partial(self._caller.release, session, told.lease),
            shape=self._layout.chunk_shape,
            dtype=ELEMENTS[self._layout.dtype][0],
            **self._fields(prompt, told),
        )

    # --- Pieces ---

    def _fields(self, prompt: Prompt, told: Leased) -> dict[str, Any]:
        all_of_it = len(told.pages) == prompt.chunks
        return {
            "tokens": len(told.pages) * prompt.chunk_size,
            "tiers": in_tokens(told.tiers, prompt.chunk_size),
            "decision": None,
            "reason": "" if all_of_it else told.reason or "never_stored",
            "lookup_s": told.lookup_s,
            "load_s": told.load_s,
        }

    def _nothing(self, reason: str, told: Leased | None = None) -> Retrieved:
        return Retrieved(
            tokens=0,
            tiers={MEMORY: 0},
            decision=None,
            reason=reason,
            lookup_s=told.lookup_s if told else 0.0,
            load_s=told.load_s if told else 0.0,
        )


def in_tokens(chunks: Mapping[str, int], chunk_size: int) -> dict[str, int]:
    """Chunks by tier as tokens by tier; memory is always there."""
    return {MEMORY: 0, **{name: max(0, n) * chunk_size for name, n in chunks.items()}}


def _possible(told: ReservedPages, session: ClientSession, first: int, end: int) -> bool:
    """Whether a reply can name pages for chunks of the prompt."""
    ascending = all(a < b for a, b in zip(told.chunks, told.chunks[1:], strict=False))
    return (
        len(told.chunks) == len(told.pages)
        and ascending
        and session.attachment.names(told.pages)
        and (not told.chunks or (told.reservation > 0 and first <= told.chunks[0]))
        and (not told.chunks or told.chunks[-1] < end)
        and 0 <= told.shed <= end - first - len(told.chunks)
    )
