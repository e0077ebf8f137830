"""The shape of a chunk and its elements: the KV of `chunk_size` tokens of one shard of a model.

    >>> layout = KVLayout(layers=32, kv_heads=8, head_dim=128, dtype="bfloat16", tp_size=2)
    >>> layout.chunk_shape, layout.chunk_bytes
    ((32, 2, 256, 4, 128), 16777216)
    >>> layout.shard
    'layers 0-31 of 32, heads 0-3 of 8'

Axes of the array of a chunk, outermost first:

    kind   layer_first                        page_first
    gqa    [layer, kv, token, head, dim]      [token, layer, kv, head, dim]
    mla    [layer, token, dim]                [token, layer, dim]

``kv`` is 0 for keys and 1 for values. ``gqa`` stands for multi-head, grouped-query and multi-query
attention alike. ``mla`` keeps one latent vector for each token and layer, from which keys and
values are computed (DeepSeek-V2, arXiv:2405.04434).

What describes a shard is which layers and heads it has, and not the number of a rank. So the ranks
of tensor parallelism share what they have alike: all of it with MLA, and a head that several ranks
have because there are more ranks than heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvferry.base.errors import UsageError

__all__ = ["ELEMENTS", "KVLayout", "element_name"]

_KINDS = ("gqa", "mla")
_ORDERS = ("layer_first", "page_first")
_COUNTS = ("layers", "chunk_size", "tp_size", "pp_size")
# What NumPy stores each element type as, and its size in bytes. Types that NumPy does not have are
# bit patterns in unsigned integers: a cache moves them and never calculates with them.
ELEMENTS: dict[str, tuple[str, int]] = {
    "bool": ("bool", 1),
    "int8": ("int8", 1),
    "uint8": ("uint8", 1),
    "int16": ("int16", 2),
    "uint16": ("uint16", 2),
    "int32": ("int32", 4),
    "uint32": ("uint32", 4),
    "int64": ("int64", 8),
    "uint64": ("uint64", 8),
    "float16": ("float16", 2),
    "float32": ("float32", 4),
    "float64": ("float64", 8),
    "bfloat16": ("uint16", 2),
    "fp8": ("uint8", 1),
    "fp8_e4m3": ("uint8", 1),
    "fp8_e5m2": ("uint8", 1),
    "float8_e4m3fn": ("uint8", 1),
    "float8_e5m2": ("uint8", 1),
}


def element_name(dtype: object) -> str:
    """The name of an element type.

    Args:
        dtype: A name, a NumPy dtype or scalar type, or a torch dtype ("torch.bfloat16").

    Raises:
        UsageError: There is no such type.
    """
    text = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    name = text.removeprefix("torch.")
    if name not in ELEMENTS:
        raise UsageError(f"unknown dtype {text!r}; known: {', '.join(ELEMENTS)}")
    return name


@dataclass(frozen=True, kw_only=True, slots=True)
class KVLayout:
    """What the bytes of a chunk are; checked when it is made.

    Attributes:
        kind: "gqa" or "mla".
        layers: Layers of the whole model that keep KV.
        kv_heads: Key and value heads of the whole model, for each layer (gqa).
        head_dim: Numbers in the key, and in the value, of one head (gqa).
        latent_dim: Numbers in the latent vector: ``kv_lora_rank + qk_rope_head_dim`` (mla).
        dtype: Of one number, as `kvferry.PagePool` names it, or a NumPy or torch dtype. Names are
            not translated: "fp8" and "float8_e4m3fn" are two.
        chunk_size: Tokens of a chunk.
        order: "layer_first" or "page_first"; see above.
        tp_size: Ranks that divide the heads among them (gqa). It divides `kv_heads`, or is divided
            by it: then several ranks have the same head.
        tp_rank: Which of them this is.
        pp_size: Ranks that divide the layers, each a run of consecutive ones.
        pp_rank: Which of them this is.
        pp_layers: How many layers each rank has; empty: as equal as possible, the first ranks one
            more where it does not come out even.

    Raises:
        UsageError: A field is out of range, or does not go with the others.
    """

    kind: str = "gqa"
    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    latent_dim: int = 0
    dtype: str = "bfloat16"
    chunk_size: int = 256
    order: str = "layer_first"
    tp_size: int = 1
    tp_rank: int = 0
    pp_size: int = 1
    pp_rank: int = 0
    pp_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", element_name(self.dtype))
        object.__setattr__(self, "pp_layers", tuple(self.pp_layers))
        for name, choices in (("kind", _KINDS), ("order", _ORDERS)):
            if getattr(self, name) not in choices:
                known = " or ".join(choices)
                raise UsageError(f"{name}={getattr(self, name)!r} is unknown; use {known}")
        mla = self.kind == "mla"
        there = ("latent_dim",) if mla else ("kv_heads", "head_dim")
        for name in (*_COUNTS, *there):
            _need_count(name, getattr(self, name), 1)
        for name in ("kv_heads", "head_dim") if mla else ("latent_dim",):
            if getattr(self, name) != 0:
                raise UsageError(f"{name} does not exist with kind={self.kind!r}; leave it out")
        for name in ("tp", "pp"):
            rank, size = getattr(self, f"{name}_rank"), getattr(self, f"{name}_size")
            _need_count(f"{name}_rank", rank, 0)
            if rank >= size:
                raise UsageError(f"{name}_rank={rank} does not exist with {name}_size={size}")
        if not mla and self.kv_heads % self.tp_size and self.tp_size % self.kv_heads:
            raise UsageError(
                f"tp_size={self.tp_size} and kv_heads={self.kv_heads}: one must divide the other"
            )
        self._check_pipeline()

    def _check_pipeline(self) -> None:
        if self.pp_size > self.layers:
            raise UsageError(f"pp_size={self.pp_size} ranks for {self.layers} layers: too many")
        if self.pp_layers:
            for index, count in enumerate(self.pp_layers):
                _need_count(f"pp_layers[{index}]", count, 1)
            if len(self.pp_layers) != self.pp_size or sum(self.pp_layers) != self.layers:
                raise UsageError(
                    f"pp_layers={self.pp_layers} must be {self.pp_size} numbers "
                    f"with the sum {self.layers}"
                )

    @property
    def layer_range(self) -> range:
        """The layers of this shard, counted from the beginning of the model."""
        if self.pp_layers:
            start = sum(self.pp_layers[: self.pp_rank])
            return range(start, start + self.pp_layers[self.pp_rank])
        each, more = divmod(self.layers, self.pp_size)
        start = self.pp_rank * each + min(self.pp_rank, more)
        return range(start, start + each + (self.pp_rank < more))

    @property
    def head_range(self) -> range:
        """The heads of this shard; empty with MLA, which has none to divide."""
        if self.kind == "mla":
            return range(0)
        if self.tp_size > self.kv_heads:
            head = self.tp_rank // (self.tp_size // self.kv_heads)
            return range(head, head + 1)
        each = self.kv_heads // self.tp_size
        return range(self.tp_rank * each, (self.tp_rank + 1) * each)

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """The shape of the array of one chunk of this shard; axes as at the head of the module."""
        layers, tokens = len(self.layer_range), self.chunk_size
        if self.kind == "mla":
            first, second = (layers, tokens) if self.order == "layer_first" else (tokens, layers)
            return (first, second, self.latent_dim)
        outer = (layers, 2, tokens) if self.order == "layer_first" else (tokens, layers, 2)
        return (*outer, len(self.head_range), self.head_dim)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk of this shard."""
        return math.prod(self.chunk_shape) * ELEMENTS[self.dtype][1]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token of this shard, all of its layers."""
        return self.chunk_bytes // self.chunk_size

    @property
    def shard(self) -> str:
        """What part of the model this is, for people."""
        fields = self.identity_fields
        heads = f", heads {fields['kv_heads']}" if "kv_heads" in fields else ""
        return f"layers {fields['layers']}{heads}"

    @property
    def identity_fields(self) -> dict[str, str | int]:
        """What of this is part of an identity: all that makes bytes mean something else."""
        fields: dict[str, str | int] = {
            "kind": self.kind,
            "layers": _part(self.layer_range, self.layers),
            "dtype": self.dtype,
            "chunk_size": self.chunk_size,
            "order": self.order,
        }
        if self.kind == "mla":
            return {**fields, "latent_dim": self.latent_dim}
        heads = _part(self.head_range, self.kv_heads)
        return {**fields, "kv_heads": heads, "head_dim": self.head_dim}


def _part(some: range, count: int) -> str:
    return f"{some[0]}-{some[-1]} of {count}"


def _need_count(name: str, value: object, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise UsageError(f"{name}={value!r} is not valid; use a whole number from {low}")
