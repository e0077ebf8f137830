"""deploy/latency-lab: what its scripts tell tc, and that its files are what compose and we read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from kvferry.config import CacheConfig

FOLDER = Path(__file__).parents[2] / "deploy" / "latency-lab"
# What stands in for programs of the container; tc writes down what it is told.
PROGRAMS = {
    "getent": 'echo "10.9.8.7 STREAM store"',
    "ip": 'echo "10.9.8.7 dev eth1 src 10.9.8.6 uid 0"',
    "tc": 'echo "$@" >> "$SAID"',
}


@pytest.mark.parametrize(
    ("rtt_ms", "told"),
    [
        # 10 Gbit/s for half of the round trip in packets of 1,500 bytes, twice, and 1,000 more.
        ("50", ["qdisc add dev eth1 root netem delay 25000us limit 42666"]),
        ("0", []),
    ],
)
def test_each_end_is_delayed_by_half_and_no_packet_of_the_link_is_dropped(
    rtt_ms: str, told: list[str], tmp_path: Path
) -> None:
    for name, line in PROGRAMS.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    said = tmp_path / "said"
    subprocess.run(
        ["bash", str(FOLDER / "scripts" / "shape.sh"), rtt_ms, "store"],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SAID": str(said),
            "LINK_GBIT": "10",
        },
        check=True,
        timeout=30,
    )
    first, *between, last = said.read_text().splitlines()
    assert (first, last) == ("qdisc del dev eth1 root", "-s qdisc show dev eth1")
    assert between == told


def test_a_round_trip_is_a_number() -> None:
    done = subprocess.run(
        ["bash", str(FOLDER / "scripts" / "latency.sh"), "far"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "usage: latency.sh RTT_MS" in done.stderr


def test_both_ends_may_be_delayed_and_hits_cross_the_link() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert all(one["cap_add"] == ["NET_ADMIN"] for one in services.values())
    assert set(services["engine"]["networks"]) == {"far", "near"}
    config = CacheConfig.load(FOLDER / "kvferry.yaml", environ={})
    assert not config.local_cpu
    assert [store.address for store in config.stores] == ["store:6379"]
