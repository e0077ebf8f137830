"""How a setting is declared: once, with all that readers, checks, flags and the guide need.

    chunk_size: Annotated[int, setting(unit="tokens", ge=1)] = 256

is a field of a subclass of `Settings`. Type and limits say what a value may be; what it means
stands under "Attributes:" in the docstring of the class. Every other place derives from this: the
check of the constructor, the readers of YAML, JSON, URL and environment (`config.places`), the
options of `kvferry server` (`cli.options`), the tables of the guide (`tools/settings.py`).
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from kvferry._shown import shown
from kvferry.credentials import CREDENTIAL_BYTES_MAX
from kvferry.errors import ConfigError

__all__ = [
    "GB",
    "POLICIES",
    "Host",
    "Path",
    "PolicyName",
    "Port",
    "Seconds",
    "Secret",
    "Settings",
    "Spec",
    "Text",
    "Word",
    "parsed_json",
    "policy_name",
    "setting",
    "specs",
]

GB = 1 << 30  # as the field counts sizes of caches: LMCache's "GB" are 2**30 bytes
PolicyName = Literal["LRU", "LFU", "FIFO", "S3-FIFO", "ARC", "W-TinyLFU"]
POLICIES: tuple[str, ...] = get_args(PolicyName)

_NUMBER_MAX = 1e300
_SWITCH = {"yes": True, "on": True, "no": False, "off": False}  # beside true, false, 1 and 0


def setting(
    *,
    unit: str = "",
    use: str = "",
    secret: bool = False,
    quoted: bool = True,
    program: bool = False,
    bytes_max: int = 0,
    flag: str = "",
    **limits: Any,
) -> msgspec.Meta:
    """What a setting is beside its type; what it means stands under "Attributes:" of its class.

    Args:
        unit: Of a number.
        use: What to write, for errors; by default it follows from type and limits.
        secret: Shown nowhere.
        quoted: Whether an error may repeat a wrong value.
        program: A program alone can give it: it is no text and no number.
        bytes_max: Of a text, in UTF-8.
        flag: The option of `kvferry server`, where it is not named like the setting.
        **limits: `ge`, `gt`, `le`, `pattern`, `min_length` of `msgspec.Meta`.
    """
    extra = {
        "unit": unit,
        "use": use,
        "secret": secret,
        "quoted": quoted and not secret,
        "program": program,
        "bytes_max": bytes_max,
        "flag": flag,
    }
    return msgspec.Meta(extra=extra, **limits)


# What many settings are.
Seconds = Annotated[float, setting(gt=0, unit="seconds")]
Port = Annotated[int, setting(ge=1, le=65535)]
Text = Annotated[str, setting(min_length=1)]
Path = Annotated[str, setting(min_length=1, use="a path")]
Host = Annotated[
    str,
    setting(
        pattern=r"^[^\s/@,]+\Z",
        use="a host name (a URL goes to `url` or from_url())",
        quoted=False,
        bytes_max=255,
    ),
]
# These may be empty as far as we know, and quoting them is not for us.
Word = Annotated[str, setting(quoted=False, bytes_max=CREDENTIAL_BYTES_MAX)]
Secret = Annotated[str, setting(secret=True, bytes_max=CREDENTIAL_BYTES_MAX)]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One declared setting; the fields from `unit` on are those of `setting`.

    Attributes:
        name: Of the setting.
        type: As it is declared, for msgspec.
        kind: int, float, bool, str, tuple or dict.
        words: What it may be, if only that.
        of_texts: It is a list of texts; commas may part them.
        default: Its value where nobody gives one.
        needed: None is no value of its own.
        text: What it means.
        guide: Whether the guide explains it; else it stands in the guide's appendix.
        limits: See `setting`.
    """

    name: str
    type: Any
    kind: Any
    words: tuple[Any, ...]
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
    bytes_max: int = 0
    flag: str = ""

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
        if self.kind is tuple and isinstance(value, Mapping) and not self.of_texts:
            value = [value]
        try:
            made = msgspec.convert(self._spelled(value), self.type)
            if isinstance(made, float) and not math.isfinite(made):
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
        if self.kind in (tuple, dict):
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
        """That a value cannot be; it is quoted where it can hold no secret."""
        plain = isinstance(value, str | int | float | None)
        told = "" if not self.quoted or not plain or "://" in shown(value) else f"={shown(value)}"
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

    def _spelled(self, value: Any) -> Any:
        """One of the words in its own spelling: LRU for "lru", S3-FIFO for "s3fifo"."""
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


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that are checked when they are made, and whose repr holds no secret.

    A subclass names in `guide` those that its users need explained; the others are for an appendix.
    """

    guide: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, spec in specs(type(self)).items():
            value = getattr(self, name)
            if value is not spec.default:
                self._set(name, spec.check(value))
        self._check()

    def _check(self) -> None:
        """What goes together; raises ConfigError."""

    def _set(self, name: str, value: Any) -> None:
        msgspec.structs.force_setattr(self, name, value)

    def replace(self, **changes: Any) -> Self:
        """These settings with some others, checked again."""
        return msgspec.structs.replace(self, **changes)

    def changed(self) -> Iterator[tuple[str, Any]]:
        """The settings that differ from their defaults; secrets are asterisks."""
        for name, spec in specs(type(self)).items():
            value = getattr(self, name)
            if value != spec.default:
                yield name, "***" if spec.secret and value is not None else value

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.changed())
        return f"{type(self).__name__}({told})"


@functools.cache
def specs(of: type[Settings]) -> dict[str, Spec]:
    """The settings of a class by name, in the order of their declaration."""
    defaults = {item.name: _default(item) for item in msgspec.structs.fields(of)}
    hints = get_type_hints(of, include_extras=True)
    texts = _texts(of)
    return {name: _spec(of, name, hints[name], defaults[name], texts) for name in defaults}


def _default(item: msgspec.structs.FieldInfo) -> Any:
    if item.default_factory is not msgspec.NODEFAULT:
        return item.default_factory()
    return item.default


def _spec(of: type[Settings], name: str, hint: Any, default: Any, texts: Mapping[str, str]) -> Spec:
    union = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    main = next(part for part in union if part is not NoneType)
    kind, meta = main, msgspec.Meta()
    if get_origin(main) is Annotated:
        kind, meta = get_args(main)
    words = get_args(kind) if get_origin(kind) is Literal else ()
    items = get_args(kind)
    kind = type(words[0]) if words else get_origin(kind) or kind
    limits = {key: getattr(meta, key) for key in ("ge", "gt", "le", "min_length")}
    return Spec(
        name=name,
        type=hint,
        kind=dict if kind is Mapping else kind,
        words=words,
        of_texts=kind is tuple and str in items,
        default=default,
        needed=NoneType not in union,
        text=texts.get(name, ""),
        guide=name in of.guide,
        limits={key: value for key, value in limits.items() if value is not None},
        **(meta.extra or {}),
    )


def _texts(of: type[Settings]) -> dict[str, str]:
    """What stands under "Attributes:" of the class and of those that it extends."""
    found: dict[str, str] = {}
    for one in reversed(of.__mro__):
        section = inspect.getdoc(one) or "" if "__doc__" in vars(one) else ""
        section = section.partition("Attributes:\n")[2].partition("\n\n")[0]
        for match in re.finditer(r"^    (\w+): (.*(?:\n     .*)*)", section, re.MULTILINE):
            found[match[1]] = " ".join(match[2].split()).replace("``", "`")
    return found


def policy_name(text: str) -> str | None:
    """The spelling of `POLICIES` for any of its spellings ("s3fifo"), or None."""
    return next((name for name in POLICIES if _plain(name) == _plain(text)), None)


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
    return text.lower().replace("-", "").replace("_", "")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"
