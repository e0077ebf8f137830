"""The file that a calibration of prefill leaves behind: three numbers as JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from kvferry.config.file import read_small
from kvferry.config.setting import Settings, setting, specs
from kvferry.config.spec import parsed_json
from kvferry.errors import ConfigError

__all__ = ["read_calibration"]

Coefficient = Annotated[float, setting(ge=0, unit="seconds")]


class _Calibration(Settings, frozen=True, kw_only=True):
    a_s: Coefficient
    c_s_per_token: Coefficient
    d_s_per_token2: Coefficient


def read_calibration(path: str | os.PathLike[str]) -> tuple[float, float, float]:
    """The coefficients of ``a + c n + d n**2`` seconds; other names in the file are left alone.

    Raises:
        ConfigError: The file is missing or malformed; the text names it.
    """
    where = f"prefill_calibration_file {path}"
    raw = read_small(Path(path), "prefill_calibration_file")
    found, problem = parsed_json(raw.decode(errors="replace"))
    known = specs(_Calibration)
    if problem is None and not isinstance(found, dict):
        problem = f"holds no object with {', '.join(known)}"
    if problem is not None:
        raise ConfigError(f"{where} {problem}")
    a, c, d = (spec.check(found.get(name), f"{where}: {name}") for name, spec in known.items())
    return a, c, d
