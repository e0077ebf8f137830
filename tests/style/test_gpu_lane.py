"""The lane of the GPU, as far as it needs neither a GPU nor a download."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from gpu_lane.__main__ import parser
from gpu_lane.doors import shortened, write_model
from gpu_lane.fatbin import fat_binaries, without_other_code
from gpu_lane.model_info import keep_model_info
from gpu_lane.pack import is_left_out, libraries_of
from gpu_lane.report import HALVES, LIMITS_S, PROFILES
from gpu_lane.sheet import Sheet, spread

from kvferry_lab.engines.engine_process import EngineError

_PTX, _MACHINE_CODE = 1, 2


def _entry(kind: int, gpu: int, code: bytes) -> bytes:
    head = struct.pack("<HHIQ", kind, 0x101, 64, len(code)) + bytes(12) + struct.pack("<I", gpu)
    return head + bytes(64 - len(head)) + code


def _library(*binaries: bytes) -> bytearray:
    """An ELF file with fat binaries in its one section beside the names."""
    names = b"\0.shstrtab\0.nv_fatbin\0".ljust(24, b"\0")
    code = b"".join(
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(binary)) + binary for binary in binaries
    )
    table = 64 + len(names) + len(code)
    head = b"\x7fELF\x02\x01\x01".ljust(0x28, b"\0") + struct.pack("<Q", table)
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, 3, 1)
    rows = b"".join(
        struct.pack("<IIQQQQ", name, 1, 0, 0, begin, size).ljust(64, b"\0")
        for name, begin, size in (
            (0, 0, 0),
            (1, 64, len(names)),
            (11, 64 + len(names), len(code)),
        )
    )
    return bytearray(head + names + code + rows)


def test_the_code_of_other_gpus_is_cut_and_everything_stays_in_its_place() -> None:
    ours, theirs, source = b"sm_90 machine code......", b"sm_80 machine code", b"PTX of sm_90"
    both = _entry(_MACHINE_CODE, 80, theirs) + _entry(_MACHINE_CODE, 90, ours)
    library = _library(both + _entry(_PTX, 90, source), _entry(_PTX, 80, source))
    before = [entry for binary in fat_binaries(library) for entry in binary]
    size = len(library)
    assert without_other_code(library, keep=90) == len(ours)
    assert [entry for binary in fat_binaries(library) for entry in binary] == before
    assert len(library) == size
    assert (library.count(ours), library.count(theirs), library.count(source)) == (1, 0, 0)


def test_a_file_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="not a 64-bit ELF file"):
        without_other_code(bytearray(b"#!/bin/sh"), keep=90)


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", False),
        ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", True),
        ("vllm/third_party/deep_gemm/_C.cpython-312-x86_64-linux-gnu.so", True),
        ("vllm/third_party/pynvml.py", False),
    ],
)
def test_what_of_vllm_travels(name: str, left: bool) -> None:
    assert is_left_out(name) == left


def test_libraries_that_every_machine_has_stay_behind() -> None:
    names = {path.name.partition(".so")[0] for path in libraries_of(Path("/bin/sh").resolve())}
    assert not names & {"libc", "libm", "libstdc++"}


def test_each_half_fits_into_its_minutes() -> None:
    assert sum(LIMITS_S[part] for part in HALVES["1"][1:]) <= 360
    assert sum(LIMITS_S[part] for part in HALVES["2"]) <= 300
    assert set(HALVES["1"]) | set(HALVES["2"]) == set(LIMITS_S)


def test_the_prompts_of_stores_never_lie_in_memory() -> None:
    """Of engines that read stores: a round has more bytes than they may keep."""
    token_bytes = {"8b": 2 * 32 * 8 * 128 * 2, "tiny": 2 * 4 * 2 * 64 * 2}
    for profile in PROFILES.values():
        sizes, each = profile.sizes, token_bytes[profile.model]
        round_gb = sum(sizes.lengths) * each / (1 << 30)
        assert sizes.small_gb < round_gb < sizes.memory_gb


def test_a_failure_begins_with_the_exception() -> None:
    said = shortened(EngineError("KeyError: 'a'; its last words:\n" + "  one of the lines\n" * 999))
    assert said.startswith("EngineError: KeyError: 'a'; its last words:\n")
    assert len(said) < 3000


def test_what_vllm_finds_out_about_another_source_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "vllm" / "model_executor" / "models" / "llama.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    (tmp_path / "vllm" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert not keep_model_info({"VLLM_CACHE_ROOT": str(tmp_path / "cache")})
    assert not keep_model_info({})
    assert not (tmp_path / "cache").exists()


def test_rows_are_saved_as_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = Sheet(tmp_path, "client", limit_s=100.0)
    sheet.row("GET", **spread("ms", [0.003, 0.001, 0.002], 1e3))
    (line,) = (tmp_path / "client.jsonl").read_text().splitlines()
    found = {"part": "client", "what": "GET", "ms": 2.0, "ms_least": 1.0, "ms_most": 3.0}
    assert json.loads(line) == found
    assert "client: GET: ms 2, ms_least 1, ms_most 3" in capsys.readouterr().out
    assert not sheet.is_over()
    assert sheet.is_over(needed_s=101.0)


def test_the_command_line() -> None:
    chosen = parser().parse_args(["report", "--half", "1", "--out", "x", "--profile", "smoke"])
    assert (chosen.half, chosen.profile, chosen.out) == ("1", "smoke", Path("x"))
    words = ["report", "--parts", "hits", "--doors", "none,tier", "--profile", "memory"]
    chosen = parser().parse_args([*words, "--out", "x"])
    assert (chosen.doors, chosen.profile) == (["none", "tier"], "memory")


def test_a_model_without_weights(tmp_path: Path) -> None:
    config = json.loads((write_model(tmp_path, "8b", 40_000) / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_hidden_layers"], config["num_key_value_heads"]) == (32, 8)
    config = json.loads((write_model(tmp_path, "mla", 4096) / "config.json").read_text())
    assert (config["qk_nope_head_dim"], config["v_head_dim"]) == (128, 128)
