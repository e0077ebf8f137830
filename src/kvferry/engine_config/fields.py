"""What one setting may be: its kind, its range, its unit, and the sentence when it is not."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from kvferry.errors import ConfigError

__all__ = [
    "GB",
    "POLICIES",
    "Choice",
    "Field",
    "Json",
    "Number",
    "Switch",
    "Text",
    "Whole",
    "policy_name",
]

GB = 1 << 30  # as the field counts sizes of caches: LMCache's "GB" are 2**30 bytes
POLICIES = ("LRU", "LFU", "FIFO", "S3-FIFO", "ARC", "W-TinyLFU")
_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")


def policy_name(text: str) -> str | None:
    """The spelling of `POLICIES` for any of its spellings ("s3fifo"), or None."""
    plain = {_plain(name): name for name in POLICIES}
    return plain.get(_plain(text))


def _plain(text: str) -> str:
    return text.lower().replace("-", "").replace("_", "")


@dataclass(frozen=True, kw_only=True)
class Field:
    """One setting; `needed` is False where None is a value of its own."""

    needed: bool = True

    @property
    def wanted(self) -> str:
        """The end of "use ..."."""
        raise NotImplementedError

    def accepts(self, value: Any) -> Any:
        """The value as it is kept; raises ValueError if it cannot be."""
        raise NotImplementedError

    def read(self, text: str) -> Any:
        """What the text of an environment variable stands for; ValueError if nothing."""
        return text

    def check(self, name: str, value: Any) -> Any:
        """The value as it is kept.

        Raises:
            ConfigError: It is of a wrong kind or out of range; the text says what to write.
        """
        if value is None and not self.needed:
            return None
        try:
            return self.accepts(value)
        except ValueError:
            pass
        raise ConfigError(f"{name}={_shown(value)} is not valid; use {self.wanted}")

    def parse(self, variable: str, text: str) -> Any:
        """The value of an environment variable.

        Raises:
            ConfigError: As `check`.
        """
        try:
            return self.accepts(self.read(text))
        except ValueError:
            pass
        shown = "" if isinstance(self, Json) else f"={_shown(text)}"
        raise ConfigError(f"{variable}{shown} is not valid; use {self.wanted}")


@dataclass(frozen=True, kw_only=True)
class Whole(Field):
    """A whole number."""

    low: int
    high: int
    unit: str = ""

    @property
    def wanted(self) -> str:
        unit = f" of {self.unit}" if self.unit else ""
        return f"a whole number{unit} from {self.low} to {self.high}"

    def read(self, text: str) -> Any:
        return int(text)

    def accepts(self, value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError
        if not self.low <= value <= self.high:
            raise ValueError
        return value


@dataclass(frozen=True, kw_only=True)
class Number(Field):
    """A number, whole or not; `low` itself is allowed if `closed`."""

    low: float = 0.0
    high: float = math.inf
    closed: bool = False
    unit: str = ""

    @property
    def wanted(self) -> str:
        unit = f" of {self.unit}" if self.unit else ""
        low = f"from {self.low:g}" if self.closed else f"above {self.low:g}"
        high = "" if math.isinf(self.high) else f" to {self.high:.9g}"
        return f"a number{unit} {low}{high}"

    def read(self, text: str) -> Any:
        return float(text)

    def accepts(self, value: Any) -> Any:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError
        if abs(value) > 1e300:  # also whole numbers that no float can hold
            raise ValueError
        above = value >= self.low if self.closed else value > self.low
        if not above or value > self.high or not math.isfinite(value):
            raise ValueError
        return float(value)


@dataclass(frozen=True, kw_only=True)
class Switch(Field):
    """True or false."""

    @property
    def wanted(self) -> str:
        return "true or false"

    def read(self, text: str) -> Any:
        word = text.lower()
        return word in _TRUE if word in (*_TRUE, *_FALSE) else text

    def accepts(self, value: Any) -> Any:
        if not isinstance(value, bool):
            raise ValueError
        return value


@dataclass(frozen=True, kw_only=True)
class Choice(Field):
    """One of several words, in any case; policies also without their dashes."""

    words: tuple[str, ...]

    @property
    def wanted(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def accepts(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError
        for word in self.words:
            if _plain(word) == _plain(value):
                return word
        raise ValueError


@dataclass(frozen=True, kw_only=True)
class Text(Field):
    """A text that is not empty."""

    what: str = "a text"

    @property
    def wanted(self) -> str:
        return self.what

    def accepts(self, value: Any) -> Any:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError
        return value


@dataclass(frozen=True, kw_only=True)
class Json(Field):
    """A list or mapping; in the environment as JSON, which errors never quote."""

    kind: type
    what: str

    @property
    def wanted(self) -> str:
        return self.what

    def read(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError from None

    def accepts(self, value: Any) -> Any:
        if isinstance(value, tuple) and self.kind is list:
            value = list(value)
        if not isinstance(value, self.kind):
            raise ValueError
        return value

    def check(self, name: str, value: Any) -> Any:
        """As above, without the value: there may be secrets in it."""
        if value is None and not self.needed:
            return None
        try:
            return self.accepts(value)
        except ValueError:
            pass
        raise ConfigError(f"{name} is not valid; use {self.wanted}")


def _shown(value: Any) -> str:
    """A value in an error; nothing of containers, and no URL, which may hold a password."""
    if isinstance(value, list | tuple | dict):
        return f"<{type(value).__name__}>"
    text = repr(value)
    if "://" in text:
        return "<a URL>"
    return text if len(text) <= 60 else f"{text[:60]}..."
