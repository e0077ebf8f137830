"""The file that a calibration of prefill leaves behind: three numbers as JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

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
    names = tuple(specs(_Calibration))
    raw = read_small(Path(path), "prefill_calibration_file")
    found, problem = parsed_json(raw.decode(errors="replace"))
    if problem is not None:
        raise ConfigError(f"{where} {problem}")
    if not isinstance(found, dict):
        raise ConfigError(f"{where} holds no object with {', '.join(names)}")
    try:
        given: dict[str, Any] = {name: found.get(name) for name in names}
        made = _Calibration(**given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return made.a_s, made.c_s_per_token, made.d_s_per_token2
