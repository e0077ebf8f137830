"""Prompts as text, in tokens that every machine cuts in the same way: words, marks and spaces.

They are no model's tokens; what two prompts share, they share in these as well, and there are about
as many of them.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from kvferry.base.errors import UsageError
from kvferry_lab.trace.sequenced import Sequenced

__all__ = ["sequenced"]

_TOKEN = re.compile(r" ?\w{1,8}|\s+|[^\w\s]")


def sequenced(lines: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Sequenced]:
    """Every prompt, in the order of time where there is one, else in that of the file."""
    prompts = []
    for where, item in lines:
        time, text = item.get("timestamp", 0), item.get("input")
        if not isinstance(text, str) or not isinstance(time, int | float):
            raise UsageError(f"{where} has no text as input, or no number as timestamp")
        prompts.append((time, text))
    numbers: dict[str, int] = {}
    for _, text in sorted(prompts, key=lambda prompt: prompt[0]):
        yield Sequenced(
            blocks=array("I", [_number(token, numbers) for token in _TOKEN.findall(text)])
        )


def _number(token: str, numbers: dict[str, int]) -> int:
    found = numbers.get(token)
    if found is None:
        found = numbers[token] = zlib.crc32(token.encode(errors="surrogatepass"))
    return found
