"""The codecs by which values are written to servers, by name, and what one that loses needs.

fp8 keeps a byte for each number, so what comes back is not what was stored. Its values are others,
then: their identity says ``serde=fp8_e4m3`` beside the element type, and so nobody without that
setting ever asks for them. Here nothing is written by fp8 under an identity that does not say so.
"""

from __future__ import annotations

import dataclasses

from kvferry import _native
from kvferry.base.errors import ConfigError
from kvferry.chunks.identity import Identity
from kvferry.connectors.base import Space

__all__ = ["CODECS", "FP8", "codec_of", "number_of_fp8", "with_fp8"]

FP8 = "fp8"
# The numbers of those without loss, and of fp8 by the type of the numbers that it takes.
CODECS = {name: at for at, (name, dtype, _) in enumerate(_native.codecs()) if not dtype}
_OF_FP8 = {dtype: at for at, (name, dtype, _) in enumerate(_native.codecs()) if name == FP8}
_FIELD, _VALUE = "serde", "fp8_e4m3"


def with_fp8(identity: Identity) -> Identity:
    """The identity of what fp8 leaves of such chunks.

    Raises:
        ConfigError: fp8 has no numbers of this type.
    """
    number_of_fp8(identity.layout.dtype)
    return dataclasses.replace(identity, extra={**identity.extra, _FIELD: _VALUE})


def codec_of(serde: str, space: Space) -> int:
    """The number of a codec for the values of a space.

    Raises:
        ConfigError: There is none of that name, or it is fp8 and the identity does not say so, or
            names a type that fp8 has no numbers of.
    """
    if serde != FP8:
        if serde not in CODECS:
            raise ConfigError(f"serde is one of {', '.join(CODECS)}")
        return CODECS[serde]
    fields = dict(line.split("=", 1) for line in space.description.splitlines() if "=" in line)
    if fields.get(_FIELD) != _VALUE:
        raise ConfigError("serde=fp8 loses something, and the identity does not say so")
    return number_of_fp8(fields.get("dtype", ""))


def number_of_fp8(dtype: str) -> int:
    """The number of the codec for numbers of this type. Raises as `with_fp8`."""
    if dtype not in _OF_FP8:
        raise ConfigError(
            f"remote_serde='fp8' is for {', '.join(_OF_FP8)}, not for {dtype or 'an unknown type'}"
        )
    return _OF_FP8[dtype]
