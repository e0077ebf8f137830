"""Keep the KV of prompts for Hugging Face Transformers: save a prefix, and load it again.

    cache = KvferryCache.for_model(model, remote_url="redis://localhost")
    past, known = cache.load(input_ids)           # `known` tokens need not be computed
    output = model.generate(input_ids, past_key_values=past)
    cache.save(output, past)                      # as many tokens as `past` has

`past` is a `DynamicCache`, empty if nothing was found, so the calls are the same either way. At
least one token of the prompt is always left to compute. What is loaded is what was saved for
exactly these tokens, by a model with the same weights, configuration and element type; all else is
a miss.

One sequence at a time and no padding: a batch, or a mask with zeros, is refused. So are caches that
are no plain full attention (sliding windows, latent or linear attention, static or quantised ones).
A store that is away makes misses, and never an error.

The cache must not be used by several threads at once. After a change of the weights or of an
adapter, make a new one.
"""

from __future__ import annotations

import weakref
from typing import Any, Self, TypeAlias

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from kvferry.base.errors import UsageError
from kvferry.cache import Stored
from kvferry.integrations.transformers.model import empty_cache, layer_devices, model_identity
from kvferry.server import Client
from kvferry.sharing import TieredCache

__all__ = ["KvferryCache"]

Store: TypeAlias = TieredCache | Client


class KvferryCache:
    """Saves and loads the KV of prefixes of one model.

    Args:
        model: Whose KV it is.
        store: Where it is kept: a `TieredCache`, or a `Client` of a cache server, that was made
            with the identity of this model (`model.model_identity`). It is closed with the
            cache.
    """

    def __init__(self, model: PreTrainedModel, store: Store) -> None:
        self.store = store
        self.layout = store.layout
        self._config = model.config
        self._devices = layer_devices(model, self.layout.layers)
        # What is known of caches that are in use: their first tokens, and that these are kept.
        self._known: weakref.WeakKeyDictionary[DynamicCache, torch.Tensor]
        self._known = weakref.WeakKeyDictionary()

    @classmethod
    def for_model(
        cls,
        model: PreTrainedModel,
        *,
        server: str | None = None,
        chunk_size: int = 64,
        revision: str = "",
        lora: str = "",
        **settings: Any,
    ) -> Self:
        """A cache with a store of its own.

        Args:
            model: A decoder with full attention.
            server: URL of a cache server of this host; default: a `TieredCache` in this process.
            chunk_size: Tokens of a chunk, the unit that is kept: a prefix counts in these.
            revision: Instead of a fingerprint of the weights; it must change when they do.
            lora: Name and revision of the adapter, for a model that has one.
            **settings: Of the `TieredCache`, e.g. ``remote_url``, or of the `Client`.

        Raises:
            UsageError: The KV of this model cannot be kept.
            ConfigError: A setting cannot be.
        """
        identity = model_identity(model, chunk_size, revision, lora)
        layer_devices(model, identity.layout.layers)  # what it refuses needs no store
        if server is None:
            return cls(model, TieredCache(identity, **settings))
        return cls(model, Client(identity, server, **settings))

    def load(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> tuple[DynamicCache, int]:
        """The KV of the longest prefix that is known and pays.

        Args:
            input_ids: Of the whole prompt. Shape: (1, tokens) or (tokens,).
            attention_mask: If there is one, it must be all ones.

        Returns:
            A cache of its own for `generate` or `forward`, and how many tokens are in it: always
            fewer than the prompt has.

        Raises:
            UsageError: More than one sequence, or padding.
        """
        tokens = _sequence(input_ids, attention_mask)
        layout, past = self.layout, empty_cache(self._config)
        most = max(0, len(tokens) - 1) // layout.chunk_size
        if not most:
            return past, 0
        dtype = getattr(torch, layout.dtype)
        chunks = torch.empty((most, *layout.chunk_shape), dtype=dtype)
        hit = self.store.retrieve(tokens.numpy(), list(chunks), limit_tokens=len(tokens) - 1)
        known = hit.tokens // layout.chunk_size
        if known:
            # [chunk, layer, kv, token, head, dim] becomes [layer, kv, head, token, dim].
            found = chunks[:known].permute(1, 2, 4, 0, 3, 5).flatten(3, 4)
            for index, device in enumerate(self._devices):
                keys, values = (part[None].contiguous().to(device) for part in found[index])
                past.update(keys, values, index)
            self._known[past] = tokens[: hit.tokens].clone()
        return past, hit.tokens

    def save(
        self,
        input_ids: torch.Tensor,
        past: DynamicCache,
        attention_mask: torch.Tensor | None = None,
    ) -> Stored:
        """Keep the KV of as many full chunks as both the tokens and `past` have.

        Args:
            input_ids: Tokens whose KV `past` has, from the first one on: of the prompt, or with
                what was generated. Shape: (1, tokens) or (tokens,).
            past: What the model has filled.
            attention_mask: If there is one, it must be all ones.

        Returns:
            How many chunks were new, and what became of them. What came from `load` is left out.

        Raises:
            UsageError: `past` is no cache that can be kept, or was loaded for other tokens.
        """
        tokens = _sequence(input_ids, attention_mask)
        layers = self._layers(past)
        tokens = tokens[: past.get_seq_length()]
        size, first = self.layout.chunk_size, 0
        begun = self._known.get(past)
        if begun is not None:
            shared = min(len(begun), len(tokens))
            if not torch.equal(begun[:shared], tokens[:shared]):
                raise UsageError("the cache was loaded for other tokens; save it with its own")
            first = shared // size
        count = len(tokens) // size - first
        if count <= 0:
            return Stored(chunks=0, known=0, shed=0)
        dtype = getattr(torch, self.layout.dtype)
        chunks = torch.empty((count, *self.layout.chunk_shape), dtype=dtype)
        span = slice(first * size, (first + count) * size)
        for index, layer in enumerate(layers):
            for kv, states in enumerate((layer.keys, layer.values)):
                part = states.detach()[0, :, span].transpose(0, 1).unflatten(0, (count, size))
                chunks[:, index, kv].copy_(part)
        done = self.store.store(tokens.numpy(), list(chunks), first_chunk=first)
        if not done.shed and not any(done.dropped.values()):
            self._known[past] = tokens[: (first + count) * size].clone()
        return done

    def clear(self) -> int:
        """Forget everything of this model, in the stores too; how many chunks there were."""
        return self.store.clear()

    def close(self) -> None:
        """Write what waits for stores, for a bounded time, and end."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _layers(self, past: DynamicCache) -> list[DynamicLayer]:
        layers = list(getattr(past, "layers", ()))
        if not isinstance(past, DynamicCache) or any(type(x) is not DynamicLayer for x in layers):
            raise UsageError(f"{type(past).__name__} is no DynamicCache of full attention")
        if not past.get_seq_length():
            return []
        layout, tokens = self.layout, past.get_seq_length()
        if len(layers) != layout.layers:
            raise UsageError(f"the cache has {len(layers)} layers, the model {layout.layers}")
        shape = (1, layout.kv_heads, tokens, layout.head_dim)
        for index, layer in enumerate(layers):
            for states in (layer.keys, layer.values):
                told = f"{tuple(states.shape)} {str(states.dtype).removeprefix('torch.')}"
                if told != f"{shape} {layout.dtype}":
                    raise UsageError(
                        f"layer {index} of the cache is {told} and not {shape} {layout.dtype}: "
                        "one sequence at a time, of the model that this was made for"
                    )
        return layers


def _sequence(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    if input_ids.dim() == 2 and input_ids.shape[0] == 1:
        input_ids = input_ids[0]
    if input_ids.dim() != 1:
        raise UsageError(
            f"input_ids have the shape {tuple(input_ids.shape)}; load and save one sequence at a "
            "time"
        )
    if attention_mask is not None and not bool(attention_mask.bool().all()):
        raise UsageError("the attention mask has zeros; pass the sequence without its padding")
    return input_ids.detach().to("cpu", torch.int64).contiguous()
