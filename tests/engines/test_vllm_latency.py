"""`kvferry lab latency` against a real vLLM behind each of our doors: what waits for the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engines.conftest import VllmVenv
from engines.doors import DOORS
from kvferry.cli.main import main
from kvferry.lab.engines.server import EngineServer
from kvferry.lab.latency.figures import read_rows
from kvferry.lab.servers.server import free_port
from support.servers import TestServer

OPTIONS = ("--no-enable-prefix-caching", "--enable-prompt-tokens-details")
RTT_MS = "0,100"


@pytest.mark.engines
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("door", "workload"),
    # The other doors have memory of their own in front of the store, which would have all hits.
    [("connector", "miss"), ("mp", "miss"), ("tier", "miss"), ("connector", "hit")],
)
def test_a_miss_waits_for_nothing_and_a_hit_for_one_round_trip(
    door: str,
    workload: str,
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    serve_engine: Callable[..., EngineServer],
    store: TestServer,
    tmp_path: Path,
) -> None:
    port = free_port()
    (folder := tmp_path / "door").mkdir()
    far = f"redis://127.0.0.1:{port}?same_host=tcp"
    settings = {"local_cpu": False} if workload == "hit" else {}
    with (
        DOORS[door].behind(far, folder, newest_vllm.version, **settings) as transfer,
        serve_engine(newest_vllm, model("tiny"), transfer, *OPTIONS) as engine,
    ):
        words = [
            *("--base-url", f"{engine.url}/v1", "--store", store.url, "--listen", str(port)),
            *("--rtt-ms", RTT_MS, "--workloads", workload, "--prompt-tokens", "1000"),
            *("--concurrency", "1", "--requests", "4", "--output-tokens", "4", "--no-plot"),
        ]
        assert main(["lab", "latency", *words, "--results-dir", str(tmp_path / "result")]) == 0
    near, distant = read_rows(tmp_path / "result" / "latency.json")
    print(door, workload, near, distant, sep="\n")
    assert distant.waits == (1 if workload == "hit" else 0)
    assert (distant.hit_share or 0.0) >= (0.9 if workload == "hit" else 0.0)
