"""The published RESP guide on a real vLLM, as it is typed: the second request is a hit.

Both modes, with and without credentials. All of a scenario runs in a network of its own, at the
ports of the guide, in a folder that holds a small model under the name of the guide's. What of the
guide needs no engine is in tests/guides.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_lane.install import environment_for, home

from engines.conftest import VllmVenv
from kvferry.base.host import available_memory_bytes
from kvferry_lab.engines.engine_process import quiet_environment
from support import resp_guide as guide
from support.own_network import OwnNetwork, Running
from support.secrets import register
from support.servers import wait_for

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

TRIES = 5
START_S = 900  # of a vLLM on a machine that has other work
# The guide's 5 GB of memory are refused where they are not free, and vLLM takes some before.
FREE_BYTES, FREE_WITHIN_S = 9 << 30, 120
SECRET = "the-secret-of-the-guide"
# The guide's prompt has ten tokens in each sentence for the guide's model; so it has for ours.
TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
made = Tokenizer(models.BPE())
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=2048,
    special_tokens=["<s>", "</s>", "<user>", "<model>", "<end>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
sentence = "Elaborate the significance of KV cache in language models. "
made.train_from_iterator([10 * sentence], trainer)
made.save(sys.argv[1])
"""
TOKENS = 10_001
CHUNK = 128  # the block of vLLM on a CPU; the guide's 16 is rounded up to it
LOADED = TOKENS // CHUNK * CHUNK


@pytest.fixture
def network(
    newest_vllm: VllmVenv, model: Callable[..., Path], tmp_path: Path
) -> Iterator[OwnNetwork]:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on PATH")
    try:
        wait_for("memory", lambda: available_memory_bytes() > FREE_BYTES, FREE_WITHIN_S)
    except TimeoutError:
        pytest.skip("this machine's memory is taken by others")
    folder = tmp_path / guide.MODEL
    shutil.copytree(model("tiny"), folder)
    command = [str(newest_vllm.python), "-c", TOKENIZER, str(folder / "tokenizer.json")]
    subprocess.run(command, check=True, timeout=120)
    (tmp_path / "resp-config.yaml").write_text(guide.CONFIG_FILE)
    kept = environment_for(newest_vllm.python)
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    kept["VLLM_CACHE_ROOT"] = str(home() / "cache")
    kept["KVFERRY_PREFAULT"] = "false"  # 10 GB of this machine's memory are not ours to take
    with OwnNetwork(tmp_path, quiet_environment(kept, one_process=False)) as network:
        yield network


def redis(network: OwnNetwork, secret: str) -> str:
    """Start the store of the guide; how its client is called."""
    protected = f"{guide.REDIS} --requirepass {secret}" if secret else guide.REDIS
    network.start(protected, "redis").says("Ready to accept connections", 60)
    return f"redis-cli --no-auth-warning -a {secret}" if secret else "redis-cli"


def count(network: OwnNetwork, client: str) -> int:
    """The guide's look at the store."""
    return int(network.run(guide.COUNT.replace("redis-cli", client)))


def hits(network: OwnNetwork) -> int:
    """Tokens that vLLM says it did not compute because of us."""
    said = network.run("curl -s http://localhost:8000/metrics")
    found = re.findall(r"^vllm:external_prefix_cache_hits_total\{.*\} ([\d.e+]+)$", said, re.M)
    return int(sum(map(float, found)))


def hit(network: OwnNetwork) -> None:
    """The second request. A request waits 40 ms for an answer, which takes longer here at times."""
    before = hits(network)
    for _ in range(TRIES):
        network.run(guide.REQUEST, limit_s=600)
        if hits(network) > before:
            return
    raise AssertionError(f"no hit in {TRIES} requests")


def variables(secret: str) -> str:
    register(SECRET)
    return guide.CREDENTIALS.replace('"secret"', f'"{secret}"') if secret else ""


def asked_twice(network: OwnNetwork, engine: Running, client: str) -> None:
    """The guide's test of the setup."""
    engine.says("Application startup complete", START_S)
    assert count(network, client) <= 1  # the names of identities
    first = json.loads(network.run(guide.REQUEST, limit_s=600))
    assert first["usage"]["prompt_tokens"] == TOKENS
    assert hits(network) == 0
    wait_for("all chunks in Redis", lambda: count(network, client) > LOADED // CHUNK, 60)
    hit(network)
    assert hits(network) == LOADED
    assert engine.log.count("chunk_size 16 is no multiple of vLLM's block") == 1
    assert not [line for line in engine.log.splitlines() if "kvferry" in line and "WARN" in line]


def cleared(network: OwnNetwork, client: str) -> None:
    assert network.run(guide.CLEAR.replace("redis-cli", client)) == "OK\n"
    assert count(network, client) == 0


@pytest.mark.parametrize("secret", ["", SECRET], ids=["open", "credentials"])
def test_non_mp_mode(network: OwnNetwork, secret: str) -> None:
    client = redis(network, secret)
    engine = network.start(variables(secret) + guide.ours(guide.VLLM), "vllm")
    asked_twice(network, engine, client)
    assert SECRET not in engine.log
    cleared(network, client)
    assert engine.end(signal.SIGINT) in (0, -signal.SIGINT, 130)


@pytest.mark.parametrize("secret", ["", SECRET], ids=["open", "credentials"])
def test_mp_mode(network: OwnNetwork, secret: str) -> None:
    client = redis(network, secret)
    text = guide.ours(guide.SERVER_EVICTION if secret else guide.SERVER)
    server = network.start(variables(secret) + text, "server")
    server.says("ready, engines at tcp://127.0.0.1:6555", 60)
    engine = network.start(guide.ours(guide.VLLM_MP), "vllm")
    asked_twice(network, engine, client)
    # Another server has nothing in memory, and finds it in Redis.
    assert server.end() == 0
    again = network.start(variables(secret) + text, "server")
    again.says("has chunks of 128 tokens", 60)
    hit(network)
    assert hits(network) == 2 * LOADED
    said = network.run("curl -s http://localhost:8080/metrics")
    assert re.search(rf'^kvferry_tokens_hit_total{{.*tier="redis"}} {LOADED}\.0$', said, re.M), said
    for each in (server, again):
        assert "WARNING" not in each.log
        assert SECRET not in each.log
    cleared(network, client)
