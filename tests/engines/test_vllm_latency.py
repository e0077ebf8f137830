"""`kvferry lab latency` against a real vLLM behind each integration: what waits for the store.

A miss waits for nothing once the presence view is there. It begins anew when a connection to the
store breaks, as on a machine that lets nobody run for seconds: in the three round trips after that
a miss asks. The wire says so, and then there is no verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engines.conftest import VllmVenv
from engines.integrations import INTEGRATIONS
from kvferry.cli.main import main
from kvferry_lab.engines.vllm_server import EngineServer
from kvferry_lab.latency.cell_figures import read_rows
from kvferry_lab.latency.experiment import SentCommand, read_commands
from kvferry_lab.servers.lab_server import free_port
from support.servers import TestServer

OPTIONS = ("--no-enable-prefix-caching", "--enable-prompt-tokens-details")
RTT_MS = "0,100"


@pytest.mark.engines
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("integration", "workload"),
    # The others have memory of their own in front of the store, which would have all hits.
    [("connector", "miss"), ("mp", "miss"), ("tier", "miss"), ("connector", "hit")],
)
def test_a_miss_waits_for_nothing_and_a_hit_for_one_round_trip(
    integration: str,
    workload: str,
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    serve_engine: Callable[..., EngineServer],
    store: TestServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wires: list[str] = []  # all that was sent, up to the end of each cell

    def reading(log: Path) -> list[SentCommand]:
        wires.append(log.read_text(errors="replace"))
        return read_commands(log)

    monkeypatch.setattr("kvferry_lab.latency.experiment.read_commands", reading)
    port = free_port()
    (folder := tmp_path / "integration").mkdir()
    far = f"redis://127.0.0.1:{port}?same_host=tcp"
    settings = {"local_cpu": False} if workload == "hit" else {}
    with (
        INTEGRATIONS[integration].behind(far, folder, newest_vllm.version, **settings) as transfer,
        serve_engine(newest_vllm, model("tiny"), transfer, *OPTIONS) as engine,
    ):
        words = [
            *("--base-url", f"{engine.url}/v1", "--store", store.url, "--listen", str(port)),
            *("--rtt-ms", RTT_MS, "--workloads", workload, "--prompt-tokens", "1000"),
            *("--concurrency", "1", "--requests", "4", "--output-tokens", "4", "--no-plot"),
        ]
        assert main(["lab", "latency", *words, "--results-dir", str(tmp_path / "result")]) == 0
    near, distant = read_rows(tmp_path / "result" / "latency.json")
    print(integration, workload, near, distant, sep="\n")
    assert (distant.hit_share or 0.0) >= (0.9 if workload == "hit" else 0.0)
    if workload == "hit":
        assert distant.waits == 1
        return
    assert (distant.waits or 0) <= 1, "what a miss waits for without a view"
    begun = [wire.count(" CLIENT TRACKING\n") for wire in wires]
    if distant.waits and begun[0] != begun[1]:
        pytest.skip(f"no verdict: views that began until the end of each cell: {begun}")
    asked = [line for line in wires[1].splitlines() if " SET " not in line]
    assert distant.waits == 0, "\n".join(asked[-200:])
