"""Objects of the shape of vLLM's, for tests of the halves of a connector without vLLM.

A `Block` holds bytes; `PlainCopier` moves them as `copier.BlockCopier` does tensors. `SlowDevice`
is one whose copies are done later, as on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvferry.integrations.vllm.blocks.copier import BlockCopier


@dataclass
class PrefillStats:
    """What vLLM reports of a prompt; noted when it is scheduled, or when its load begins."""

    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_local_cached_tokens: int = 0
    num_external_cached_tokens: int = 0

    def set(
        self,
        num_prompt_tokens: int,
        num_local_cached_tokens: int,
        num_external_cached_tokens: int,
    ) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.num_cached_tokens = num_local_cached_tokens + num_external_cached_tokens
        self.num_computed_tokens = num_prompt_tokens - self.num_cached_tokens
        self.num_local_cached_tokens = num_local_cached_tokens
        self.num_external_cached_tokens = num_external_cached_tokens


@dataclass
class EngineRequest:
    """A ``vllm.v1.request.Request``, as far as a connector reads it."""

    request_id: str
    all_token_ids: list[int]
    num_prompt_tokens: int = 0
    num_preemptions: int = 0
    prompt_embeds: Any = None
    cache_salt: str | None = None
    lora_request: Any = None
    mm_features: list[Any] = field(default_factory=list)
    skip_reading_prefix_cache: bool = False
    prefill_stats: PrefillStats | None = None
    num_output_tokens: int = 0
    kv_transfer_params: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or len(self.all_token_ids)

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.all_token_ids[: self.num_prompt_tokens]

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


@dataclass
class NewRequest:
    req_id: str
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


@dataclass
class CachedRequests:
    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)


@dataclass
class SchedulerStep:
    """A ``SchedulerOutput``."""

    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    scheduled_new_reqs: list[NewRequest] = field(default_factory=list)
    scheduled_cached_reqs: CachedRequests = field(default_factory=CachedRequests)

    def new(self, request_id: str, blocks: list[int], computed: int, count: int) -> SchedulerStep:
        self.scheduled_new_reqs.append(NewRequest(request_id, (blocks,), computed))
        self.num_scheduled_tokens[request_id] = count
        return self

    def again(
        self,
        request_id: str,
        computed: int,
        count: int,
        blocks: list[int] | None = None,
        *,
        resumed: bool = False,
    ) -> SchedulerStep:
        cached = self.scheduled_cached_reqs
        cached.req_ids.append(request_id)
        cached.new_block_ids.append(None if blocks is None else (blocks,))
        cached.num_computed_tokens.append(computed)
        if resumed:
            cached.resumed_req_ids.add(request_id)
        self.num_scheduled_tokens[request_id] = count
        return self


class PlainCopier(BlockCopier):
    """Blocks that are rows of bytes, one for each layer."""

    def __init__(self, blocks: int, layers: int, layer_bytes: int) -> None:
        self.layer_names = tuple(f"model.layers.{i}.attn" for i in range(layers))
        self.layer_bytes = layer_bytes
        self.block_bytes = layers * layer_bytes
        self.rows = [[bytearray(layer_bytes) for _ in range(blocks)] for _ in range(layers)]
        self.closed = False
        self.pinned: list[Any] = []

    def fill(self, block: int, value: int) -> None:
        for layer, rows in enumerate(self.rows):
            rows[block][:] = bytes([(value + layer) % 256]) * self.layer_bytes

    def content(self, block: int) -> bytes:
        return b"".join(rows[block] for rows in self.rows)

    def fence(self) -> Any:
        return None

    def gather(self, block_ids: Sequence[int], pages: Sequence[Any], *, after: Any = None) -> None:
        for layer in range(len(self.rows)):
            self.gather_layer(layer, block_ids, pages)

    def gather_layer(
        self, layer_index: int, block_ids: Sequence[int], pages: Sequence[Any], *, after: Any = None
    ) -> None:
        each = len(block_ids) // len(pages)
        for index, block in enumerate(block_ids):
            view = memoryview(pages[index // each]).cast("B")
            at = (layer_index * each + index % each) * self.layer_bytes
            view[at : at + self.layer_bytes] = self.rows[layer_index][block]

    def scatter(self, pages: Sequence[Any], block_ids: Sequence[int], *, after: Any = None) -> None:
        each = len(block_ids) // len(pages)
        for index, block in enumerate(block_ids):
            if block < 0:
                continue
            view = memoryview(pages[index // each]).cast("B")
            for layer, rows in enumerate(self.rows):
                at = (layer * each + index % each) * self.layer_bytes
                rows[block][:] = view[at : at + self.layer_bytes]

    def pin(self, memories: Sequence[Any]) -> None:
        self.pinned += memories

    def close(self) -> None:
        self.closed = True
        self.pinned.clear()


class SlowDevice(PlainCopier):
    """Gathers wait until they are let go, in whatever thread they run."""

    def __init__(self, blocks: int, layers: int, layer_bytes: int) -> None:
        super().__init__(blocks, layers, layer_bytes)
        self.go = threading.Event()
        self.begun = threading.Event()

    def fence(self) -> Any:
        return "mark"

    def gather_layer(
        self, layer_index: int, block_ids: Sequence[int], pages: Sequence[Any], *, after: Any = None
    ) -> None:
        assert after == "mark"
        self.begun.set()
        assert self.go.wait(10)
        super().gather_layer(layer_index, block_ids, pages)

    def gather(self, block_ids: Sequence[int], pages: Sequence[Any], *, after: Any = None) -> None:
        for layer in range(len(self.rows)):
            self.gather_layer(layer, block_ids, pages, after=after)
