"""`kvferry roi --server` against a real vLLM: it measures, and its curve says what was not asked.

Speeds of a machine with other work differ from one minute to the next, so nothing is said about how
near the prediction is; it is printed beside what was seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from engines.conftest import VllmVenv
from kvferry.cli.main import main
from kvferry_lab.engines.vllm_server import EngineServer
from kvferry_lab.roi.arithmetic import Prefill
from kvferry_lab.roi.engine_probe import PrefillProbe

LEFT_OUT = 2048
COEFFICIENTS = ("a_s", "c_s_per_token", "d_s_per_token2")
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
    assert [kept[name] for name in COEFFICIENTS] == [prefill[name] for name in COEFFICIENTS]
    for sample in kept["samples"]:
        assert sample["tokens"] == pytest.approx(sample["asked"], rel=0.1), "as vLLM counts"
    probe = PrefillProbe(base_url=server.url)
    samples = probe.run([256, LEFT_OUT])
    seen_s = median(sample.ttft_s for sample in samples if sample.asked == LEFT_OUT)
    fitted = Prefill(**{name: prefill[name] for name in COEFFICIENTS})
    predicted_s = fitted.compute_s(LEFT_OUT)
    with capsys.disabled():
        print(f"\n{LEFT_OUT} tokens: {predicted_s * 1e3:.1f} ms, seen {seen_s * 1e3:.1f}", prefill)
    assert fitted.compute_s(256) < predicted_s < fitted.compute_s(3072)
    assert seen_s > 0
    assert main([*words[:3], "--calibration", str(file)]) == 0
    assert "measured" in capsys.readouterr().out
