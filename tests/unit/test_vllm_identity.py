"""vLLM's configuration as fields of an identity, on stand-ins shaped like both versions."""

from __future__ import annotations

import json
import logging
import platform
import shutil
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvferry import Identity
from kvferry.base.errors import UsageError
from kvferry.chunks.layout import KVLayout
from kvferry.integrations.vllm import versions
from kvferry.integrations.vllm.identity import kv_dtype, model_identity, platform_fields

VERSIONS = ("0.22.1", "0.32.0")


def make_model(place: Path, data: bytes = b"weights") -> Path:
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (place / "model.safetensors").write_bytes(data * 100)
    return place


def config(model: str | Path, version: str = "0.32.0", **changes: Any) -> SimpleNamespace:
    """What a ``VllmConfig`` of that version has of what we read; `changes` by dotted path with
    two underscores, e.g. ``model_config__dtype``."""
    hf_config = SimpleNamespace(
        architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=4
    )
    if version == "0.32.0":
        hf_config.rope_parameters = {"rope_theta": 10000.0, "rope_type": "default"}
    else:
        hf_config.rope_theta, hf_config.rope_scaling = 10000.0, None
    vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(model),
            model_weights="",
            revision=None,
            code_revision=None,
            dtype="torch.bfloat16",
            seed=0,
            max_model_len=4096,
            quantization=None,
            quantization_config=None,
            hf_config=hf_config,
            hf_text_config=hf_config,
            hf_config_path=None,
            hf_overrides={},
            disable_sliding_window=False,
            multimodal_config=None,
        ),
        cache_config=SimpleNamespace(
            cache_dtype="auto", block_size=16, kv_cache_dtype_skip_layers=[]
        ),
        load_config=SimpleNamespace(load_format="auto", download_dir=None),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
            cp_kv_cache_interleave_size=1,
        ),
    )
    if version == "0.22.1":
        vllm_config.cache_config.calculate_kv_scales = False
        vllm_config.model_config.override_attention_dtype = None
    else:
        vllm_config.model_config.model_class_overrides = {}
    for path, value in changes.items():
        part, _, name = path.partition("__")
        setattr(getattr(vllm_config, part), name, value)
    return vllm_config


def digest(vllm_config: Any) -> bytes:
    layout = KVLayout(layers=4, kv_heads=2, head_dim=64, dtype=kv_dtype(vllm_config), chunk_size=16)
    return Identity(**model_identity(vllm_config), layout=layout, engine="vllm test").digest


@pytest.mark.parametrize("version", VERSIONS)
def test_a_model_is_known_by_its_files(tmp_path: Path, version: str) -> None:
    one, two = make_model(tmp_path / "one"), tmp_path / "two" / "renamed"
    shutil.copytree(one, two)
    fields = model_identity(config(one, version))
    assert fields["model"] == "LlamaForCausalLM"
    assert fields["revision"].startswith("files-")
    assert fields["extra"] == {"compute": "bfloat16"}
    assert digest(config(one, version)) == digest(config(two, version))
    other = make_model(tmp_path / "other", b"weighty")
    assert digest(config(one, version)) != digest(config(other, version))


CHANGES: list[dict[str, Any]] = [
    {"model_config__dtype": "torch.float16"},
    {"cache_config__cache_dtype": "fp8"},
    {"model_config__quantization": "fp8"},
    {"model_config__quantization": "fp8", "model_config__quantization_config": {"bits": 4}},
    {"model_config__hf_overrides": {"rope_theta": 1}},
    {"model_config__hf_overrides": test_a_model_is_known_by_its_files},
    {"model_config__model_weights": "s3://bucket/other"},
    {"model_config__code_revision": "v2"},
    {"model_config__disable_sliding_window": True},
    {"model_config__multimodal_config": SimpleNamespace(mm_processor_kwargs={"pixels": 3})},
    {"cache_config__kv_cache_dtype_skip_layers": ["0"]},
    {"load_config__load_format": "dummy"},
    {"load_config__load_format": "dummy", "model_config__seed": 1},
    {"parallel_config__decode_context_parallel_size": 2},
    {"parallel_config__prefill_context_parallel_size": 2},
    {
        "parallel_config__prefill_context_parallel_size": 2,
        "parallel_config__cp_kv_cache_interleave_size": 4,
    },
    {
        "model_config__hf_text_config": SimpleNamespace(
            rope_parameters={"rope_theta": 5.0, "rope_type": "default"}
        )
    },
    {"model_config__hf_config_path": "elsewhere"},
    {"model_config__config_format": "mistral"},
    {"model_config__model_impl": "transformers"},
    {"model_config__is_hybrid": True, "cache_config__mamba_ssm_cache_dtype": "float32"},
    {"load_config__load_format": "pt"},
    {"load_config__model_loader_extra_config": {"tensorizer_uri": "s3://other"}},
    {"load_config__ignore_patterns": ["a*"]},
    {"cache_config__kv_sharing_fast_prefill": True},
    {"model_config__multimodal_config": SimpleNamespace(media_io_kwargs={"video": {"fps": 1}})},
]
# Parts that a plain configuration has not.
PARTS: list[dict[str, Any]] = [
    {"attention_config": SimpleNamespace(use_non_causal=True)},
    {"attention_config": SimpleNamespace(indexer_kv_dtype="fp8")},
    {"kernel_config": SimpleNamespace(moe_backend="marlin")},
    {"additional_config": {"plug-in": 1}},
    {"lora_config": SimpleNamespace(lora_dtype="torch.float32")},
    {"lora_config": SimpleNamespace(lora_dtype="auto", target_modules=["q_proj"])},
    {"speculative_config": SimpleNamespace(method="eagle", model="/draft")},
    {"speculative_config": SimpleNamespace(method="eagle", model="/another")},
]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_changes_kv_changes_the_identity(tmp_path: Path, version: str) -> None:
    model = make_model(tmp_path / "model")
    digests = [digest(config(model, version, **changes)) for changes in [{}, *CHANGES]]
    for parts in PARTS:
        made = config(model, version)
        vars(made).update(parts)
        digests.append(digest(made))
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_BATCH_INVARIANT", "1"),
        ("VLLM_FLOAT32_MATMUL_PRECISION", "high"),
        ("VLLM_USE_FLASHINFER_MOE_FP8", "1"),
        ("VLLM_ROCM_USE_AITER_MLA", "0"),
        ("K_SCALE_CONSTANT", "100"),
        ("NVIDIA_TF32_OVERRIDE", "1"),
    ],
)
def test_variables_that_choose_what_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    made = config(make_model(tmp_path / "model"))
    plain = digest(made)
    monkeypatch.setenv(name, value)
    assert digest(made) != plain
    monkeypatch.setenv(name, "")
    assert digest(made) == plain
    for other in ("VLLM_LOGGING_LEVEL", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CACHE_ROOT"):
        monkeypatch.setenv(other, "some")
    assert digest(made) == plain


def test_an_override_that_is_a_function_is_what_it_does(tmp_path: Path) -> None:
    """Its name stays when its text is changed."""
    seen: set[bytes] = set()
    model = make_model(tmp_path / "model")
    for epsilon in (1e-5, 1e-6, 1e-6):
        made = config(model)
        made.model_config.hf_overrides = test_texts_are_single_lines
        result = {"rms_norm_eps": epsilon, "transformers_version": str(len(seen))}
        made.model_config.hf_config.to_dict = partial(dict, result)
        seen.add(digest(made))
    assert len(seen) == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_what_does_not_change_kv_does_not(tmp_path: Path, version: str) -> None:
    model = make_model(tmp_path / "model")
    plain = digest(config(model, version))
    same: list[dict[str, Any]] = [
        {"model_config__max_model_len": 8192},
        {"model_config__seed": 7},
        {"load_config__load_format": "safetensors"},
        {"load_config__ignore_patterns": ["original/**/*"]},
        {"model_config__hf_config_path": None},
        {"model_config__config_format": "auto"},
        {"parallel_config__tensor_parallel_size": 2},  # the layout says which shard
    ]
    assert {digest(config(model, version, **changes)) for changes in same} == {plain}


def test_rope_that_depends_on_the_longest_context(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    text = SimpleNamespace(rope_parameters={"full": {"rope_type": "longrope"}, "sliding": {}})
    changes: dict[str, Any] = {"model_config__hf_text_config": text}
    short = digest(config(model, **changes))
    assert short != digest(config(model, **changes, model_config__max_model_len=99))


def test_a_model_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with caplog.at_level(logging.WARNING, "kvferry.integrations"):
        for _ in range(2):
            fields = model_identity(config("org/not-here"))
    assert fields["model"] == "org/not-here"
    assert fields["revision"].startswith("unknown-")
    assert len(caplog.records) == 1
    other = model_identity(config("org/not-here", model_config__revision="v2"))
    assert other["revision"] != fields["revision"]


def test_texts_are_single_lines(tmp_path: Path) -> None:
    odd = config(make_model(tmp_path / "model"), model_config__quantization="a\nb\udcff\x85c")
    assert digest(odd) != digest(config(tmp_path / "model"))


@pytest.mark.parametrize(
    ("cache", "model", "named"),
    [
        ("auto", "torch.bfloat16", "bfloat16"),
        ("auto", "half", "float16"),
        ("fp8_e4m3", "torch.bfloat16", "fp8_e4m3"),
        ("bfloat16", "torch.float32", "bfloat16"),
    ],
)
def test_the_element_type(cache: str, model: str, named: str) -> None:
    changes = {"cache_config__cache_dtype": cache, "model_config__dtype": model}
    assert kv_dtype(config("m", **changes)) == named


def test_an_integration_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ("json:loads", "json:JSONDecoder.nothing|none", "nix:x")
    monkeypatch.setattr(versions, "NEEDS", {"tier": needs})
    assert versions.missing("tier") == ["json:JSONDecoder.nothing|none", "nix:x"]
    monkeypatch.setattr(versions, "vllm_version", lambda: "0.9.2")
    with pytest.raises(UsageError, match=r"vLLM 0\.9\.2 is older than .* JSONDecoder\.nothing or"):
        versions.need("tier")
    monkeypatch.setattr(versions, "vllm_version", lambda: "0.40.0")
    with pytest.raises(
        UsageError, match=r"vLLM 0\.40\.0 does not fit .* tested with vLLM 0\.22\.1"
    ):
        versions.need("tier")
    monkeypatch.setattr(versions, "vllm_version", lambda: "")
    with pytest.raises(UsageError, match="not installed"):
        versions.need("tier")
    monkeypatch.setattr(versions, "NEEDS", {"tier": ("json:loads",)})
    versions.need("tier")


def put_platform(monkeypatch: pytest.MonkeyPatch, **members: Any) -> None:
    """vLLM's platform, and a torch that knows one instruction set."""
    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(**members)  # type: ignore[attr-defined]
    torch = ModuleType("torch")
    torch.cpu = SimpleNamespace(  # type: ignore[attr-defined]
        _is_amx_tile_supported=lambda: True, _is_avx512_supported=lambda: False
    )
    modules = {"vllm": ModuleType("vllm"), "vllm.platforms": platforms, "torch": torch}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_the_machine_where_it_packs_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_ATTENTION_BACKEND", raising=False)
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    put_platform(monkeypatch, device_type="cpu")
    assert platform_fields() == {"device": f"cpu {platform.machine()} amx_tile"}
    put_platform(monkeypatch, device_type="cuda", get_device_name=lambda: "Fast GPU")
    assert platform_fields() == {"device": "cuda"}
    unnamed = {"device": "cuda Fast GPU", "kv_order": "HND"}
    assert platform_fields(layout_named=False) == unnamed
    asked = SimpleNamespace(attention_config=SimpleNamespace(backend=SimpleNamespace(name="FLASH")))
    assert platform_fields(asked) == {"device": "cuda", "attention": "FLASH"}
    put_platform(monkeypatch, device_type="cuda", get_device_name=[].pop)
    assert platform_fields(layout_named=False)["device"] == "cuda", "a driver that fails"
    monkeypatch.setitem(sys.modules, "vllm.platforms", None)  # not installed
    assert platform_fields() == {}
