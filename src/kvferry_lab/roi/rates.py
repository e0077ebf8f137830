"""Where the rates of a case come from: a GPU's data sheet, a calibration, a preset; a store's file.

Units: seconds, bytes, tokens.
Source: `kvferry_lab.doctor.prefill` for GPUs. Fits of published tables (`kvferry roi --validate`)
give 26 to 30 ms for the fixed part of a step of a model of 120B, and 13 ms is the published time to
the first token of one of 0.6B (docs/guides/roi.md): 20 ms are assumed where nobody measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvferry.base.errors import ConfigError, UsageError
from kvferry.config.file import read_small
from kvferry.config.spec import parsed_json
from kvferry_lab.doctor.model import ModelShape
from kvferry_lab.doctor.prefill import GPUS, UTILISATION
from kvferry_lab.roi.arithmetic import Prefill, Store

__all__ = [
    "FIXED_S",
    "PRESETS",
    "Preset",
    "calibrated",
    "of_preset",
    "read_calibration",
    "read_store",
    "roofline",
]

FIXED_S = 0.020
_SIZE_BYTES_MAX = 16 << 20
_COEFFICIENTS = ("a_s", "c_s_per_token", "d_s_per_token2")
_SECONDS_MAX = 1e300


@dataclass(frozen=True, kw_only=True)
class Preset:
    """An engine as a published calculator assumes it."""

    tokens_s: float
    gpus: int
    gpu_hour: float
    note: str


# Source: the storage ROI calculator of Tensormesh, December 2025.
PRESETS = {
    "tensormesh-8b": Preset(
        tokens_s=30_000, gpus=1, gpu_hour=2.0, note="models of 8B to 30B: 30,000 tokens/s a GPU"
    ),
    "tensormesh-70b": Preset(
        tokens_s=2_500, gpus=8, gpu_hour=2.0, note="models of 70B and more: 2,500 tokens/s on 8"
    ),
}


def roofline(
    model: ModelShape,
    gpu: str,
    gpus: int = 1,
    *,
    utilisation: float = UTILISATION,
    fixed_s: float = FIXED_S,
) -> Prefill:
    """From the operations of a model and the peak of a GPU.

    ``c = 2 P / F`` for P parameters that a token meets, and ``d = 2 L H / F`` for L layers whose
    heads have H values together (half of ``4 n^2 H``, for attention is causal). Layers with a
    window cost every token ``4 H`` for each one of the window, as if it were always full.

    Raises:
        UsageError: There is no such GPU in the table.
    """
    if gpu.lower() not in GPUS:
        raise UsageError(f"--gpu {gpu} is unknown; known are {', '.join(GPUS)}")
    rate = GPUS[gpu.lower()] * 1e12 * gpus * utilisation
    windowed = model.sliding_layers if model.window_tokens else 0
    near = 4 * model.heads_size * windowed * model.window_tokens
    return Prefill(
        a_s=fixed_s,
        c_s_per_token=(2 * model.active_parameters + near) / rate,
        d_s_per_token2=2 * model.heads_size * (model.kv_layers - windowed) / rate,
        gpus=gpus,
        source=f"{gpus} x {gpu.lower()}, {GPUS[gpu.lower()]} TFLOP/s each by its data sheet, "
        f"{utilisation:.0%} of it, {fixed_s * 1e3:g} ms a step: assumed, not measured",
    )


def of_preset(name: str, gpus: int | None = None) -> Prefill:
    """The engine that a published calculator assumes.

    Raises:
        UsageError: There is no such preset.
    """
    if name not in PRESETS:
        raise UsageError(f"--preset {name} is unknown; known are {', '.join(PRESETS)}")
    preset = PRESETS[name]
    return Prefill(
        a_s=0.0,
        c_s_per_token=1 / preset.tokens_s,
        d_s_per_token2=0.0,
        gpus=gpus or preset.gpus,
        source=f"assumed by Tensormesh's calculator: {preset.note}",
    )


def calibrated(path: Path, gpus: int) -> Prefill:
    """Measurements of an engine: a file of `--calibration`."""
    a, c, d = read_calibration(path)
    if c == d == 0:
        raise UsageError(f"{path}: c_s_per_token and d_s_per_token2 are both 0")
    return Prefill(a_s=a, c_s_per_token=c, d_s_per_token2=d, gpus=gpus, source=f"measured: {path}")


def read_calibration(path: str | Path) -> tuple[float, float, float]:
    """The coefficients of ``a + c n + d n**2`` seconds; other names in the file are left alone.

    Raises:
        ConfigError: The file is missing or malformed; the text names it.
    """
    where = f"calibration {path}"
    raw = read_small(Path(path), "calibration")
    found, problem = parsed_json(raw.decode(errors="replace"))
    if problem is None and not isinstance(found, dict):
        problem = f"holds no object with {', '.join(_COEFFICIENTS)}"
    if problem is not None:
        raise ConfigError(f"{where} {problem}")
    for name in _COEFFICIENTS:
        value = found.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < _SECONDS_MAX:
            raise ConfigError(f"{where}: {name} is not valid; use a number of seconds from 0")
    a, c, d = (float(found[name]) for name in _COEFFICIENTS)
    return a, c, d


def read_store(path: Path) -> Store:
    """What was measured of a store.

    Args:
        path: The JSON of `kvferry doctor`, that of `kvferry tune`, or the file that tune wrote.

    Raises:
        UsageError: It is none of them, or nothing was measured.
    """
    found = _parsed(path)
    traffic, tuned = found.get("traffic"), found.get("tuned")
    if isinstance(traffic, Mapping):
        rates = [
            rate
            for name in ("get_bytes_s_by_connections", "get_bytes_s_by_size_bytes")
            for rate in _mapping(traffic.get(name)).values()
        ]
        bytes_s = max(map(_positive, rates), default=0.0)
        fixed_s, by = _positive(traffic.get("rtt_s")), "doctor"
    elif isinstance(tuned, Mapping):
        gbps, round_trip_ms = tuned.get("get_gbps"), tuned.get("round_trip_ms")
        bytes_s = _positive(gbps) * 1e9
        fixed_s, by = _positive(round_trip_ms) / 1e3, "tune"
    else:
        raise UsageError(f"{path} is neither of kvferry doctor --json nor of kvferry tune")
    if not bytes_s > 0:
        raise UsageError(f"{path}: {by} measured no bandwidth")
    return Store(bytes_s=bytes_s, fixed_s=fixed_s, source=f"measured by {by}: {path}")


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as stream:
            text = stream.read(_SIZE_BYTES_MAX).decode()
        found = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except Exception:  # of the text of a tag: any
        raise UsageError(f"{path} is neither JSON nor YAML") from None
    return _mapping(found)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _positive(value: Any) -> float:
    """A number above 0, or 0 for everything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value <= sys.float_info.max else 0.0
