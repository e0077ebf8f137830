"""The published long-document run at scale, over memory and over Valkey: what a cache must keep.

Documents are 40,000 tokens long as published; there are fewer of them, and their KV is small.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.main import main
from support.serve_demo import DemoServer
from support.servers import start_server

CHUNKS = (40_000 - 1) // 256
BYTES_PER_TOKEN = 640
SHARE_IN_FULL_CHUNKS = CHUNKS * 256 / 40_000

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]


def chunks_gb(count: int) -> float:
    return count * BYTES_PER_TOKEN * 256 / (1 << 30)


def measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], documents: int, pace: int, **config: Any
) -> Any:
    arguments = ("--bytes-per-token", BYTES_PER_TOKEN, "--prefill-tokens-per-s", pace)
    more = ("--decode-tokens-per-s", 1000)
    with DemoServer(tmp_path, *map(str, (*arguments, *more)), config=config) as server:
        words = (
            *("--preset", "published", "--scale", documents / 40, "--output-len", 8, "--json"),
            *("--completions", "--max-inflight-requests", 1, "--results-dir", tmp_path),
            *("--base-url", f"{server.url}/v1"),
        )
        capsys.readouterr()
        assert main(["lab", "long-doc-qa", *map(str, words)]) == 0
        assert server.counted("wrong_chunks_total") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("where", ["memory", "valkey"])
def test_a_store_that_fits_hits_all_but_the_first_round_and_partial_chunks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    with start_server("valkey") as store:
        if where == "memory":
            config: dict[str, Any] = {"max_local_cpu_size": chunks_gb(4 * CHUNKS + 8)}
        else:
            config = {"max_local_cpu_size": chunks_gb(CHUNKS + 30), "remote_url": store.url}
        said = measure(tmp_path, capsys, 4, 15_000, **config)
    assert said["hits"]["rate"] >= 0.998 * 2 / 3 * SHARE_IN_FULL_CHUNKS
    assert said["round_of_recompute"] <= 0.6
    assert said["all_of_recompute"] <= 0.6


def test_a_store_a_tenth_too_small_keeps_half_of_what_is_asked_again_where_lru_keeps_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {}
    for policy in ("LRU", "W-TinyLFU"):
        said = measure(
            *(tmp_path / policy, capsys, 10, 100_000),
            max_local_cpu_size=chunks_gb(10 * CHUNKS * 9 // 10),
            eviction_policy=policy,
        )
        hits = said["hits"]
        kept[policy] = hits["hit"] / (hits["asked"] - hits["new"])
        lost = hits["new"] + hits["partial"] + hits["capacity"] + hits["order"]
        assert lost + hits["hit"] == hits["asked"]
    assert kept["LRU"] == 0
    assert kept["W-TinyLFU"] >= 0.45
