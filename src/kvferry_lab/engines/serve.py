"""`vllm bench serve --dataset-name prefix_repetition` against each integration, as others measure.

Each integration's server is started twice over the same store: first it is empty, then it has what
the first one stored. The load generator is vLLM's own, of the engine's environment.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.base.host import usable_cores
from kvferry.cli.table import number, table
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.engines.bench import EnginePlan, attempted
from kvferry_lab.engines.engine_process import EngineError, quiet_environment
from kvferry_lab.engines.integrations import open_integration
from kvferry_lab.engines.vllm_server import EngineServer
from kvferry_lab.servers.lab_server import LabServer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run_serve_bench", "say_serve_rows"]

_SUFFIX_TOKENS = 128
_REQUESTS_A_PREFIX = 2
_LIMIT_S = 1800
_TAKEN = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "request_throughput", "completed")


def run_serve_bench(plan: EnginePlan, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure; one object for each integration and pass. One that fails has an ``error``."""
    rows = []
    with LabServer(plan.server, ["maxmemory 8gb"]) as store:
        for integration in plan.names:
            with ServerProbe(store.config) as probe:
                probe.command("FLUSHALL")
            for which in ("empty store", "full store"):
                say(f"vllm bench serve: {integration}, {which}")
                found = attempted(partial(_one, plan, integration, store.port), say)
                rows.append({"integration": integration, "store": which, **found})
    return rows


def say_serve_rows(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """A table for people."""
    cells = [
        [
            *(row["integration"], row["store"], *(number(row.get(name), 1) for name in _TAKEN)),
            number(row.get("hit_tokens"), 0),
        ]
        for row in rows
    ]
    columns = ("integration", "store", "mean TTFT ms", "p99 TTFT ms", "mean TPOT ms", "requests/s")
    console.print(table((*columns, "completed", "hit tokens"), cells))


def _one(plan: EnginePlan, integration: str, store_port: int) -> dict[str, Any]:
    setting = plan.setting(integration, store_port)
    arguments = [
        *(str(plan.model.absolute()), "--dtype", plan.dtype, "--enforce-eager", "--seed", "0"),
        *("--block-size", str(plan.block_size), "--max-num-seqs", "4"),
        *("--max-model-len", str(plan.prompt_tokens + _SUFFIX_TOKENS + 256)),
        *("--max-num-batched-tokens", "2048"),
    ]
    with open_integration(integration, setting) as opened:
        if opened.transfer:
            arguments += ["--kv-transfer-config", json.dumps(opened.transfer)]
        command = setting.python.with_name("vllm")
        with EngineServer(
            command, arguments, setting.environment, threads=plan.threads or usable_cores()
        ) as server:
            found = _load(plan, command, setting.environment, server.url)
            hits = server.metrics().get("vllm:external_prefix_cache_hits_total", 0.0)
            return {**found, "hit_tokens": hits}


def _load(plan: EnginePlan, command: Path, environment: Any, url: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as folder:
        words = [
            *(str(command), "bench", "serve", "--backend", "openai", "--base-url", url),
            *("--model", "model", "--tokenizer", str(plan.model.absolute()), "--seed", "1"),
            *("--dataset-name", "prefix_repetition", "--ignore-eos", "--max-concurrency", "2"),
            *("--num-prompts", str(plan.prompts * _REQUESTS_A_PREFIX)),
            *("--prefix-repetition-num-prefixes", str(plan.prompts)),
            *("--prefix-repetition-prefix-len", str(plan.prompt_tokens - _SUFFIX_TOKENS)),
            *("--prefix-repetition-suffix-len", str(_SUFFIX_TOKENS)),
            *("--prefix-repetition-output-len", str(plan.answer_tokens)),
            *("--save-result", "--result-dir", folder, "--result-filename", "result.json"),
        ]
        done = subprocess.run(
            words,
            env=quiet_environment(environment, one_process=False),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        if done.returncode:
            raise EngineError("vllm bench serve: " + done.stderr.strip()[-800:])
        result = json.loads(Path(folder, "result.json").read_text())
    return {name: result.get(name) for name in _TAKEN}
