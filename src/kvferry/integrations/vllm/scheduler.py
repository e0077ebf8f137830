"""The half of a connector beside the scheduler: what to load for which request, what to save when.

It is asked by vLLM's scheduler, in its thread, and does not make it wait: how much of a prompt is
there is found out in threads (`questions`), and until that is known the answer is "ask again". It
counts in chunks of `chunk_size` tokens, which are whole blocks of the engine's. What it reports are
whole blocks, and vLLM always computes the last token of a prompt.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvferry.engine.prompt import Prompt
from kvferry.errors import UsageError
from kvferry.integrations.vllm.backend import Finder, LoadJob, SaveJob, Work
from kvferry.integrations.vllm.hashing import RequestHashes, request_hashes
from kvferry.integrations.vllm.questions import Question, Questions
from kvferry.keys import DIGEST_BYTES

__all__ = ["SchedulerHalf"]

_log = logging.getLogger("kvferry.integrations.vllm")

# An answer that is older was perhaps true once.
_ANSWER_AGE_S = 5.0


@dataclass(slots=True)
class _Request:
    """What is known of a request of the scheduler's."""

    request: Any
    hashes: RequestHashes | None
    question: Question | None = None
    preemptions: int = 0
    local_tokens: int = 0  # of the prefix, as the engine's own cache has them
    found: int | None = None  # chunks that can be loaded, once that is known
    loaded_to: int = 0  # tokens that are there if the load succeeds
    may_load: bool = True
    saved: int | None = None  # chunks that need no saving; None: not scheduled yet
    blocks: list[int] = field(default_factory=list)


class SchedulerHalf:
    """Decides for the workers of one engine.

    Args:
        finder: Says what can be loaded; closed with this.
        chunk_size: Tokens of a chunk, a multiple of `block_size`.
        block_size: Tokens of a block of the engine.
        limit_s: The longest that a request waits for an answer of the finder.
        loads, saves: Whether this engine loads and saves at all.
        save_generated: Whether chunks with generated tokens are saved.
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
        hasher: Callable[[Any, int], RequestHashes | None] = request_hashes,
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
        self._questions = Questions(finder, limit_s)
        self._requests: dict[str, _Request] = {}
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
            known.loaded_to = 0
        known.local_tokens = computed_tokens
        if not self._loads or not known.may_load or known.hashes is None:
            return 0
        if getattr(request, "skip_reading_prefix_cache", False):
            return 0
        chunks = int(request.num_tokens) // self._chunk_size
        if chunks * self._chunk_size <= computed_tokens:
            return 0
        question = known.question
        if question is None or question.age_s > _ANSWER_AGE_S:
            hashes = self._hashes(known, request.num_tokens)
            if not hashes:
                return 0
            prompt = Prompt(hashes, request.num_tokens, self._chunk_size)
            question = known.question = self._questions.ask(prompt)
            self.counts["asked"] += 1
        found = question.answer()
        if found is None:
            return None
        known.found = found if question.answered else None
        return self._loadable(known, found) - computed_tokens if found else 0

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
        self._work.loads.append(LoadJob(request.request_id, hashes, wanted))
        self._work.given += wanted
        known.loaded_to = end
        known.may_load = False  # until it is preempted: what fails once is computed
        known.question = None
        self.counts["loads"] += 1
        self.counts["found_tokens"] += external_tokens

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
        known = self._requests.get(request_id)
        if known is None:
            return
        if anew:
            known.blocks = list(block_ids[0])
            self._begin(known, computed)
        elif block_ids:
            known.blocks += block_ids[0]
        if self._saves and known.hashes is not None:
            self._save(known, computed + scheduled.get(request_id, 0))

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
        known.loaded_to = 0

    def _save(self, known: _Request, computed: int) -> None:
        request = known.request
        count = min(computed, request.num_tokens)
        if not self._save_generated:
            count = min(count, request.num_prompt_tokens)
        first, end = known.saved or 0, count // self._chunk_size
        if end <= first:
            return
        blocks = known.blocks[first * self._chunk_blocks : end * self._chunk_blocks]
        hashes = self._hashes(known, end * self._chunk_size)
        if len(blocks) < (end - first) * self._chunk_blocks or not hashes:
            return
        self._work.saves.append(SaveJob(request.request_id, hashes, first, blocks))
        known.saved = end
        self.counts["saves"] += end - first

    # --- The end ---

    def finished(self, request_id: str) -> None:
        """A request has ended, in whatever way."""
        known = self._requests.pop(request_id, None)
        if known is not None and known.question is not None:
            known.question.forget()

    def clear(self) -> bool:
        """Forget everything of this model, in memory and in stores; whether that was done."""
        return self._finder.clear()

    def close(self) -> None:
        """Ask nobody any more."""
        self._questions.close()
        self._finder.close()

    # --- Inside ---

    def _known(self, request: Any) -> _Request:
        known = self._requests.get(request.request_id)
        if known is None:
            hashes = self._hasher(request, self._chunk_size)
            known = self._requests[request.request_id] = _Request(request, hashes)
            known.preemptions = request.num_preemptions
        return known

    def _hashes(self, known: _Request, tokens: int) -> bytes:
        if known.hashes is None:
            return b""
        try:
            return known.hashes.of(known.request.all_token_ids, tokens)
        except UsageError as error:
            _log.warning("request %s is not cached: %s", known.request.request_id, error)
            known.hashes = None
            return b""
