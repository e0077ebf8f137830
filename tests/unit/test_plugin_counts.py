"""A connector of somebody else that says no counters costs its counters, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.http.answers import as_json
from kvferry.metrics.collector import exposition
from support.dict_store import DictStore
from support.engines import CHUNK, check, expected, open_engine, prompt

TOKENS = prompt(4 * CHUNK, seed=1)


def _raises() -> Any:
    raise OSError("no counters here")


ODD: dict[str, Callable[[], Any]] = {
    "raises": _raises,
    "None": lambda: None,
    "a list": lambda: ["refused_payload_checksum"],
    "texts": lambda: {"refused_payload_checksum": "many", "one_sided_bytes": None, 5: 6},
    "no numbers": lambda: {"client_content_received": "x", "client_round_trip_us": "x"},
}


@pytest.mark.parametrize("what", ODD)
def test_metrics_and_status_go_on(what: str, caplog: pytest.LogCaptureFixture) -> None:
    odd, good = DictStore(), DictStore()
    odd.stats = ODD[what]  # type: ignore[method-assign]
    good.stats = lambda: {"refused_payload_checksum": 3}  # type: ignore[method-assign]
    with open_engine(odd, good) as engine:
        engine.store(TOKENS, expected(TOKENS))
        engine.flush(30)
        check(engine, TOKENS, 4 * CHUNK)
        for _ in range(3):
            found = json.loads(as_json(engine.stats()))
            assert set(found["stores"]) == {"store0", "store1"}
            assert found["stores"]["store1"]["refused_payload_checksum"] == 3
            text = exposition([engine.metrics])
        assert 'kvferry_store_available{store="store0"} 1' in text
        assert 'kvferry_corrupt_values_total{cause="checksum"} 3' in text
    said = [one for one in caplog.records if "does not say what it counts" in one.getMessage()]
    assert len(said) <= 1
