"""Models and rates that `kvferry roi` has names for, and files that it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import ConfigError, UsageError
from kvferry_lab.doctor.model import read_model
from kvferry_lab.doctor.prefill import GPUS
from kvferry_lab.roi.arithmetic import fit_line, fit_prefill
from kvferry_lab.roi.models import MODELS, find_model
from kvferry_lab.roi.rates import PRESETS, calibrated, of_preset, read_store, roofline


def test_every_name_is_a_model() -> None:
    for name in MODELS:
        model = find_model(name)
        assert model.bytes_per_token > 0
        assert model.active_parameters > 1e8
        assert model.sliding_layers == 0 or model.window_tokens > 0


@pytest.mark.parametrize(
    ("name", "billions", "rel"),  # that a token meets, without embeddings, as published
    [
        ("llama-3.1-8b", 7.0, 0.02),
        ("llama-3.1-405b", 401, 0.02),
        ("qwen2.5-72b", 70.0, 0.02),
        ("qwen3-8b", 6.95, 0.02),
        ("deepseek-v3", 37, 0.06),
        ("qwen3-30b-a3b", 3.0, 0.12),
        ("qwen3-235b-a22b", 22, 0.07),
        ("mixtral-8x7b", 12.6, 0.03),
        ("gemma-3-27b", 25.6, 0.05),
    ],
)
def test_parameters_as_published(name: str, billions: float, rel: float) -> None:
    assert find_model(name).active_parameters == pytest.approx(billions * 1e9, rel=rel)


def test_names_as_hubs_write_them() -> None:
    plain = find_model("llama-3.1-8b").bytes_per_token
    assert find_model("meta-llama/Llama-3.1-8B-Instruct").bytes_per_token == plain
    assert find_model("llama-3.1-8b", value_bytes=1).bytes_per_token == plain // 2


def test_a_file_says_what_its_name_says(tmp_path: Path) -> None:
    for name in ("llama-3.1-8b", "deepseek-v3", "gpt-oss-120b"):
        (tmp_path / "config.json").write_text(json.dumps(MODELS[name]))
        assert find_model(str(tmp_path)).bytes_per_token == find_model(name).bytes_per_token


def test_an_unknown_model_is_one_sentence_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"gpt-9 is neither .* llama-3\.1-8b"):
        find_model("gpt-9")


@pytest.mark.parametrize(
    ("fields", "layers", "window"),
    [
        ({"sliding_window": 4096}, 32, 4096),  # Mistral-7B-v0.1: all layers
        ({"sliding_window": None}, 0, 0),
        ({"sliding_window": 131072, "use_sliding_window": False}, 0, 0),  # Qwen2
        ({"sliding_window": 1024, "sliding_window_pattern": 6}, 27, 1024),  # Gemma 3: 32 - 32 // 6
        ({"sliding_window": 4096, "model_type": "gemma2"}, 16, 4096),
        (
            {
                "sliding_window": 128,
                "layer_types": ["sliding_attention", "full_attention"] * 16,
            },
            16,
            128,
        ),
        (
            {
                "attention_chunk_size": 8192,
                "layer_types": (["chunked_attention"] * 3 + ["full_attention"]) * 8,
            },
            24,
            8192,
        ),
    ],
)
def test_windows_as_configurations_say_them(
    fields: dict[str, Any], layers: int, window: int
) -> None:
    model = read_model({**MODELS["llama-3.1-8b"], **fields})
    assert (model.sliding_layers, model.window_tokens) == (layers, window)


def test_a_window_bounds_the_work_of_attention() -> None:
    whole = read_model(MODELS["mistral-7b"])
    windowed = read_model({**MODELS["mistral-7b"], "sliding_window": 4096})
    assert windowed.prefill_flops(4096) == whole.prefill_flops(4096)
    grown = windowed.prefill_flops(65_536) / windowed.prefill_flops(32_768)
    assert grown == pytest.approx(2.0)
    assert whole.prefill_flops(65_536) / whole.prefill_flops(32_768) > 2.2


def test_a_gpu_by_hand() -> None:
    # Llama-3.1-8B on two H100 at a quarter of 989 TFLOP/s: F = 494.5e12.
    model = find_model("llama-3.1-8b")
    prefill = roofline(model, "H100", 2, utilisation=0.25, fixed_s=0.01)
    assert prefill.c_s_per_token == pytest.approx(2 * model.active_parameters / 494.5e12)
    # 2 x 32 layers x 32 heads x 128
    assert prefill.d_s_per_token2 == pytest.approx(2 * 32 * 4096 / 494.5e12)
    assert (prefill.a_s, prefill.gpus) == (0.01, 2)
    for name in GPUS:
        assert roofline(model, name).compute_s(1000) > 0
    with pytest.raises(UsageError, match=r"h1000 is unknown; known are a10,"):
        roofline(model, "h1000")


def test_presets() -> None:
    # 30,000 tokens in a second on one GPU; 2,500 on eight.
    assert of_preset("tensormesh-8b").compute_s(30_000) == pytest.approx(1.0)
    large = of_preset("tensormesh-70b")
    assert large.compute_s(2_500) == pytest.approx(1.0)
    assert large.gpus == 8
    assert {preset.gpu_hour for preset in PRESETS.values()} == {2.0}
    with pytest.raises(UsageError, match="known are tensormesh-8b, tensormesh-70b"):
        of_preset("mine")


def test_fits_find_what_made_their_rows() -> None:
    rows = [(n, 0.02 + 1e-4 * n + 2e-9 * n * n) for n in (200, 2_000, 20_000)]
    found = fit_prefill(rows)
    assert found.a_s == pytest.approx(0.02)
    assert found.c_s_per_token == pytest.approx(1e-4)
    assert found.d_s_per_token2 == pytest.approx(2e-9)
    assert fit_line([(1, 5.0), (2, 7.0), (10, 23.0)]) == pytest.approx((3.0, 2.0))
    with pytest.raises(UsageError, match="two lengths"):
        fit_prefill([(100, 0.1), (100, 0.2)])
    with pytest.raises(UsageError, match="no longer"):
        fit_prefill([(100, 0.1), (1000, 0.01), (10_000, 0.001)])


def test_a_store_as_doctor_and_tune_measured_it(tmp_path: Path) -> None:
    file = tmp_path / "store"
    traffic = {
        "rtt_s": 0.002,
        "get_bytes_s_by_connections": {"1": 1e9, "8": 4e9},
        "get_bytes_s_by_size_bytes": {"4194304": 3e9},
    }
    file.write_text(json.dumps({"traffic": traffic}))
    found = read_store(file)
    assert (found.bytes_s, found.fixed_s) == (4e9, 0.002)
    file.write_text("client:\n  connections: 8\ntuned: {get_gbps: 5.5, round_trip_ms: 0.25}\n")
    found = read_store(file)
    assert (found.bytes_s, found.fixed_s) == (5.5e9, 0.25e-3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "neither JSON nor YAML"),
        ("[1]", "neither of kvferry doctor"),
        ('{"traffic": {"rtt_s": 1}}', "doctor measured no bandwidth"),
        ('{"traffic": {"get_bytes_s_by_size_bytes": {"1": "fast"}}}', "measured no bandwidth"),
        ("tuned: {get_gbps: -1}", "tune measured no bandwidth"),
        ("tuned: {get_gbps: .inf}", "tune measured no bandwidth"),
    ],
)
def test_a_store_file_that_says_nothing(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "store").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_store(tmp_path / "store")
    with pytest.raises(UsageError, match="cannot be read"):
        read_store(tmp_path / "nowhere")


def test_a_calibration(tmp_path: Path) -> None:
    file = tmp_path / "prefill.json"
    file.write_text('{"a_s": 0.01, "c_s_per_token": 1e-4, "d_s_per_token2": 1e-9, "more": 1}')
    found = calibrated(file, 4)
    assert (found.a_s, found.c_s_per_token, found.d_s_per_token2, found.gpus) == (
        *(0.01, 1e-4, 1e-9),
        4,
    )
    file.write_text('{"a_s": 1, "c_s_per_token": 0, "d_s_per_token2": 0}')
    with pytest.raises(UsageError, match="both 0"):
        calibrated(file, 1)
    with pytest.raises(ConfigError):
        calibrated(tmp_path / "nowhere", 1)
