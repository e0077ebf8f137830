"""What one setting may be: it checks values, reads texts, and says what to write instead."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from kvferry.base.errors import ConfigError
from kvferry.base.shown import shown

__all__ = ["Spec", "parsed_json"]

_NUMBER_MAX = 1e300
_SWITCH = {"yes": True, "on": True, "no": False, "off": False}  # beside true, false, 1 and 0


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One declared setting; the attributes from `unit` on are the words of `setting`.

    Attributes:
        name: Of the setting.
        type: The declared type, for msgspec.
        kind: int, float, bool, str, tuple or dict.
        choices: The allowed values, if it is a choice; or the function that returns them.
        of_texts: Whether it is a list of texts, which commas may separate.
        default: Its value where nobody gives one.
        needed: Whether None is not allowed as a value.
        text: Its description.
        guide: Whether the guide explains it; else it stands in the guide's appendix.
        limits: `ge`, `gt`, `le`, `min_length` of `msgspec.Meta`.
        unit: Of a number.
        use: What to write, for errors; by default it follows from type and limits.
        secret: Whether it is never shown.
        quoted: Whether an error may repeat a wrong value, if that is no secret.
        program: Whether only a program can give it: it has no form as a text or number.
        private: Whether it is no setting of users, and stands on no page: `kvferry.config.tuning`.
        bytes_max: Of a text, in UTF-8.
        flag: The option of the command line, where it is not named like the setting.
        word_file: The setting beside it that names a file with this word.
        needs: Settings without which it has no meaning: names, or ``name=value|value``.
        blank: Whether an empty text counts as not given.
    """

    name: str
    type: Any
    kind: Any
    choices: tuple[Any, ...] | Callable[[], tuple[str, ...]]
    of_texts: bool
    default: Any
    needed: bool
    text: str
    guide: bool
    limits: Mapping[str, Any]
    unit: str = ""
    use: str = ""
    secret: bool = False
    quoted: bool = True
    program: bool = False
    private: bool = False
    bytes_max: int = 0
    flag: str = ""
    word_file: str = ""
    needs: tuple[str, ...] = ()
    blank: bool = False

    @cached_property
    def words(self) -> tuple[Any, ...]:
        """The allowed values, if it is a choice."""
        return self.choices() if callable(self.choices) else self.choices

    @property
    def wanted(self) -> str:
        """What to write, for the end of "use ..."."""
        if self.use:
            return self.use
        if self.kind is bool:
            return "true or false"
        if self.words:
            words = [str(word) for word in self.words]
            return f"{', '.join(words[:-1])} or {words[-1]}"
        if self.kind in (int, float):
            what = "a whole number" if self.kind is int else "a number"
            unit = f" of {self.unit}" if self.unit else ""
            low = f" from {_number(self.limits['ge'])}" if "ge" in self.limits else ""
            low = f" above {_number(self.limits['gt'])}" if "gt" in self.limits else low
            most = self.limits.get("le", _NUMBER_MAX)
            return f"{what}{unit}{low}{f' to {_number(most)}' if most < _NUMBER_MAX else ''}"
        if self.kind is str:
            most_bytes = f" of at most {self.bytes_max} bytes" if self.bytes_max else ""
            return f"a text{most_bytes}" + (" that is not empty" if self.limits else "")
        return "a list" if self.kind is tuple else "a mapping of names to values"

    def check(self, value: Any, at: str = "") -> Any:
        """The value as it is kept.

        Args:
            value: None is a value of its own where the setting is not `needed`.
            at: What errors call the setting; default: its name.

        Raises:
            ConfigError: It is of a wrong type or out of range; the text says what to write.
        """
        if self.program:
            return value
        if self.kind is str and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if self.kind is tuple and isinstance(value, Mapping | int) and not self.of_texts:
            value = [value]
        try:
            made = msgspec.convert(self.spelled(value), self.type)
            if isinstance(made, float) and not math.isfinite(made):
                raise ValueError
            if self.words and made is not None and made not in self.words:
                raise ValueError
        except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
            pass  # raised outside: these errors may quote the value
        else:
            problem = self._problem(made)
            if problem is None:
                return made
            raise ConfigError(f"{at or self.name} {problem}")
        raise self.error(value, at)

    def parse(self, text: str, at: str = "") -> Any:
        """The value that a text stands for, as the environment, a URL or a flag has it.

        Raises:
            ConfigError: As `check`.
        """
        if self.kind in (tuple, dict) or self.private:
            return self.check(self._of_json(text, at), at)
        try:
            if self.kind is bool:
                value = _SWITCH.get(text.lower(), text)
                return value if isinstance(value, bool) else self._from_text(text)
            if self.kind in (int, float) or (self.words and self.kind is not str):
                return self._from_text(text)
        except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
            raise self.error(text, at) from None
        return self.check(text, at)

    def error(self, value: Any, at: str = "") -> ConfigError:
        """The error for an invalid value, which is quoted where it can hold no secret."""
        plain = isinstance(value, str | int | float | None)
        hidden = self.secret or not self.quoted or not plain or "://" in shown(value)
        told = "" if hidden else f"={shown(value)}"
        # Of what YAML takes for a number or a date.
        other = isinstance(value, str | bytes | list | tuple | Mapping | None)
        quotes = self.kind is str and not self.words and not other
        return ConfigError(
            f"{at or self.name}{told} is not valid; use {self.wanted}"
            + (" and put it in quotes" if quotes else "")
        )

    def _from_text(self, text: str) -> Any:
        if self.kind is float and text.isascii():
            return self.check(float(text))
        return msgspec.convert(text, self.type, strict=False)

    def _of_json(self, text: str, at: str) -> Any:
        if self.of_texts and not text.lstrip().startswith("["):
            return text.split(",")
        found, problem = parsed_json(text)
        if problem is not None:
            advice = f"; use {self.wanted}" if problem.startswith("is no JSON") else ""
            raise ConfigError(f"{at or self.name} {problem}{advice}")
        return found

    def spelled(self, value: Any) -> Any:
        """One of the words in its own spelling (S3-FIFO for "s3fifo"), and others as they are."""
        if not self.words or self.kind is not str:
            return value
        if isinstance(value, bool):  # YAML's on and off
            value = "on" if value else "off"
        if isinstance(value, str | float):  # YAML's 1.2
            return next((word for word in self.words if _plain(word) == _plain(str(value))), value)
        return value

    def _problem(self, value: Any) -> str | None:
        """Why no server or file could have such a text, without the text."""
        for text in value if isinstance(value, tuple) else (value,):
            if not isinstance(text, str):
                continue
            if "\0" in text:
                return "holds a zero byte; leave it out"
            if any("\ud800" <= char <= "\udfff" for char in text):
                return "holds a lone surrogate and has no UTF-8 form; correct it"
            size = len(text.encode())
            if self.bytes_max and size > self.bytes_max:
                return f"has {size} bytes; use at most {self.bytes_max}"
        return None


def parsed_json(text: str) -> tuple[Any, str | None]:
    """What a JSON text holds, or what is wrong with it.

    No error of the parser leaves this function: it would hold the text.
    """

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in found]
        if len(set(names)) < len(names):
            twice.append(next(name for name in names if names.count(name) > 1))
        return dict(found)

    twice: list[str] = []
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        return None, f"is no JSON: see line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError):
        return None, "is no JSON"
    return value, f"names {shown(twice[0])} twice; keep one" if twice else None


def _plain(text: str) -> str:
    """A word without case and dashes, as people spell it."""
    return text.lower().replace("-", "").replace("_", "")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"
