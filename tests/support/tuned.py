"""Flat keywords of which some are no settings: those go into the `tuning` of the class.

ClientConfig(**tuned(ClientConfig, host="cache-1", stall_timeout_s=0.3))
"""

from __future__ import annotations

from typing import Any

from kvferry.config.setting import Settings, specs

__all__ = ["tuned"]


def tuned(of: type[Settings], /, **given: Any) -> dict[str, Any]:
    """The keywords of `of` for these settings and values of its `tuning`."""
    names = set(specs(of)["tuning"].default.__struct_fields__)
    named = {name: given.pop(name) for name in given.keys() & names}
    return {**given, "tuning": named} if named else given
