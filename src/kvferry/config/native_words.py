"""The names of eviction policies and codecs, as the extension has them.

They stand once, in native/cache/policy.hpp and native/codec/codecs.hpp. Where the extension is
missing nothing has a policy or a codec, and a setting may name any.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

__all__ = ["policies", "serdes"]


def policies() -> tuple[str, ...]:
    """Every eviction policy."""
    return tuple(_native("policies"))


def serdes(*, lossy: bool = False) -> tuple[str, ...]:
    """Every codec without loss; with `lossy` the others, too."""
    return tuple(dict.fromkeys(name for name, dtype, _ in _native("codecs") if lossy or not dtype))


@cache
def _native(table: str) -> Any:
    try:
        return getattr(import_module("kvferry._native"), table)()
    except ImportError:
        return ()
