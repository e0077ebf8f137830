"""The errors of kvferry, where programs import them from; see `kvferry.base.errors`."""

from __future__ import annotations

from kvferry.base.errors import *  # noqa: F403
from kvferry.base.errors import __all__ as __all__
