"""What one place (a call, a section of a file, the environment) says of a set of settings."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from kvferry.base.errors import ConfigError
from kvferry.config.file import (
    find_config_file,
    open_with_secret,
    read_document,
    read_token,
    section_of,
)
from kvferry.config.setting import Settings, specs
from kvferry.config.spec import Spec
from kvferry.config.url import unknown

__all__ = ["Alias", "Findings", "Names", "Section", "SourceValues"]

Alias = tuple[str, float | Literal[False] | None]
# Of a variable's name behind its prefix: beyond it a typing error is likelier than a stranger.
_SIMILAR = 0.8


@dataclass
class Findings:
    """Problems, warnings and notes about settings.

    Attributes:
        problems: Errors: the settings cannot be used.
        warnings: Likely mistakes.
        notes: Settings that are read and have no effect.
    """

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def log(self, to: logging.Logger) -> None:
        """Log warnings and notes."""
        for text in self.warnings:
            to.warning("%s", text)
        for text in self.notes:
            to.info("%s", text)

    def raise_first(self) -> None:
        """Raise the first problem as `ConfigError`, if there is one."""
        if self.problems:
            more = len(self.problems) - 1
            raise ConfigError(self.problems[0] + (f" (and {more} more)" if more else ""))


@dataclass
class SourceValues:
    """Checked values by our names.

    Attributes:
        kind: "call", "file" or "environment".
        where: What stands before the name of a setting in an error.
        values: By our names.
        spelled: By our names, how the place names them.
    """

    kind: str
    where: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    spelled: dict[str, str] = field(default_factory=dict)

    def source(self, name: str) -> str:
        """The source of a setting, for people: a variable's name, or the kind of the place."""
        return self.spelled[name] if self.kind == "environment" else self.kind

    def put(self, name: str, given: str, value: Any) -> None:
        """Keep a value.

        Raises:
            ConfigError: The place has the setting already, under another name.
        """
        if name in self.values:
            raise ConfigError(
                f"{self.where}{given} says {self.spelled[name]} a second time; keep one"
            )
        self.values[name], self.spelled[name] = value, given


@dataclass(frozen=True)
class Names:
    """The names that places may use.

    Attributes:
        known: Our settings.
        section: Where they stand in a file.
        prefix: What their variables begin with.
        aliases: Other names of settings: our name, and the factor from their unit to ours, if it
            differs; False: the meaning is negated.
        foreign: Names of LMCache's settings that have no effect; with the reason where they must
            be off.
        zero_counts: Those of `foreign` for which 0 and false are not off.
        elsewhere: Names that belong into another place, with the advice to put them there.
        off: Settings where false says that there is none.
    """

    known: Mapping[str, Spec]
    section: str = ""
    prefix: str = ""
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    foreign: Mapping[str, str | None] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    off: Container[str] = ()
    zero_counts: Container[str] = ()

    def gather(
        self,
        file: Path | None,
        environ: Mapping[str, str],
        overrides: Mapping[str, Any],
        found: Findings,
    ) -> list[SourceValues]:
        """What the call, the section of the file and the environment say, the strongest first.

        Raises:
            ConfigError: The file is missing or malformed, or a setting is.
        """
        places = [self.take(SourceValues("call"), overrides, found)]
        if file is not None:
            settings = section_of(file, read_document(file), self.section)
            place = SourceValues("file", f"{file}: {self.section}: ")
            places.append(self.take(place, settings, found))
            found.warnings += open_with_secret(file, settings)
        port = f"{self.prefix}PORT"
        if "://" in environ.get(port, ""):
            # Kubernetes says so of a service with our name, to every pod.
            found.warnings.append(f"{port} is no port but that of a service; it is not read")
            environ = {name: text for name, text in environ.items() if name != port}
        places.append(self.take_environ(environ, self.prefix, found))
        found.warnings += self.misspelt(environ, self.prefix)
        found.raise_first()
        return places

    def together(self, places: Sequence[SourceValues]) -> dict[str, Any]:
        """Merge places, the strongest first, and read the secrets that stand in files.

        Raises:
            ConfigError: A place names a secret and its file, or such a file holds something else.
        """
        values = {name: value for place in reversed(places) for name, value in place.values.items()}
        for name, spec in self.known.items():
            if not spec.word_file:
                continue
            place = next((p for p in places if {name, spec.word_file} & p.values.keys()), None)
            if place is None or spec.word_file not in place.values:
                continue
            if name in place.values:
                raise ConfigError(
                    f"{place.where}{name} and {spec.word_file} are the same; keep one"
                )
            values[name] = read_token(Path(place.values[spec.word_file]), spec.word_file)
        return values

    def take(
        self, place: SourceValues, settings: Mapping[Any, Any], found: Findings
    ) -> SourceValues:
        """Check a mapping's settings into a place; None counts as not given."""
        for given, value in settings.items():
            if value is not None and not (value is False and given in self.off):
                self._take(place, given, given, value, found)
        return place

    def checked(self, settings: Mapping[Any, Any], where: str = "") -> dict[str, Any]:
        """The settings of one mapping, by our names; None counts as not given.

        Args:
            settings: By any of the names.
            where: Before the name of a setting in an error.

        Raises:
            ConfigError: A name is unknown, or a value cannot be.
        """
        found = Findings()
        place = self.take(SourceValues("call", where), settings, found)
        found.raise_first()
        return place.values

    def take_environ(
        self, environ: Mapping[str, str], prefix: str, found: Findings
    ) -> SourceValues:
        """Check the variables that begin with `prefix`; an empty one counts as not given."""
        place = SourceValues("environment")
        for given in (*self.known, *self.aliases, *self.foreign, *self.elsewhere):
            variable = prefix + given.upper()
            if text := environ.get(variable):
                self._take(place, given, variable, text, found)
        return place

    def _take(
        self, place: SourceValues, given: Any, spelled: Any, value: Any, found: Findings
    ) -> None:
        """Take one setting under the place's spelling; an error becomes a problem."""
        at = f"{place.where}{spelled}"
        try:
            if given in self.foreign:
                found.notes += self._foreign(given, at, value)
                return
            if given in self.elsewhere:
                raise ConfigError(f"{at} {self.elsewhere[given]}")
            name, unit = self._ours(given, place.where)
            spec = self.known[name]
            if value == "" and spec.blank:
                return
            read = spec.parse if place.kind == "environment" else spec.check
            if unit is False:
                value, read = not read(value, at), spec.check
            elif unit is not None:
                value, read = _scaled(spec, value, unit, at), spec.check
            place.put(name, spelled, read(value, at))
        except ConfigError as error:
            found.problems.append(str(error))

    def misspelt(
        self, environ: Mapping[str, str], prefix: str, others: Iterable[str] = ()
    ) -> list[str]:
        """Warnings about variables that begin with `prefix` and resemble one that is read."""
        known = [name.upper() for name in (*self.known, *self.aliases, *self.foreign)]
        mine = (name for name in environ if name.startswith(prefix))
        strangers = [name.removeprefix(prefix) for name in mine if not name.startswith((*others,))]
        return [
            f"{prefix}{name} is not read; did you mean {prefix}{close}?"
            for name in strangers
            if name not in known
            for close in difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR)
        ]

    def _ours(self, given: Any, where: str = "") -> Alias:
        if given in self.known:
            return given, None
        if given in self.aliases:
            return self.aliases[given]
        near = (*self.known, *self.aliases, *self.foreign)
        close = difflib.get_close_matches(str(given), near, n=1, cutoff=0.4)
        raise ConfigError(f"{where}{unknown(given, close or self.known, {})}")

    def _foreign(self, name: str, at: str, value: Any) -> list[str]:
        word = str(value).lower()
        off = value in (None, "", [], {}) or word in ("none", "null")
        if name not in self.zero_counts:
            off = off or word in ("false", "no", "off") or _is_zero(word)
        why = self.foreign[name]
        if why is None or off:
            return [f"{at} has no effect here"]
        raise ConfigError(f"{at} {why}")


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False


def _scaled(spec: Spec, value: Any, unit: float, at: str) -> float:
    """A number of another unit, converted to ours."""
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value) * unit
    except (TypeError, ValueError, OverflowError):
        pass
    raise spec.error(value, at)


class Section(Settings, frozen=True, kw_only=True):
    """The settings of a program, which has a section of the file and variables of its own."""

    section: ClassVar[str]

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Self:
        """The settings of this call, of a file and of the environment; see `kvferry.config`.

        Args:
            path: The file; default: that of ``KVFERRY_CONFIG_FILE``, or none.
            environ: Default: of this process.
            **overrides: Settings, where not None.

        Raises:
            ConfigError: A file is missing or malformed, or a setting is; the text names it.
        """
        environ, found = os.environ if environ is None else environ, Findings()
        prefix = f"KVFERRY_{cls.section.upper()}_"
        names = Names(specs(cls), cls.section, prefix, cls.aliases, elsewhere=cls.removed)
        places = names.gather(find_config_file(path, environ), environ, overrides, found)
        found.log(logging.getLogger(f"kvferry.{cls.section}"))
        return cls(**names.together(places))
