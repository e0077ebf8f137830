"""Two instances of the demo's server: the second one reads what the first one has computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.main import main
from kvferry.config import CacheConfig

EXAMPLES = Path(__file__).parents[2] / "examples" / "p2p"


def test_the_example_files_are_two_instances_of_one_controller() -> None:
    one, other = (
        CacheConfig.load(EXAMPLES / f"example{number}.yaml", environ={}) for number in (1, 2)
    )
    assert one.enable_p2p
    assert other.enable_p2p
    assert one.controller_pull_url == other.controller_pull_url
    assert one.instance_id != other.instance_id
    ports = (*one.p2p_init_ports, *one.p2p_lookup_ports)
    assert not {*ports} & {*other.p2p_init_ports, *other.p2p_lookup_ports}


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_second_instance_computes_little_of_what_the_first_one_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # So slow a GPU that loading pays on a busy host as well, where it may be left rightly.
    pace = ["--prefill-tokens-per-s", "5000"]
    small = ["--scale", "0.1", "--max-inflight-requests", "1"]
    assert main(["lab", "p2p", *small, *pace, "--json"]) == 0
    rounds: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rounds"]
    assert [(each["instance"], each["round"]) for each in rounds] == [
        *(("first", "warm-up"), ("first", "query"), ("second", "warm-up"), ("second", "query"))
    ]
    assert all(each["successful"] == each["prompts"] == 5 for each in rounds)
    _, own, peers, _ = rounds
    assert own["ttft_ratio"] < 0.7
    assert peers["ttft_ratio"] < 0.7
