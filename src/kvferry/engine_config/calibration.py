"""The file that a calibration of prefill leaves behind: three numbers as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

from kvferry.engine_config.fields import Number
from kvferry.errors import ConfigError

__all__ = ["read_calibration"]

_NAMES = ("a_s", "c_s_per_token", "d_s_per_token2")
_SIZE_BYTES_MAX = 1 << 20


def read_calibration(path: str | os.PathLike[str]) -> tuple[float, float, float]:
    """The coefficients of ``a + c n + d n**2`` seconds; other names in the file are left alone.

    Raises:
        ConfigError: The file is missing or malformed; the text names it.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            found = json.loads(stream.read(_SIZE_BYTES_MAX))
    except OSError as error:
        raise ConfigError(f"prefill_calibration_file {file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"prefill_calibration_file {file} is no JSON") from None
    if not isinstance(found, dict):
        raise ConfigError(
            f"prefill_calibration_file {file} holds no object with {', '.join(_NAMES)}"
        )
    number = Number(closed=True, unit="seconds")
    values = []
    for name in _NAMES:
        try:
            values.append(float(number.check(name, found.get(name))))
        except ConfigError as error:
            raise ConfigError(f"prefill_calibration_file {file}: {error}") from None
    return values[0], values[1], values[2]
