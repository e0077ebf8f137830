"""A Transformers model with and without our cache, for test_transformers.py.

Each line names a method of `Run`, which begins with a model and a cache of its own: ``{"do":
"warm", "model": "...", "url": "...", ...}``; see support/line_process.py.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
)

from kvferry import TieredCache
from kvferry.base.errors import UsageError
from kvferry.integrations.transformers import KvferryCache
from support.line_process import serve

NEW = 12


class Run:
    """One model, one prompt, one cache."""

    def __init__(
        self,
        model: str,
        url: str,
        dtype: str = "float32",
        tokens: int = 300,
        seed: int = 1,
        chunk_size: int = 32,
        change: str = "",
        server: str = "",
    ) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self.model.eval()
        if change == "one weight":
            with torch.no_grad():
                next(iter(self.model.model.layers[1].self_attn.parameters()))[3, 5] += 0.25
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(300, 2000, (1, tokens), generator=generator)
        self.settings: dict[str, Any] = {"remote_url": url, "max_local_cpu_size": 0.1}
        if server:
            self.settings = {"server": server, "timeout_s": 10.0}
        self.settings["chunk_size"] = chunk_size

    def cache(self) -> KvferryCache:
        return KvferryCache.for_model(self.model, **self.settings)

    def answer(self, past: DynamicCache | None, ids: torch.Tensor | None = None) -> torch.Tensor:
        ids = self.ids if ids is None else ids
        return self.model.generate(
            ids, past_key_values=past, max_new_tokens=NEW, do_sample=False, pad_token_id=0
        )

    def plain(self) -> dict[str, Any]:
        """The answer of a model that never heard of us."""
        return {"tokens": self.answer(None)[0].tolist()}

    def save(self) -> dict[str, Any]:
        """Answer, and keep what was computed."""
        with self.cache() as cache:
            past, known = cache.load(self.ids)
            output = self.answer(past)
            stored = cache.save(output, past)
            again = cache.save(output, past)
            kept = isinstance(cache.store, TieredCache) and cache.store.flush(10)
        return {
            "known": known,
            "tokens": output[0].tolist(),
            "chunks": stored.chunks,
            "again": again.chunks,
            "kept": kept,
        }

    def warm(self) -> dict[str, Any]:
        """Answer with what is known, and compare logits with those after what is computed here.

        Both compute the same rest of the prompt: some processors sum other lengths otherwise.
        """
        with self.cache() as cache:
            past, known = cache.load(self.ids)
            with torch.no_grad():
                own = DynamicCache()
                if known:
                    self.model(self.ids, past_key_values=own)
                    own.crop(known - self.ids.shape[1])  # so many less
                computed = self.model(self.ids[:, known:], past_key_values=own).logits
                rest = self.model(self.ids[:, known:], past_key_values=past).logits
            past, again = cache.load(self.ids)
            output = self.answer(past)
        return {
            "known": known,
            "again": again,
            "difference": float((computed - rest).abs().max()),
            "tokens": output[0].tolist(),
            "device": str(past.layers[0].keys.device),
        }

    def zeroed(self) -> dict[str, Any]:
        """Store zeros as the first chunk, in good order, and answer with them: a control."""
        with self.cache() as cache:
            past, _ = cache.load(self.ids)
            with torch.no_grad():
                self.model(self.ids, past_key_values=past)
            for layer in past.layers:
                layer.keys[:, :, :32] = 0
                layer.values[:, :, :32] = 0
            cache.save(self.ids, past)
        return self.warm()

    def longer(self) -> dict[str, Any]:
        """Load for a prompt that goes on, add to it, and load that."""
        more = torch.cat([self.ids, self.ids.flip(1)], 1)
        with self.cache() as cache:
            past, known = cache.load(more)
            output = self.answer(past, more)
            stored = cache.save(output, past)
            _, then = cache.load(more)
        plain = self.answer(None, more)
        return {
            "known": known,
            "then": then,
            "chunks": stored.chunks,
            "equal": bool(torch.equal(plain, output)),
        }

    def exactly(self) -> dict[str, Any]:
        """Prompts of whole chunks, of one token more, and of less than a chunk."""
        found = {}
        with self.cache() as cache:
            past, _ = cache.load(self.ids)
            self.model(self.ids, past_key_values=past)
            cache.save(self.ids, past)
            for tokens in (1, 31, 32, 33, 64, 65):
                found[str(tokens)] = cache.load(self.ids[:, :tokens])[1]
        return found

    def refusals(self) -> dict[str, Any]:
        """What is said to each thing that cannot be."""
        cache = self.cache()
        past, _ = cache.load(self.ids)
        self.model(self.ids, past_key_values=past)
        mask = torch.ones_like(self.ids)
        mask[0, :3] = 0
        other = DynamicCache(config=self.model.config)
        self.model(self.ids.repeat(2, 1), past_key_values=other)
        loaded, _ = cache.load(self.ids)
        static = StaticCache(config=self.model.config, max_cache_len=400)
        return {
            "batch": _said(lambda: cache.load(self.ids.repeat(2, 1))),
            "padding": _said(lambda: cache.load(self.ids, mask)),
            "batch in the cache": _said(lambda: cache.save(self.ids, other)),
            "static": _said(lambda: cache.save(self.ids, static)),
            "other tokens": _said(lambda: _save_swapped(cache, self.ids, past)),
            "half": _said(lambda: cache.save(self.ids, _as(past, torch.float16))),
            "sliding": _said(lambda: KvferryCache.for_model(_sliding())),
            "dynamic": _said(lambda: _with_dynamic_rope(self.model)),
            "adapter": _said(lambda: _with_adapter(self.model)),
            "fine": _said(lambda: cache.save(self.ids, loaded)),
        }


def _save_swapped(cache: KvferryCache, ids: torch.Tensor, past: DynamicCache) -> None:
    cache.save(ids, past)
    cache.save(ids.flip(1), past)


def _as(past: DynamicCache, dtype: torch.dtype) -> DynamicCache:
    made = DynamicCache()
    for index, layer in enumerate(past.layers):
        made.update(layer.keys.to(dtype), layer.values.to(dtype), index)
    return made


def _sliding() -> Any:
    config = MistralConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        sliding_window=16,
    )
    return MistralForCausalLM(config)


def _with_dynamic_rope(model: Any) -> None:
    before = model.config.rope_parameters
    model.config.rope_parameters = {**before, "rope_type": "dynamic", "factor": 2.0}
    try:
        KvferryCache.for_model(model)
    finally:
        model.config.rope_parameters = before


def _with_adapter(model: Any) -> None:
    model.peft_config = {"default": object()}
    try:
        KvferryCache.for_model(model)
    finally:
        del model.peft_config


def _said(call: Any) -> str:
    try:
        call()
    except UsageError as error:
        return str(error)
    return ""


def call(do: str, **request: Any) -> Any:
    return getattr(Run(**request), do)()


if __name__ == "__main__":
    serve(call)
