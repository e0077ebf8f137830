"""The demo's server as a process: what it consists of, its metrics, signals, and its end."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial

from kvferry.base.process import ending_at_once, log_to_stderr, signals_blocked
from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout
from kvferry.config import CacheConfig
from kvferry.http.listener import HttpListener
from kvferry.metrics.collector import exposition, text_of
from kvferry.metrics.series import Family, family_of
from kvferry.sharing import TieredCache
from kvferry_lab.roi.models import find_model
from kvferry_lab.roi.rates import read_calibration
from kvferry_lab.serve.app import make_app
from kvferry_lab.serve.batcher import Batcher, Pace
from kvferry_lab.serve.chunks import SequenceChunks
from kvferry_lab.serve.in_turn import InTurn
from kvferry_lab.serve.serve_settings import ServeSettings
from kvferry_lab.transformer import Transformer, TransformerConfig

__all__ = ["metrics_text", "serve_demo", "serving"]

_TEXTS = {
    "requests": "Prompts that were looked up.",
    "cancelled": "Prompts whose client has gone.",
    "prompt_tokens": "Tokens of prompts.",
    "cached_tokens": "Those of them that were loaded.",
    "computed_tokens": "Those of them that were computed.",
    "output_tokens": "Tokens of answers.",
    "wrong_chunks": "Loaded chunks that were not what they must be.",
    "steps": "Steps of the engine.",
    "late_s": "Seconds by which steps took longer than their pace says.",
}
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_S = 0.2


def _families(batcher: Batcher, cache: TieredCache | None) -> list[Family]:
    """The families of one batcher, as they are now."""
    made = [
        family_of(
            "kvferry_demo_",
            each.name.replace("late_s", "late_seconds"),
            "counter",
            _TEXTS[each.name],
            getattr(batcher.counts, each.name),
        )
        for each in fields(batcher.counts)
    ]
    for name, value in (("running", batcher.running), ("waiting", batcher.waiting)):
        made.append(family_of("kvferry_demo_", name, "gauge", f"Sequences that are {name}.", value))
    text = "Tokens of prompts that a tier can hold."
    made.append(
        family_of("kvferry_demo_", "capacity_tokens", "gauge", text, _capacity(cache), "tier")
    )
    return made


def _capacity(cache: TieredCache | None) -> dict[str, float]:
    """Tokens that each tier with a limit can hold."""
    if cache is None:
        return {}
    layout = cache.layout
    found: dict[str, float] = {}
    if cache.config.local_cpu:
        found["l1"] = cache.memory.pages * layout.chunk_size
    for store in cache.config.stores:
        if store.max_capacity_gb:
            chunks = int(store.max_capacity_gb * (1 << 30)) // layout.chunk_bytes
            found[store.name] = chunks * layout.chunk_size
    return found


def metrics_text(batcher: Batcher, cache: TieredCache | None) -> str:
    """All series, in Prometheus' text format."""
    engine = exposition([cache.metrics]) if cache is not None else ""
    return text_of(_families(batcher, cache)) + engine


_log = logging.getLogger("kvferry.lab.serve")


def pace_of(settings: ServeSettings) -> Pace | None:
    """Of the steps; None: as fast as this machine is.

    Raises:
        ConfigError: The file of a calibration is none.
    """
    if settings.prefill_calibration is not None:
        a, c, d = read_calibration(settings.prefill_calibration)
    elif settings.prefill_tokens_per_s is not None:
        a, c, d = 0.0, 1 / settings.prefill_tokens_per_s, 0.0
    else:
        return None
    decode_s = 1 / settings.decode_tokens_per_s
    return Pace(a_s=a, c_s_per_token=c, d_s_per_token2=d, decode_s=decode_s)


def transformer_of(settings: ServeSettings, chunk_size: int) -> TransformerConfig:
    """A model that is fast enough for a pace, or else the demo's."""
    sized = settings.model is not None or settings.bytes_per_token is not None
    if pace_of(settings) is None and not sized:
        return TransformerConfig(page_tokens=chunk_size)
    return TransformerConfig(
        layers=2, d_model=32, heads=1, kv_heads=1, d_ff=64, page_tokens=chunk_size, window_pages=2
    )


def layout_of(settings: ServeSettings, config: TransformerConfig) -> KVLayout:
    """Of chunks: the model's numbers for each layer and token, or the transformer's.

    Raises:
        UsageError: The model is unknown.
    """
    size = config.page_tokens
    if settings.model is not None:
        shape = find_model(settings.model)
        dtype = {1: "uint8", 2: "bfloat16", 4: "float32"}[shape.value_bytes]
        return KVLayout(
            kind="mla",  # any shape is so many numbers for each layer and token
            layers=shape.kv_layers,
            latent_dim=shape.kv_values,
            dtype=dtype,
            chunk_size=size,
        )
    if settings.bytes_per_token is not None:
        latent = settings.bytes_per_token
        return KVLayout(kind="mla", layers=1, latent_dim=latent, dtype="uint8", chunk_size=size)
    return KVLayout(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dtype=config.kv_dtype,
        chunk_size=size,
    )


@contextmanager
def serving(settings: ServeSettings, config: CacheConfig) -> Iterator[HttpListener]:
    """A server that answers as long as the block.

    Raises:
        UsageError: The settings cannot be.
        UnavailableError: The port is taken.
    """
    shape = transformer_of(settings, config.chunk_size)
    layout = layout_of(settings, shape)
    chunks = SequenceChunks(shape, layout.chunk_bytes)
    model = Transformer(shape, settings.seed)
    with ExitStack() as stack:
        cache = None
        if settings.cache:
            kind = InTurn if settings.client == "in-turn" else TieredCache
            cache = kind(_identity(settings, shape, layout), config)
            stack.callback(cache.close)
        batcher = Batcher(
            *(model, chunks, cache, pace_of(settings)),
            sequences_max=settings.max_num_seqs,
            step_tokens=settings.step_tokens,
        )
        stack.callback(batcher.close)
        name, length_max = settings.served_model_name, settings.max_model_len
        app = make_app(batcher, name, length_max, partial(metrics_text, batcher, cache))
        http = HttpListener(app, settings.host, settings.port, "choose another --port")
        http.start()
        stack.callback(http.stop)
        stack.callback(batcher.close)  # before that, so that those who wait are told
        _log.info(
            "serving %s at %s/v1: KV of %d bytes a token, %s",
            *(name, http.url, layout.token_bytes, _caches(cache)),
        )
        yield http


def serve_demo(settings: ServeSettings, config: CacheConfig, log_level: str = "info") -> None:
    """Serve until SIGTERM or Ctrl-C; a second one ends the process at once. In the main thread."""
    log_to_stderr(log_level)
    with signals_blocked(_SIGNALS):
        with ExitStack() as stack:
            with ending_at_once(_SIGNALS):
                stack.enter_context(serving(settings, config))
            ending = False
            while not ending:
                came = signal.sigtimedwait(_SIGNALS, _LOOK_S)
                ending = came is not None and came.si_signo in _SIGNALS
            _log.info("ending")
            # From here on a second signal ends the process: nothing has to be kept.
            for number in _SIGNALS:
                signal.signal(number, lambda number, _: os._exit(128 + number))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _identity(settings: ServeSettings, shape: TransformerConfig, layout: KVLayout) -> Identity:
    """Everything that would make other bytes of the same tokens."""
    return Identity(
        model="numpy-transformer",
        revision=f"seed {settings.seed}",
        layout=layout,
        rope=f"theta={shape.rope_base:g}",
        extra={
            "d_model": shape.d_model,
            "d_ff": shape.d_ff,
            "heads": shape.heads,
            "transformer_layers": shape.layers,
            "window_pages": shape.window_pages,
            "chunks": "page and filler, 1",
        },
    )


def _caches(cache: TieredCache | None) -> str:
    if cache is None:
        return "no cache"
    stores = [f"{store.name} at {store.address}" for store in cache.config.stores]
    memory = f"{cache.memory.pages} chunks in memory" if cache.config.local_cpu else "no memory"
    return ", ".join([memory, *(stores or ["no store"])])
