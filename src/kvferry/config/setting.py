"""How a setting is declared: once, with all that readers, checks, flags and the guide need.

    chunk_size: Annotated[int, setting(unit="tokens", ge=1)] = 256

is a field of a subclass of `Settings`. Type and limits say what a value may be; what it means
stands under "Attributes:" in the docstring of the class. Every other place derives from this: the
check of the constructor, the readers of YAML, JSON, URL and environment (`config.source_values`),
the options of `kvferry server` (`cli.serving`), the tables of the guide (`tools/settings.py`).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping
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

from kvferry.base.credentials import CREDENTIAL_BYTES_MAX
from kvferry.base.errors import ConfigError
from kvferry.config.native_words import policies, serdes
from kvferry.config.spec import Spec

__all__ = [
    "GB",
    "AnySerde",
    "Host",
    "Path",
    "PolicyName",
    "PolicyOrNone",
    "Port",
    "Seconds",
    "Secret",
    "Serde",
    "Settings",
    "Text",
    "Url",
    "Word",
    "setting",
    "specs",
    "word",
]

GB = 1 << 30  # as the field counts sizes of caches: LMCache's "GB" are 2**30 bytes
_LIMITS = ("ge", "gt", "le", "pattern", "min_length")


def setting(**about: Any) -> msgspec.Meta:
    """What a setting is beside its type; what it means stands under "Attributes:" of its class.

    Args:
        **about: Attributes of `Spec` from `unit` on; `ge`, `gt`, `le`, `pattern`, `min_length` of
            `msgspec.Meta`; and `words`, a function that says what a text may be.
    """
    limits = {name: about.pop(name) for name in _LIMITS if name in about}
    return msgspec.Meta(extra=about, **limits)


def word(file: str) -> msgspec.Meta:
    """A secret word, which another setting may name the file of."""
    use = "a text of printable ASCII without spaces"
    return setting(secret=True, pattern=r"^[!-~]+\Z", use=use, word_file=file)


# What many settings are.
PolicyName = Annotated[str, setting(words=policies)]
PolicyOrNone = Annotated[str, setting(words=lambda: (*policies(), "none"))]
Serde = Annotated[str, setting(words=lambda: (*serdes(), "auto"))]  # without loss
AnySerde = Annotated[str, setting(words=lambda: (*serdes(lossy=True), "auto"))]
Seconds = Annotated[float, setting(gt=0, unit="seconds")]
Port = Annotated[int, setting(ge=1, le=65535, blank=True)]
Text = Annotated[str, setting(min_length=1)]
Path = Annotated[str, setting(min_length=1, use="a path")]
Url = Annotated[str, setting(quoted=False, use="a URL, e.g. redis://cache-1:6379")]
Host = Annotated[
    str,
    setting(
        pattern=r"^[^\s/@,]+\Z",
        use="a host name (a URL goes to `url` or from_url())",
        quoted=False,
        bytes_max=255,
        blank=True,
    ),
]
# Servers may allow empty ones; errors do not quote them.
Word = Annotated[str, setting(quoted=False, bytes_max=CREDENTIAL_BYTES_MAX, blank=True)]
Secret = Annotated[str, setting(secret=True, bytes_max=CREDENTIAL_BYTES_MAX, blank=True)]


class _Made(msgspec.StructMeta):
    """Makes settings of keywords, under any of their names.

    One that is gone is an error that says what to do instead.
    """

    removed: Mapping[str, str]
    aliases: Mapping[str, Any]

    def __call__(cls, *args: Any, **given: Any) -> Any:
        for name in given.keys() & cls.removed.keys():
            raise ConfigError(f"{name} {cls.removed[name]}")
        plain = {alias: name for alias, (name, unit) in cls.aliases.items() if unit is None}
        return super().__call__(*args, **{plain.get(n, n): value for n, value in given.items()})


class Settings(msgspec.Struct, frozen=True, kw_only=True, metaclass=_Made):
    """Settings that are checked when they are made, and whose repr holds no secret.

    A subclass names in `guide` those that its users need explained; the others are for an appendix.
    In `removed` are those that it had, each with what to do instead.
    """

    guide: ClassVar[tuple[str, ...]] = ()
    removed: ClassVar[Mapping[str, str]] = {}
    aliases: ClassVar[Mapping[str, Any]] = {}  # as `Names` has them

    def __post_init__(self) -> None:
        for name, spec in specs(type(self)).items():
            value = getattr(self, name)
            if value is not spec.default:
                self._set(name, spec.check(value))
        for name, _ in self.changed():
            for need in specs(type(self))[name].needs:
                self._check_need(name, *need.split("="))
        self._check()

    def _check_need(self, name: str, other: str, words: str = "") -> None:
        there, wanted = getattr(self, other), words.split("|") if words else []
        if there in wanted if words else there not in (None, False, "", ()):
            return
        needed = f"{other}={' or '.join(map(repr, wanted))}" if words else other
        raise ConfigError(f"{name} is set without {needed}; set both, or leave {name} out")

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
    kind, *metas = get_args(main) if get_origin(main) is Annotated else (main,)
    words = get_args(kind) if get_origin(kind) is Literal else ()
    items = get_args(kind)
    kind = type(words[0]) if words else get_origin(kind) or kind
    limits = ((key, getattr(meta, key)) for meta in metas for key in _LIMITS if key != "pattern")
    about = {name: value for meta in metas for name, value in (meta.extra or {}).items()}
    named = about.pop("words", None)
    return Spec(
        name=name,
        type=hint,
        kind=dict if kind is Mapping else kind,
        choices=named or words,
        of_texts=kind is tuple and str in items,
        default=default,
        needed=NoneType not in union,
        text=texts.get(name, ""),
        guide=name in of.guide,
        limits={key: value for key, value in limits if value is not None},
        **about,
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
