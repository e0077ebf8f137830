"""One integration of one vLLM with a store behind a proxy: what the scenarios run on.

    lane.writer                  an engine that fills the store; lane.ask(name) completes a prompt
    lane.reader                  another process, opened after the writer has ended
    lane.keys(name)              the keys of a prompt's chunks
    lane.right(name)             what an engine without cache says to it
    lane.recover()               heal what a test broke, and wait until chunks are stored again

Engines start in 15 s or more, so all scenarios of an integration share two. Each has a prompt of
its own, which nobody else asks for, so that its chunks are in the store and in no memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from engines.conftest import OLDEST, VllmVenv, prompt
from engines.integrations import CHUNK, Integration
from engines.stored import frames, quiet, settle
from kvferry_lab.engines.engine_process import EngineProcess, Generated, Output
from support.proxy import FaultProxy
from support.servers import TestServer, start_server

CHUNKS = 21
TOKENS = CHUNK * CHUNKS + 9
SAID = 12  # tokens of an answer
RECOVERY_S = 60.0
# What a fault may add: a lookup's patience, a retrieve's limit, and the cores of a busy machine.
FAULT_LIMIT_S = 40.0


@dataclass
class Lane:
    """See this module's comment."""

    vllm: VllmVenv
    integration: Integration
    model: Path
    folder: Path
    open_engine: Callable[..., EngineProcess]
    plain: EngineProcess
    stack: ExitStack
    prompts: dict[str, list[int]]
    store: TestServer = field(init=False)
    proxy: FaultProxy = field(init=False)
    cold: dict[str, Output] = field(default_factory=dict)  # by `keys`
    _engine: EngineProcess | None = None
    _is_reader: bool = False
    _keys: dict[str, list[bytes]] = field(default_factory=dict)
    _right: dict[str, Output] = field(default_factory=dict)
    _life: ExitStack = field(default_factory=ExitStack)
    _strangers: int = 1_000_000

    def __post_init__(self) -> None:
        self.stack.callback(lambda: self._life.close())
        self.store = self.stack.enter_context(start_server("valkey"))
        self.proxy = self.stack.enter_context(FaultProxy(self.store.host, self.store.port))

    @property
    def writer(self) -> EngineProcess:
        """The first engine."""
        assert not self._is_reader, "a scenario of the writer stands behind one of the reader"
        if self._engine is None:
            self._engine = self._open("writer")
        return self._engine

    @property
    def reader(self) -> EngineProcess:
        """The second one. Every prompt is in the store by then."""
        if not self._is_reader:
            for name in self.prompts:
                self.keys(name)
            self._life.close()
            self._life = ExitStack()
            self._engine = self._open("reader")
            self._is_reader = True
        assert self._engine is not None
        return self._engine

    def ask(self, name: str) -> Output:
        """Complete a prompt by the engine that is there."""
        engine = self._engine or self.writer
        return engine.generate([self.prompts[name]], SAID).outputs[0]

    def keys(self, name: str) -> list[bytes]:
        """The keys of a prompt's chunks; the writer stores them if it has not."""
        if name not in self._keys:
            before = quiet(self.writer, self.store)
            self.cold[name] = self.writer.generate([self.prompts[name]], SAID).outputs[0]
            self._keys[name] = sorted(settle(self.writer, self.store, before, CHUNKS))
        return self._keys[name]

    def right(self, name: str) -> Output:
        """What an engine without cache says."""
        if name not in self._right:
            self.plain.forget()
            self._right[name] = self.plain.generate([self.prompts[name]], SAID).outputs[0]
        return self._right[name]

    def right_of(self, prompts: list[list[int]], tokens: int = SAID) -> Generated:
        """The same for a batch."""
        self.plain.forget()
        return self.plain.generate(prompts, tokens)

    def hits(self) -> float:
        """Tokens that the engine did not compute because of us, as it says itself.

        0.22.1 forgets them where the step that began the load computed nothing.
        """
        assert self._engine is not None
        if self.vllm.version == OLDEST:
            return float("inf")
        return self._engine.metrics()["vllm:external_prefix_cache_hits"]

    def recover(self) -> None:
        """After a fault: all is well again when a new prompt's chunks arrive at the store."""
        self.proxy.heal()
        assert self._engine is not None
        deadline = time.monotonic() + RECOVERY_S
        before = frames(self.store)
        while not frames(self.store) - before:
            assert time.monotonic() < deadline, "nothing is stored after the fault"
            self._strangers += 1
            self._engine.generate([prompt(2 * CHUNK + 1, self._strangers)], 1)
            time.sleep(0.2)

    def _open(self, name: str) -> EngineProcess:
        folder = self.folder / name
        folder.mkdir()
        url = self.proxy.url
        transfer = self._life.enter_context(self.integration.behind(url, folder, self.vllm.version))
        return self.open_engine(self._life, self.vllm, self.model, transfer)
