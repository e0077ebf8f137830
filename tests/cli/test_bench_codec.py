"""`kvferry bench codec`: every byte comes back, of KV and of any file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvferry.cli.main import main


def run(*words: str) -> int:
    return main(["bench", "codec", "--repeat", "1", *words])


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    assert run("--json", "-", *words) == 0
    rows = json.loads(capsys.readouterr().out)
    return {row["codec"]: row for row in rows}


def test_kv_of_a_transformer_takes_three_quarters_or_less(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = measured(capsys, "--tokens", "256")
    assert "random numbers" in rows["split12"]["run"]["content"]
    assert rows["split12"]["ratio"] >= 1.30
    assert rows["zstd"]["ratio"] >= 1.45
    assert rows["fp8"]["ratio"] >= 1.93
    loss = rows["fp8"]["run"]["fp8"]
    assert 0.01 < loss["kv_error"] < 0.04, "what rounding to three bits of mantissa costs"
    assert 0 < loss["kl_nats"] < 0.01


@pytest.mark.parametrize("size", [1, 1000, (4 << 20) + 7])
def test_a_file_of_noise_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    file = tmp_path / "noise"
    file.write_bytes(np.random.default_rng(0).bytes(size))
    for row in measured(capsys, "--file", str(file)).values():
        assert (row["ratio"], row["encode_gb_s"], row["payload_bytes"]) == (1.0, None, size)


def test_the_table_is_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "zeros"
    file.write_bytes(bytes(1 << 20))
    assert run("--file", str(file)) == 0
    assert "1.33" in capsys.readouterr().out


def test_a_file_that_is_not_there_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").touch()
    for name, why in (("none", "cannot be read"), ("empty", "is empty")):
        assert run("--file", str(tmp_path / name)) == 2
        assert why in capsys.readouterr().err
