"""The published P2P guide on two real vLLM, as it is typed: what one computed the other reads.

What is ours differs as in the RESP guide's tests: names of programs and connectors. And the memory
of 100 GB, which this machine does not have, is said in the call, which wins over the file.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_lane.install import environment_for, home

from engines.conftest import VllmVenv
from engines.test_resp_guide import START_S, TOKENIZER
from kvferry_lab.engines.engine_process import quiet_environment
from support.own_network import OwnNetwork
from support.servers import wait_for

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

MODEL = "meta-llama/Meta-Llama-3.1-8B-Instruct"
CHUNK = 256
CONFIG = """\
chunk_size: 256
local_cpu: True
max_local_cpu_size: 100
enable_async_loading: True
# P2P configurations
enable_p2p: True
p2p_host: "localhost"
p2p_init_ports: {init}
p2p_lookup_ports: {lookup}
transfer_channel: "nixl"
# Controller configurations
enable_controller: True
lmcache_instance_id: "lmcache_instance_{number}"
controller_pull_url: "localhost:8300"
controller_reply_url: "localhost:8400"
lmcache_worker_ports: {worker}
extra_config:
lookup_backoff_time: 0.001
"""
CONTROLLER = (
    "PYTHONHASHSEED=123 kvferry controller --host localhost --port 9000 "
    '--monitor-ports \'{"pull": 8300, "reply": 8400, "heartbeat": 8082}\''
)
VLLM = """\
PYTHONHASHSEED=123 CUDA_VISIBLE_DEVICES={device} LMCACHE_CONFIG_FILE=example{number}.yaml \\
vllm serve meta-llama/Meta-Llama-3.1-8B-Instruct \\
    --gpu-memory-utilization 0.1 \\
    --port {port} \\
    --kv-transfer-config '{{"kv_connector":"KvferryConnector", "kv_role":"kv_both",
        "kv_connector_extra_config":{{"kvferry.max_local_cpu_size":0.25}}}}'"""
SENTENCE = "Explain the significance of KV cache in language models."
REQUEST = """\
curl -s -X POST http://localhost:{port}/v1/completions \\
  -H "Content-Type: application/json" \\
  -d "{{
\\"model\\": \\"meta-llama/Meta-Llama-3.1-8B-Instruct\\",
\\"prompt\\": \\"$(printf '{sentence}%.0s' {{1..100}})\\",
\\"max_tokens\\": 10
}}"
"""


@pytest.fixture
def network(
    newest_vllm: VllmVenv, model: Callable[..., Path], tmp_path: Path
) -> Iterator[OwnNetwork]:
    folder = tmp_path / MODEL
    shutil.copytree(model("tiny"), folder)
    command = [str(newest_vllm.python), "-c", TOKENIZER, str(folder / "tokenizer.json")]
    subprocess.run(command, check=True, timeout=120)
    for number, ports in ((1, (8200, 8201, 8500)), (2, (8202, 8203, 8501))):
        init, lookup, worker = ports
        text = CONFIG.format(number=number, init=init, lookup=lookup, worker=worker)
        (tmp_path / f"example{number}.yaml").write_text(text)
    kept = environment_for(newest_vllm.python)
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    kept["VLLM_CACHE_ROOT"] = str(home() / "cache")
    with OwnNetwork(tmp_path, quiet_environment(kept, one_process=False)) as network:
        yield network


def ask(network: OwnNetwork, port: int) -> dict[str, object]:
    request = REQUEST.format(port=port, sentence=SENTENCE)
    answer = json.loads(network.run(request, limit_s=600))
    assert isinstance(answer, dict)
    return answer


def hits(network: OwnNetwork, port: int) -> int:
    said = network.run(f"curl -s http://localhost:{port}/metrics")
    found = re.findall(r"^vllm:external_prefix_cache_hits_total\{.*\} ([\d.e+]+)$", said, re.M)
    return int(sum(map(float, found)))


def held(network: OwnNetwork, port: int) -> int:
    """Chunks that an instance lends."""
    return int(network.run(f"redis-cli -p {port} dbsize"))


def test_two_instances(network: OwnNetwork) -> None:
    controller = network.start(CONTROLLER, "controller")
    controller.says("9000", 60)
    engines = [
        network.start(VLLM.format(device=number - 1, number=number, port=port), f"vllm{number}")
        for number, port in ((1, 8010), (2, 8011))
    ]
    for engine in engines:
        engine.says("Application startup complete", START_S)
    first = ask(network, 8010)
    usage = first["usage"]
    assert isinstance(usage, dict)
    tokens = usage["prompt_tokens"]
    loaded = tokens // CHUNK * CHUNK
    assert loaded > 2 * CHUNK
    wait_for("its chunks are lent", lambda: held(network, 8200) == loaded // CHUNK, 60)
    lookup = network.run(
        "curl -s -X POST http://localhost:9000/query_worker_info "
        "-H 'Content-Type: application/json'"
        ' -d \'{"instance_id": "lmcache_instance_1", "worker_ids": [0]}\''
    )
    assert "8200" in lookup, lookup
    second = ask(network, 8011)
    assert second["choices"] == first["choices"] or second["usage"] == first["usage"]
    assert hits(network, 8011) == loaded
    log = engines[1].log
    assert (
        "Established connection to peer_init_url localhost:8200. "
        "The peer_lookup_url: localhost:8201" in log
    )
    assert re.search(
        rf"Retrieved {loaded} out of {tokens} tokens \(peer lmcache_instance_1 {loaded}\)", log
    ), log[-3000:]
    for engine in engines:
        assert not [
            line for line in engine.log.splitlines() if "kvferry" in line and "WARN" in line
        ]
