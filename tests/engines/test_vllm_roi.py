"""`kvferry roi --server` against a real vLLM: it measures, and its curve says what was not asked.

Speeds of a machine with other work differ from one minute to the next, so the verdict is on the
shape: every length was measured, more tokens take longer, and a length that is left out lies
between its neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from engines.conftest import VllmVenv
from kvferry.cli.main import main
from kvferry.lab.engine_server import EngineServer
from kvferry.lab.roi.probe import Probe

LEFT_OUT = 2048
pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]


def test_an_engine_is_calibrated(
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    serve_engine: Callable[..., EngineServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = serve_engine(newest_vllm, model("tiny"))
    file = tmp_path / "prefill.json"
    words = ["roi", "--model", str(model("tiny")), "--server", server.url]
    measuring = ["--probe-tokens", "256,1024,3072", "--save-calibration", str(file), "--json"]
    assert main([*words, *measuring]) == 0
    prefill = json.loads(capsys.readouterr().out)["case"]["prefill"]
    kept = json.loads(file.read_text())
    assert [kept[name] for name in ("a_s", "c_s_per_token", "d_s_per_token2")] == [
        prefill[name] for name in ("a_s", "c_s_per_token", "d_s_per_token2")
    ]
    for sample in kept["samples"]:
        assert sample["tokens"] == pytest.approx(sample["asked"], rel=0.1), "as vLLM counts"
    probe = Probe(base_url=server.url)
    samples = probe.run([256, LEFT_OUT])
    seen_s = median(sample.ttft_s for sample in samples if sample.asked == LEFT_OUT)
    ends = {
        asked: median(sample["ttft_s"] for sample in kept["samples"] if sample["asked"] == asked)
        for asked in (256, 3072)
    }
    predicted_s = prefill["a_s"] + prefill["c_s_per_token"] * LEFT_OUT
    predicted_s += prefill["d_s_per_token2"] * LEFT_OUT**2
    with capsys.disabled():
        print(f"\n{LEFT_OUT} tokens: {predicted_s * 1e3:.1f} ms, seen {seen_s * 1e3:.1f}", prefill)
    assert ends[256] < predicted_s < ends[3072]
    assert main([*words[:3], "--calibration", str(file)]) == 0
    assert "measured" in capsys.readouterr().out
