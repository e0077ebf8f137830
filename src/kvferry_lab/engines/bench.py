"""What a cache is worth to a real vLLM: the time to the first token, cold and from the store.

    plan = EnginePlan(python=python, model=model, integrations="none,mp")
    rows = run(plan, say=print)

For each round and each integration in turn: an empty store, a new engine, the prompts of this round
one after the other ("cold"), all of them again ("again": from the engine's own cache), once more
when that was emptied ("memory": from the integration's memory of the host), then its end, and
another new engine with the same prompts ("warm"). What the last one does not compute came out of
the store. All integrations get the same prompts, each round others, and the order of the
integrations turns by one with each round.

A wrong answer is counted, and makes a row worthless. Right is what an engine says that computes as
much: arithmetic of 16 bits rounds a token that is computed alone unlike one that is computed with
others, and where two answers are nearly as likely that decides. So an answer with as many tokens
from a cache as "again" had from the engine's own is compared with that, any other with the cold
one. Prompts are one token longer than was asked for: whole blocks are what every cache can hold.

The engines are real and so are the waits: a round takes minutes. Threads: the caller's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import click

from kvferry.base.errors import UsageError
from kvferry.base.host import usable_cores
from kvferry.embedded.program import ServerBinary, find_server
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.cli.options import REQUIRED, option
from kvferry_lab.engines.engine_process import EngineProcess, Generated
from kvferry_lab.engines.integrations import (
    INTEGRATIONS,
    IntegrationSetting,
    OpenIntegration,
    open_integration,
)
from kvferry_lab.servers.lab_server import LabServer

__all__ = ["WORDS", "EnginePlan", "EngineRow", "Pass", "attempted", "open_engine", "run"]

_QUIET_S = 1.5  # nothing new in the store for so long: it is all there
_QUIET_WITHIN_S = 60.0
WORDS = range(300, 2000)  # token ids
_TICK = [5, 6, 7]
_PASSES = ("cold", "again", "memory", "warm")


_PATH = click.Path(exists=True, path_type=Path)


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """What to measure. A prompt has one token more than is said."""

    python: Path = option(REQUIRED, "Interpreter of vLLM's environment.", kind=_PATH)
    model: Path = option(REQUIRED, "Folder of the model.", kind=_PATH)
    integrations: str = option("none,tier,connector,mp", "Which ones, in this order.")
    rival_python: Path | None = option(
        None, "The interpreter of vLLM with LMCache, to compare it too.", kind=_PATH
    )
    store: Path | None = option(None, "Server program.  [default: the wheel's Valkey]", kind=_PATH)
    prompt_tokens: int = option(4096, "Length of a prompt.")
    prompts: int = option(2, "Prompts in a round.")
    answer_tokens: int = option(16, "Length of an answer.")
    rounds: int = option(2, "How often all is repeated.")
    chunk_tokens: int = option(256, "Tokens of a chunk.")
    block_size: int = option(128, "The block size of vLLM.")
    memory_gb: float = option(0.5, "Host memory of a cache.", above=0)
    dtype: str = option("bfloat16", "The type of vLLM's numbers.")
    threads: int | None = option(None, "Threads of the engine.  [default: all cores]")
    one_process: bool = option(False, "Run the engine core in vLLM's process, which starts sooner.")
    tier_spec: str = option("", "Class of the tier's spec, in the place of vLLM's: MODULE:NAME.")
    module_path: tuple[Path, ...] = option(
        (), "Where that module is.", kind=_PATH, multiple=True, like=""
    )

    def __post_init__(self) -> None:
        unknown = set(self.names) - set(INTEGRATIONS)
        if unknown or ("lmcache" in self.names and not self.rival_python):
            raise UsageError(f"no such integration, or no --rival-python for it: {sorted(unknown)}")

    @property
    def names(self) -> list[str]:
        """The integrations to compare."""
        names = self.integrations.split(",")
        return [*names, *(["lmcache"] if self.rival_python and "lmcache" not in names else [])]

    @property
    def server(self) -> ServerBinary:
        """The server program.

        Raises:
            StoreError: There is none.
        """
        return find_server(self.store)

    def asked(self, turn: int) -> list[list[int]]:
        """The prompts of a round."""
        draw = Random(f"kvferry {turn}")
        return [draw.choices(WORDS, k=self.prompt_tokens + 1) for _ in range(self.prompts)]

    def setting(self, integration: str, port: int) -> IntegrationSetting:
        """The settings of an integration over the store at a port."""
        python = (self.rival_python if integration == "lmcache" else None) or self.python
        paths = [str(path.absolute()) for path in self.module_path]
        own = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        own["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [own.get("PYTHONPATH")])])
        own["PATH"] = f"{python.absolute().parent}{os.pathsep}{own.get('PATH', os.defpath)}"
        module, _, spec = self.tier_spec.rpartition(":")
        return IntegrationSetting(
            store_port=port,
            python=python.absolute(),
            environment=own,
            chunk_tokens=self.chunk_tokens,
            memory_gb=self.memory_gb,
            tier_spec=(spec, module or None) if spec else None,
        )


@dataclass(frozen=True)
class Pass:
    """One engine's run over the prompts: seconds, and what came from elsewhere."""

    ttft_s: list[float]
    seconds: list[float]
    cached: list[int]
    store_bytes: int
    tokens: list[list[int]]


@dataclass
class EngineRow:
    """One integration, over all rounds. Times are medians."""

    integration: str
    cold: list[Pass] = field(default_factory=list)
    again: list[Pass] = field(default_factory=list)
    memory: list[Pass] = field(default_factory=list)
    warm: list[Pass] = field(default_factory=list)
    wrong_answers: int = 0
    error: str = ""

    def ttft_s(self, which: str) -> float | None:
        """Median of "cold", "again", "memory" or "warm"."""
        return _median(value for one in getattr(self, which) for value in one.ttft_s)

    def e2e_s(self, which: str) -> float | None:
        """The same of whole answers."""
        return _median(value for one in getattr(self, which) for value in one.seconds)

    def hit_tokens(self) -> float | None:
        """Prompt tokens that a warm request did not compute."""
        return _median(value for one in self.warm for value in one.cached)

    def stored_bytes(self) -> float | None:
        """The bytes that one cold pass wrote to the store."""
        return _median(one.store_bytes for one in self.cold)

    def loaded_bytes(self) -> float | None:
        """The bytes that one warm pass read from the store."""
        return _median(one.store_bytes for one in self.warm)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: medians, and all that they are made of."""
        return {
            "integration": self.integration,
            **{f"ttft_{which}_s": self.ttft_s(which) for which in _PASSES},
            **{f"e2e_{which}_s": self.e2e_s(which) for which in ("cold", "warm")},
            "hit_tokens": self.hit_tokens(),
            "stored_bytes": self.stored_bytes(),
            "loaded_bytes": self.loaded_bytes(),
            "wrong_answers": self.wrong_answers,
            "error": self.error,
            "passes": {
                which: [
                    {name: value for name, value in asdict(one).items() if name != "tokens"}
                    for one in getattr(self, which)
                ]
                for which in _PASSES
            },
        }

    def count_wrong_answers(self, turn: int, cold: Pass, again: Pass) -> None:
        """Of the latest round, beside what an engine said in it; see the head of this module."""
        passes = (self.cold, self.again, self.memory, self.warm)
        for one in (one for each in passes for one in each[turn:]):
            for index, tokens in enumerate(one.tokens):
                alike = one.cached[index] == again.cached[index]
                self.wrong_answers += tokens != (again if alike else cold).tokens[index]


def run(plan: EnginePlan, say: Callable[[str], None]) -> list[EngineRow]:
    """Measure; one that fails has its reason in its row, and is left out from then on."""
    names = plan.names
    rows = {integration: EngineRow(integration) for integration in names}
    with LabServer(plan.server, ["maxmemory 8gb"]) as server:
        for turn in range(plan.rounds):
            first = turn % len(names)
            for integration in names[first:] + names[:first]:
                row = rows[integration]
                if row.error:
                    continue
                say(f"round {turn + 1} of {plan.rounds}: {integration}")
                done = attempted(partial(_measure, plan, integration, turn, server, row), say)
                row.error = done.get("error", "")
            told = [row for row in rows.values() if len(row.again) > turn]
            for row in told:  # a cold answer was computed, whatever its integration
                row.count_wrong_answers(turn, told[0].cold[turn], told[0].again[turn])
    return list(rows.values())


def attempted(measure: Callable[[], dict[str, Any]], say: Callable[[str], None]) -> dict[str, Any]:
    """What is measured, or why it cannot be, as its ``error``: the others are measured all the
    same."""
    try:
        return measure()
    except Exception as error:
        say(text := f"{type(error).__name__}: {error}")
        return {"error": text}


def _measure(
    plan: EnginePlan, integration: str, turn: int, server: LabServer, row: EngineRow
) -> dict[str, Any]:
    """Add the passes of a round to a row."""
    with ServerProbe(server.config) as probe:
        probe.command("FLUSHALL")
        for which, counter in (
            ("cold", "total_net_input_bytes"),
            ("warm", "total_net_output_bytes"),
        ):
            with open_engine(plan, integration, server.port) as (engine, _):
                engine.generate([Random(turn).choices(WORDS, k=plan.block_size - 1)], 4)
                before = _count(probe, counter)
                asked = plan.asked(turn)
                said = _ask(engine, asked, plan.answer_tokens)
                if integration != "none":
                    _await_quiet(engine, probe)
                moved = _count(probe, counter) - before if integration != "none" else 0
                getattr(row, which).append(_pass(said, moved))
                if which == "cold":
                    row.again.append(_pass(_ask(engine, asked, plan.answer_tokens), 0))
                    if integration != "none":
                        engine.forget()
                        row.memory.append(_pass(_ask(engine, asked, plan.answer_tokens), 0))
    return {}


def _ask(engine: EngineProcess, prompts: list[list[int]], tokens: int) -> list[Generated]:
    return [engine.generate([prompt], tokens) for prompt in prompts]


def _pass(said: list[Generated], moved: int) -> Pass:
    outputs = [one.outputs[0] for one in said]
    return Pass(
        [one.outputs[0].ttft_s or one.seconds for one in said],
        [one.seconds for one in said],
        [output.cached for output in outputs],
        moved,
        [output.tokens for output in outputs],
    )


@contextmanager
def open_engine(
    plan: EnginePlan, integration: str, port: int
) -> Iterator[tuple[EngineProcess, OpenIntegration]]:
    """A new engine behind an integration, over the store at a port."""
    setting = plan.setting(integration, port)
    engine = {
        "model": str(plan.model.absolute()),
        "dtype": plan.dtype,
        "enforce_eager": True,
        "block_size": plan.block_size,
        "max_model_len": plan.prompt_tokens + plan.answer_tokens + plan.block_size,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "seed": 0,
    }
    with open_integration(integration, setting) as opened:
        if opened.transfer:
            engine["kv_transfer_config"] = opened.transfer
        with EngineProcess(
            setting.python,
            engine,
            setting.environment,
            one_process=plan.one_process,
            threads=plan.threads or usable_cores(),
        ) as process:
            yield process, opened


def _await_quiet(engine: EngineProcess, probe: ServerProbe) -> None:
    """Wait until nothing more goes into the store; engines work only while they have requests."""
    end = time.monotonic() + _QUIET_WITHIN_S
    seen, since = -1, time.monotonic()
    while time.monotonic() < min(end, since + _QUIET_S):
        engine.generate([_TICK], 1)
        time.sleep(0.1)
        held = probe.command("DBSIZE")
        if held != seen:
            seen, since = int(str(held)), time.monotonic()


def _count(probe: ServerProbe, counter: str) -> int:
    return int(probe.info("stats")[counter])


def _median(values: Iterator[float]) -> float | None:
    known = list(values)
    return median(known) if known else None
