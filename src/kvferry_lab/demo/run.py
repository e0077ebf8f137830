"""The demo: one process computes KV and stores it, a second one loads it and writes on.

What it shows is measured in this run and checked in this run: tokens, logits and the KV itself must
be equal with and without the cache, and loading must beat computing. `DemoResult.failures` names
whatever was not so. The data in the store belongs to this run alone and is deleted at its end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from kvferry.base.errors import KVFerryError, UsageError
from kvferry.cache.store.store_tiers import space_of
from kvferry.config import ClientConfig
from kvferry.embedded.store import embedded_store
from kvferry.sharing import TieredCache
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.demo.clients import ClientSpeed, compare_clients
from kvferry_lab.demo.demo_prompt import DemoPrompt, load_prompt
from kvferry_lab.demo.demo_reader import ReaderReport
from kvferry_lab.demo.job import DemoJob, chunk_buffers, open_cache, warm_up
from kvferry_lab.output import machine_facts
from kvferry_lab.servers.same_host import tcp_config
from kvferry_lab.transformer import Transformer, TransformerConfig

__all__ = ["SMALL", "DemoResult", "DemoSettings", "run_demo"]

_READER_TIMEOUT_S = 600.0
_STORE_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """A run. `model` gives the shape; its `page_tokens` is the chunk size."""

    store: str = "embedded"
    tokens: int = 3600
    new_tokens: int = 16
    seed: int = 0
    model: TransformerConfig = field(default_factory=TransformerConfig)


SMALL = DemoSettings(
    tokens=1000,
    model=TransformerConfig(layers=4, d_model=256, heads=4, kv_heads=2, d_ff=512, page_tokens=64),
)


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Everything that was measured. Times in seconds, rates in decimal gigabytes per second."""

    settings: DemoSettings
    parameters: int
    machine: dict[str, str | int | float]
    server: str
    sources: list[str]
    chunks: int
    stored_bytes: int
    prefill_s: float
    store_s: float
    tokens: list[int]
    reader: ReaderReport
    clients: list[ClientSpeed]

    @property
    def store_gb_per_s(self) -> float:
        """Speed at which process 1 stored its chunks."""
        return self.stored_bytes / self.store_s / 1e9

    @property
    def load_gb_per_s(self) -> float:
        """Speed at which process 2 loaded the chunks it got."""
        if not self.reader.loaded_chunks:
            return 0.0
        return self.settings.model.page_bytes * self.reader.loaded_chunks / self.reader.load_s / 1e9

    @property
    def speedup(self) -> float:
        """Time to first token without the cache, divided by the time with it."""
        return self.reader.ttft_without_cache_s / self.reader.ttft_with_cache_s

    @property
    def same_tokens(self) -> bool:
        """Whether both processes wrote the same, with and without the cache."""
        r = self.reader
        return self.tokens == r.tokens_with_cache == r.tokens_without_cache

    @property
    def failures(self) -> list[str]:
        """Why this run does not show what it should; empty if it does."""
        r, reasons = self.reader, []
        if r.loaded_chunks < self.chunks:
            causes = [f"wrong {cause}" for cause in r.refused] or [r.missing]
            why = f" ({', '.join(causes)})"
            reasons.append(f"only {r.loaded_chunks} of {self.chunks} chunks came back{why}")
        if r.different_chunks:
            which = ", ".join(map(str, r.different_chunks[:8]))
            reasons.append(f"the store returned other bytes than were computed, in chunk {which}")
        if not self.same_tokens:
            reasons.append("the tokens differ")
        if self.speedup <= 1:
            reasons.append("loading was not faster than computing")
        return reasons

    def as_json(self) -> dict[str, Any]:
        """One object with everything, for programs; without the URL, which may hold a password."""
        result = asdict(self)
        del result["settings"]["store"]
        return result | {
            "store_gb_per_s": self.store_gb_per_s,
            "load_gb_per_s": self.load_gb_per_s,
            "speedup": self.speedup,
            "same_tokens": self.same_tokens,
            "failures": self.failures,
        }


def run_demo(
    settings: DemoSettings,
    progress: Callable[[str], None] = lambda text: None,
    between_processes: Callable[[str, list[str]], None] = lambda url, keys: None,
) -> DemoResult:
    """Run both processes and the comparison of clients.

    Args:
        settings: What to run.
        progress: Called with the name of each step when it begins.
        between_processes: Called with the store's URL and the keys when everything is stored and
            nothing is loaded yet; tests damage chunks here.

    Raises:
        UsageError: The prompt is shorter than a chunk, or longer than the text there is.
        StoreError, UnavailableError: There is no server to talk to.
        KVFerryError: Storing failed, or process 2 did.
    """
    if settings.tokens <= settings.model.page_tokens:
        raise UsageError(
            f"a prompt of {settings.tokens} tokens has no chunk of {settings.model.page_tokens} "
            "with a token left to compute behind it: more tokens, or smaller chunks"
        )
    prompt = load_prompt(settings.tokens)
    with open_store(settings.store) as (url, server, address):
        job = DemoJob(
            url=url,
            model=settings.model,
            seed=settings.seed,
            prompt=prompt.tokens,
            new_tokens=settings.new_tokens,
            run=os.urandom(8).hex(),
        )
        return _run(settings, job, server, address, prompt, progress, between_processes)


def _run(
    settings: DemoSettings,
    job: DemoJob,
    server: str,
    address: ClientConfig,
    prompt: DemoPrompt,
    progress: Callable[[str], None],
    between_processes: Callable[[str, list[str]], None],
) -> DemoResult:
    progress(f"process 1: computing {len(job.prompt):,} tokens")
    model = Transformer(job.model, job.seed)
    warm_up(model, job)
    kv = model.new_cache(job.capacity_tokens)
    start = time.perf_counter()
    first = model.prefill(job.prompt, kv)
    prefill_s = time.perf_counter() - start
    values = chunk_buffers(kv, job.chunks)
    with open_cache(job) as cache:
        cache.contains(job.chunk_tokens[: job.model.page_tokens])  # connect
        try:
            progress(f"process 1: storing {job.chunks} chunks")
            start = time.perf_counter()
            stored = cache.store(job.chunk_tokens, values)
            if stored.chunks < job.chunks or not cache.flush(_STORE_TIMEOUT_S):
                raise KVFerryError("process 1 could not store its chunks: the store is too slow")
            store_s = time.perf_counter() - start
            tokens, _ = model.decode(first, kv, job.new_tokens)
            keys = [f"{space_of(job.identity()).prefix}{key}" for key in cache.keys(job.prompt)]
            between_processes(job.url, keys[: job.chunks])
            progress("process 2: answering with and without the cache")
            reader = _read_in_another_process(job)
        finally:
            _leave_nothing(cache)
    progress("comparing clients")
    clients = list(compare_clients(address, f"demo:{job.run}:", values))
    return DemoResult(
        settings=settings,
        parameters=model.parameters,
        machine=machine_facts(),
        server=server,
        sources=prompt.sources,
        chunks=job.chunks,
        stored_bytes=sum(map(len, values)),
        prefill_s=prefill_s,
        store_s=store_s,
        tokens=tokens,
        reader=reader,
        clients=clients,
    )


def _read_in_another_process(job: DemoJob) -> ReaderReport:
    command = [sys.executable, "-m", "kvferry_lab.demo.demo_reader"]
    done = subprocess.run(
        command, input=job.to_json(), capture_output=True, text=True, timeout=_READER_TIMEOUT_S
    )
    if done.returncode == 130:
        raise KeyboardInterrupt
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise KVFerryError(f"process 2 failed: {last[0]}")
    return ReaderReport(**json.loads(done.stdout))


def _leave_nothing(cache: TieredCache) -> None:
    """The store may be somebody's: what is in it of us goes."""
    for store in cache.tiers:
        connector = store.tier.connector
        for batch in connector.scan():
            connector.batch_delete([key for key, _ in batch])
        connector.undescribe()


@contextmanager
def open_store(store: str) -> Iterator[tuple[str, str, ClientConfig]]:
    """A server's URL, what to call that server without giving a password away, and its address for
    who goes over TCP where it has one.

    Raises:
        ConfigError: `store` is neither "embedded" nor a URL that a client can use.
        StoreError: The embedded store did not start.
        UnavailableError: Nobody answers at the URL.
    """
    if store != "embedded":
        config = ClientConfig.from_url(store)
        yield store, f"{_version(config)} at {config.address}", config
        return
    with embedded_store() as embedded:
        config = tcp_config(embedded)
        yield embedded.url, f"{_version(config)}, embedded, over its Unix socket", config


def _version(config: ClientConfig) -> str:
    with ServerProbe(config) as probe:
        info = probe.info("server")
    kind = "valkey" if "valkey_version" in info else "redis"
    return f"{kind.title()} {info.get(f'{kind}_version', 'of unknown version')}"
