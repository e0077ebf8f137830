"""The half of a connector beside the scheduler: what to load for which request, what to save when.

It is asked by vLLM's scheduler, in its thread, and does not make it wait: how much of a prompt is
there is found out in threads (`lookup_threads`), and until the answer is known vLLM is told "ask
again". It counts in chunks of `chunk_size` tokens, which are whole blocks of the engine's. What it
reports are whole blocks, and vLLM always computes the last token of a prompt.

A request's life:

    waiting    matched() -> None, None, ... -> tokens: its chunks up to there can be loaded
    allocated  allocated(): blocks are set aside; a load goes into the next `Work`
    loading    the workers bring the chunks. What fails is computed, and not loaded a second time
    running    work(): chunks that are full after this step are saved, each once
    preempted  its blocks are gone. It waits again, and may load what it had saved
    finished   finished(): forgotten. Nothing of it is owed: saves have left the blocks already

Requests and scheduler outputs are vLLM's, of any tested version; only what both have is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from kvferry.base.errors import UsageError
from kvferry.chunks.generation import FIRST, drawn, joined, named
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.chunks.prompt import Prompt, node_in
from kvferry.integrations.vllm.connector.interfaces import Finder, LoadJob, SaveJob, Work
from kvferry.integrations.vllm.connector.lookup_threads import Question, Questions
from kvferry.integrations.vllm.connector.request_hashes import (
    RequestHashes,
    fit,
    holds,
    request_hashes,
)

__all__ = ["RequestWait", "SchedulerHalf"]

_log = logging.getLogger("kvferry.integrations.vllm")

# An answer that is older is stale: what it found may have been evicted.
_ANSWER_AGE_S = 5.0


@dataclass(slots=True)
class _Request:
    """What is known of a request of the scheduler's."""

    request: Any
    hashes: RequestHashes | None
    wait: RequestWait
    question: Question | None = None
    preemptions: int = 0
    local_tokens: int = 0  # of the prefix, as the engine's own cache has them
    found: int | None = None  # chunks that can be loaded, once that is known
    loaded_to: int = 0  # tokens that are there if the load succeeds
    may_load: bool = True
    done: int = 0  # tokens that are computed, or loaded
    queued: tuple[int, int] = (0, 0)  # what was ahead of it when it asked
    saved: int | None = None  # chunks that need no saving; None: not scheduled yet
    blocks: list[int] = field(default_factory=list)
    generation: bytes = FIRST  # of the hashes
    begun: bool = False  # some of its KV is computed, or being loaded
    source: tuple[str, int] | None = None  # a node that it names


class SchedulerHalf:
    """Decides for the workers of one engine.

    Args:
        finder: Says what can be loaded; closed with this.
        chunk_size: Tokens of a chunk, a multiple of `block_size`.
        block_size: Tokens of a block of the engine.
        limit_s: The longest that the finder may take for an answer.
        loads, saves: Whether this engine loads and saves at all.
        save_generated: Whether chunks with generated tokens are saved.
        weights_version: The name of the weights, see `kvferry.chunks.generation`.
        hasher: For tests; as `request_hashes`.
    """

    def __init__(
        self,
        finder: Finder,
        *,
        chunk_size: int,
        block_size: int,
        limit_s: float,
        loads: bool = True,
        saves: bool = True,
        save_generated: bool = True,
        weights_version: str | None = None,
        hasher: Callable[[Any, int, bytes], RequestHashes | None] = request_hashes,
    ) -> None:
        if chunk_size % block_size:
            raise UsageError(f"a chunk of {chunk_size} tokens is no multiple of {block_size}")
        self._finder = finder
        self._chunk_size = chunk_size
        self._block_size = block_size
        self._chunk_blocks = chunk_size // block_size
        self._loads = loads
        self._saves = saves
        self._save_generated = save_generated
        self._hasher = hasher
        self._own = named(weights_version or "")
        self._questions = Questions(finder, limit_s)
        self._requests: dict[str, _Request] = {}
        self._sums: dict[int, tuple[int, int]] = {}  # what is ahead of each, in this step
        self._queued = (0, 0)
        self._work = Work()
        self.counts = {"asked": 0, "found_tokens": 0, "loads": 0, "failed_loads": 0, "saves": 0}

    # --- Waiting ---

    def matched(self, request: Any, computed_tokens: int) -> int | None:
        """How many tokens behind `computed_tokens` can be loaded; None: ask again.

        May be asked any number of times. `computed_tokens` are those that the engine has itself.
        """
        known = self._known(request)
        if known.preemptions != request.num_preemptions:  # a new beginning
            known.preemptions = request.num_preemptions
            known.question, known.found, known.may_load = None, None, True
            known.loaded_to = known.done = 0
            known.begun = False
        self._renew(known)
        known.local_tokens, known.hashes = computed_tokens, fit(known.hashes, computed_tokens)
        if not self._loads or not known.may_load or known.hashes is None:
            return 0
        if getattr(request, "skip_reading_prefix_cache", False):
            return 0
        if computed_tokens % self._block_size:
            return 0  # a part of a block: what is loaded behind it would leave a hole
        chunks = int(request.num_tokens) // self._chunk_size
        if chunks * self._chunk_size <= computed_tokens:
            return 0
        question = known.question
        if question is None or question.age_s > _ANSWER_AGE_S:
            hashes = self._hashes(known, request.num_tokens)
            if not hashes:
                return 0
            known.queued = self._ahead(known)
            question = known.question = self._questions.ask(self._prompt(known, hashes))
            self.counts["asked"] += 1
            known.wait.begin()
        found = question.answer()
        if found is None:
            return None
        known.wait.end()
        if not found and known.generation != self._generation:  # as the answer said
            return self.matched(request, computed_tokens)
        known.found = found if question.answered else None
        return self._loadable(known, found) - computed_tokens if found else 0

    def _ahead(self, known: _Request) -> tuple[int, int]:
        """Tokens and pairs of prompts that the engine computes before it turns to this one.

        They are added up once for each step, however many requests ask in it.
        """
        tokens, pairs = self._queued
        for other in islice(self._requests.values(), len(self._sums), None):
            self._sums[id(other)] = (tokens, pairs)
            # Whoever is still asking is taken to be computed: so nobody leaves the queue for it.
            end = int(other.request.num_prompt_tokens)
            done = max(other.done, other.loaded_to, other.local_tokens)
            if done < end:
                tokens += end - done
                pairs += end * end - done * done
        self._queued = (tokens, pairs)
        return self._sums.get(id(known), (0, 0))

    def _count_anew(self) -> None:
        self._sums.clear()
        self._queued = (0, 0)

    def _loadable(self, known: _Request, chunks: int) -> int:
        """Tokens that are there if so many chunks are loaded, in whole blocks.

        A prompt that ends with a block is loaded whole, and vLLM computes its last token again. But
        nothing is loaded for the last block alone: that is computed as soon as the token.
        """
        tokens: int = known.request.num_tokens
        size = self._block_size
        if (tokens - 1) // size * size <= known.local_tokens:
            return known.local_tokens
        return max(known.local_tokens, min(chunks * self._chunk_size, tokens // size * size))

    # --- Scheduling ---

    def allocated(self, request: Any, block_ids: Sequence[int], external_tokens: int) -> None:
        """Blocks were set aside; `external_tokens` of them are to be loaded (0: none)."""
        known = self._known(request)
        if not external_tokens or known.hashes is None:
            return
        start, end = known.local_tokens, known.local_tokens + external_tokens
        first = start // self._chunk_size
        last = -(-end // self._chunk_size)
        wanted = []
        for block in range(first * self._chunk_blocks, last * self._chunk_blocks):
            inside = start <= block * self._block_size < end
            wanted.append(block_ids[block] if inside else -1)
        hashes = self._hashes(known, last * self._chunk_size)[first * DIGEST_BYTES :]
        prompt = self._prompt(known, hashes, first)
        self._work.loads.append(LoadJob(request.request_id, prompt, wanted))
        self._work.given += wanted
        known.loaded_to = end
        known.begun = True
        known.wait.begin()
        known.may_load = False  # until it is preempted: what fails once is computed
        known.question = None
        self.counts["loads"] += 1
        self.counts["found_tokens"] += external_tokens

    def loaded(self, request_ids: Iterable[str]) -> None:
        """The loads of these have ended."""
        for request_id in request_ids:
            known = self._requests.get(request_id)
            if known is not None:
                known.wait.end()

    def work(self, output: Any) -> Work:
        """What the workers have to do in the step of a ``SchedulerOutput``."""
        scheduled = output.num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            self._step(new.req_id, new.block_ids, True, new.num_computed_tokens, scheduled)
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            resumed = request_id in cached.resumed_req_ids
            ids, computed = cached.new_block_ids[index], cached.num_computed_tokens[index]
            self._step(request_id, ids, resumed, computed, scheduled)
        self._questions.next_step()
        self._count_anew()
        self._work.computes = bool(scheduled)
        work, self._work = self._work, Work()
        return work

    def _step(
        self,
        request_id: str,
        block_ids: Any,
        anew: bool,
        computed: int,
        scheduled: dict[str, int],
    ) -> None:
        if block_ids:
            self._work.given += block_ids[0]
        count = scheduled.get(request_id, 0)
        known = self._requests.get(request_id)
        prompt_tokens = 0 if known is None else known.request.num_prompt_tokens
        if computed < prompt_tokens or (known is None and count > 1):
            self._work.new_tokens += count
        else:
            self._work.decodes += count
        self._work.pairs += (computed + count) ** 2 - computed**2
        if known is None:
            return
        self._see_first_token(known)
        known.done = computed + count
        if anew:
            self._renew(known)
            known.begun = True
            known.blocks = list(block_ids[0])
            self._begin(known, computed)
        elif block_ids:
            known.blocks += block_ids[0]
        if self._saves and computed + count >= ((known.saved or 0) + 1) * self._chunk_size:
            self._save(known, computed + count)

    def _begin(self, known: _Request, computed: int) -> None:
        """A request runs now, or again, with so many tokens computed: what needs no saving?"""
        done = computed // self._chunk_size
        if known.saved is None:
            # Without an answer what is computed was perhaps saved before, and is left alone.
            known.saved = done if known.found is None else known.found
        if computed < min(known.loaded_to, known.request.num_tokens - 1):
            # Something was not what it should be: it will be saved anew.
            known.saved = min(known.saved, done)
            self.counts["failed_loads"] += 1
            _correct_statistics(known.request, computed)
        known.loaded_to = 0

    def _see_first_token(self, known: _Request) -> None:
        over = None if known.wait.told else known.wait.over()
        if over is not None:
            self._work.first_tokens.append(over)

    def _save(self, known: _Request, computed: int) -> None:
        request = known.request
        count = min(computed, request.num_tokens)
        if not self._save_generated:
            count = min(count, request.num_prompt_tokens)
        first, end = known.saved or 0, count // self._chunk_size
        if end <= first or known.generation != self._generation or not holds(known.hashes):
            return
        blocks = known.blocks[first * self._chunk_blocks : end * self._chunk_blocks]
        hashes = self._hashes(known, end * self._chunk_size)
        if len(blocks) < (end - first) * self._chunk_blocks or not hashes:
            return
        prompt = Prompt(hashes, end * self._chunk_size, self._chunk_size, known.generation)
        self._work.saves.append(SaveJob(request.request_id, prompt, first, blocks))
        known.saved = end
        self.counts["saves"] += end - first

    # --- The end ---

    def finished(self, request_id: str) -> None:
        """A request has ended, in whatever way."""
        known = self._requests.pop(request_id, None)
        self._count_anew()
        if known is None:
            return
        self._see_first_token(known)
        if known.question is not None:
            known.question.forget()

    def clear(self) -> bool:
        """Forget everything: from now on this engine finds nothing of before. Waits for nobody."""
        ended, self._own = self._own, drawn()
        self._finder.renewed(ended, self._own)
        return True

    def close(self) -> None:
        """Ask nobody any more."""
        self._questions.close()
        self._finder.close()

    # --- Inside ---

    def _known(self, request: Any) -> _Request:
        known = self._requests.get(request.request_id)
        if known is None:
            generation = self._generation
            hashes = self._hasher(request, self._chunk_size, generation)
            known = _Request(request, hashes, RequestWait(request), generation=generation)
            known.preemptions = request.num_preemptions
            known.source = node_in(getattr(request, "kv_transfer_params", None))
            self._requests[request.request_id] = known
        return known

    @property
    def _generation(self) -> bytes:
        """Of what is found and saved now."""
        return joined(self._own, self._finder.shared)

    def _renew(self, known: _Request) -> None:
        """A request of which nothing is computed yet belongs to the generation of now."""
        generation = self._generation
        if not known.begun and known.generation != generation:
            known.generation = generation
            known.hashes = self._hasher(known.request, self._chunk_size, generation)
            if known.question is not None:
                known.question.forget()
            known.question = known.found = known.saved = None

    def _prompt(self, known: _Request, hashes: bytes, first: int = 0) -> Prompt:
        """What is to know of a request's prompt; `hashes`: of its chunks from `first` on."""
        return Prompt(
            hashes,
            known.request.num_tokens,
            self._chunk_size,
            known.generation,
            start_tokens=first * self._chunk_size,
            computed_tokens=known.local_tokens,
            queued=known.queued,
            source=known.source,
        )

    def _hashes(self, known: _Request, tokens: int) -> bytes:
        if known.hashes is None:
            return b""
        try:
            return known.hashes.of(known.request.all_token_ids, tokens)
        except UsageError as error:
            _log.warning("request %.80r is not cached: %s", known.request.request_id, error)
            known.hashes = None
            return b""


class RequestWait:
    """What part of the time to a request's first token it waited for the cache.

    A request waits while the cache says what it has, and while that is loaded. What else takes time
    is the engine's: the queue, and computing.

    Args:
        request: vLLM's; says when it came (``arrival_time``) and how many tokens it has given.
        clock: For tests; as ``time.monotonic``.
        wall: For tests; as ``time.time``.

    Attributes:
        told: Whether `over` has said it.
    """

    __slots__ = ("_began", "_clock", "_request", "_since", "_waited_s", "told")

    def __init__(
        self,
        request: Any,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        now = wall()
        self._request = request
        self._clock = clock
        self._began = clock() - max(0.0, now - getattr(request, "arrival_time", now))
        self._since: float | None = None
        self._waited_s = 0.0
        self.told = False

    def begin(self) -> None:
        """It waits for the cache from now on."""
        if self._since is None:
            self._since = self._clock()

    def end(self) -> None:
        """It does not any more."""
        if self._since is not None:
            self._waited_s += self._clock() - self._since
            self._since = None

    def over(self) -> tuple[float, float] | None:
        """How long it waited for the cache, and for the first token; None: that is not there yet,
        or was told."""
        if self.told or not getattr(self._request, "num_output_tokens", 0):
            return None
        self.told = True
        self.end()
        return self._waited_s, self._clock() - self._began


def _correct_statistics(request: Any, computed: int) -> None:
    """Take what a load did not bring out of the tokens that vLLM reports as cached.

    0.32.0 notes them when the load begins, and corrects nothing when it fails.
    """
    noted = getattr(request, "prefill_stats", None)
    if noted is None or request.num_preemptions > 0 or computed >= noted.num_cached_tokens:
        return
    local = min(noted.num_local_cached_tokens, computed)
    noted.set(
        num_prompt_tokens=noted.num_prompt_tokens,
        num_local_cached_tokens=local,
        num_external_cached_tokens=computed - local,
    )
