"""Host pools with the face of SGLang's, over NumPy: for tests without torch.

    pool = MhaPool("page_first", pages=8)
    pool.fill(); pool.page_bytes(3)          # what is in a page, whatever the layout
    config(tp_rank=1, tp_size=2)             # a HiCacheStorageConfig

That the real pools behave like this is what tests/engines/test_sglang.py is for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Config", "LogicalPool", "MhaPool", "MlaPool", "page_indices"]


@dataclass
class Config:
    """SGLang's `HiCacheStorageConfig`, as far as we read it."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    model_name: str | None = "tiny"
    tp_lcm_size: int | None = None
    extra_config: dict[str, Any] = field(default_factory=dict)

    @property
    def is_storage_writer(self) -> bool:
        return not self.is_mla_model or self.tp_rank == 0


class MhaPool:
    """Keys and values, of one of SGLang's layouts; `value_dim` other than `dim` gives two lengths.

    Shape: [kv][token][layer][head][dim] for page_first, [kv][page][head][token][layer][dim] for
    page_head, [kv][layer][token][head][dim] for layer_first.
    """

    def __init__(
        self,
        layout: str = "page_first",
        *,
        pages: int = 8,
        page_size: int = 4,
        layers: int = 3,
        heads: int = 2,
        dim: int = 8,
        value_dim: int | None = None,
    ) -> None:
        self.layout, self.page_size, self.page_num = layout, page_size, pages
        self.layer_num, self.head_num, self.head_dim = layers, heads, dim
        self.v_head_dim = dim if value_dim is None else value_dim
        self.start_layer, self.end_layer, self.target_layer_num = 0, layers, layers
        self.dtype = "torch.bfloat16"
        self.kv_buffer = [self._buffer(dim), self._buffer(self.v_head_dim)]

    def _buffer(self, dim: int) -> np.ndarray[Any, Any]:
        tokens = self.page_num * self.page_size
        shape = {
            "page_first": (tokens, self.layer_num, self.head_num, dim),
            "page_head": (self.page_num, self.head_num, self.page_size, self.layer_num, dim),
            "layer_first": (self.layer_num, tokens, self.head_num, dim),
        }[self.layout]
        return np.zeros(shape, np.uint16)

    def fill(self, seed: int = 1) -> None:
        """Random numbers everywhere."""
        rng = np.random.default_rng(seed)
        for buffer in self.kv_buffer:
            buffer[...] = rng.integers(0, 1 << 16, buffer.shape, np.uint16)

    def page(self, kv: int, page: int) -> np.ndarray[Any, Any]:
        """The keys or the values of a page, as they lie."""
        buffer: np.ndarray[Any, Any] = self.kv_buffer[kv]
        tokens = slice(page * self.page_size, (page + 1) * self.page_size)
        if self.layout == "page_head":
            tokens = slice(page, page + 1)
        found: np.ndarray[Any, Any]
        found = buffer[:, tokens] if self.layout == "layer_first" else buffer[tokens]
        return found[0] if self.layout == "page_head" else found

    def page_bytes(self, page: int) -> bytes:
        """All of a page, as its flat tensor would have it."""
        return b"".join(self.page(kv, page).tobytes() for kv in range(2))

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        addresses, sizes = [], []
        for first in list(indices)[:: self.page_size]:
            page = int(first) // self.page_size
            if self.layout == "layer_first":
                parts = [self.page(kv, page)[x] for x in range(self.layer_num) for kv in range(2)]
            else:
                parts = [self.page(kv, page) for kv in range(2)]
            addresses += [part.ctypes.data for part in parts]
            sizes += [part.nbytes for part in parts]
        return addresses, sizes

    def get_split_heads_page_buffer_meta(
        self, indices: Any, split_factor: int
    ) -> tuple[list[int], list[int]]:
        assert self.layout == "page_head"
        each = self.head_num // split_factor
        addresses, sizes = [], []
        for first in list(indices)[:: self.page_size]:
            for head in range(0, self.head_num, each):
                for kv in range(2):
                    part = self.page(kv, int(first) // self.page_size)[head : head + each]
                    addresses.append(part.ctypes.data)
                    sizes.append(part.nbytes)
        return addresses, sizes


class MlaPool:
    """One latent vector for each token and layer. Shape: [token][layer][dim]."""

    layout = "page_first"

    def __init__(self, *, pages: int = 8, page_size: int = 4, layers: int = 3) -> None:
        self.page_size, self.layer_num, self.kv_lora_rank = page_size, layers, 12
        self.dtype = "torch.bfloat16"
        self.kv_buffer = np.zeros((pages * page_size, layers, 16), np.uint16)

    def fill(self, seed: int = 1) -> None:
        """Random numbers everywhere."""
        rng = np.random.default_rng(seed)
        self.kv_buffer[...] = rng.integers(0, 1 << 16, self.kv_buffer.shape, np.uint16)

    def page_bytes(self, page: int) -> bytes:
        """All of a page."""
        return self._page(page).tobytes()

    def _page(self, page: int) -> np.ndarray[Any, Any]:
        return self.kv_buffer[page * self.page_size : (page + 1) * self.page_size]

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        pages = [self._page(int(i) // self.page_size) for i in list(indices)[:: self.page_size]]
        return [page.ctypes.data for page in pages], [page.nbytes for page in pages]


class LogicalPool:
    """An anchor: indices and no bytes."""

    layout, page_size, kv_buffer, layer_num = "page_first", 4, None, 0


def page_indices(pool: Any, *pages: int) -> np.ndarray[Any, Any]:
    """What SGLang calls host indices: those of all tokens of some pages, in that order."""
    size = pool.page_size
    runs = [np.arange(page * size, (page + 1) * size) for page in pages]
    return np.concatenate([np.zeros(0, np.int64), *runs])
