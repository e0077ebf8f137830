"""Where the settings of an engine come from, which wins, and all that is wrong with them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kvferry._config_file import FILE_VARIABLE, read_document, section_of
from kvferry._url import nearest
from kvferry.config_file import file_settings, others_may_read
from kvferry.engine_config.engine import FIELDS, EngineConfig, contradictions, named_stores
from kvferry.engine_config.fields import Field, Json, Number, Text
from kvferry.engine_config.foreign import ALIASES, FOREIGN, refusal
from kvferry.engine_config.store_sources import Origin, gathered_stores
from kvferry.engine_config.stores import StoreConfig
from kvferry.errors import ConfigError

__all__ = ["Examined", "examine"]

FILE_VARIABLES = (FILE_VARIABLE, "LMCACHE_CONFIG_FILE")
PREFIXES = ("KVFERRY_", "LMCACHE_")
_SIMILAR = 0.85  # of a variable's name: beyond it a typing error is likelier than a stranger

# Variables that others read.
_OTHERS = ("KVFERRY_RESP_", "KVFERRY_SERVER_")
# Sections of others, also in a file whose other settings have none.
_SECTIONS = ("client", "server")
# Settings that become stores.
SPECIAL: dict[str, Field] = {
    "stores": Json(kind=list, what="a list of mappings, each with a type"),
    "remote_url": Text(what="e.g. redis://host:port"),
    "local_disk": Text(what="the path of a directory"),
    "max_local_disk_size": Number(closed=True, unit="GB"),
    "extra_config": Json(kind=dict, what="a mapping of names to values"),
}
OURS = (*FIELDS, *SPECIAL, *ALIASES)


@dataclass
class Layer:
    """What one place says: checked values by our names, and how to name the place."""

    origin: Origin
    values: dict[str, Any] = field(default_factory=dict)
    spelled: dict[str, str] = field(default_factory=dict)  # our name: as it stands there
    client: dict[str, Any] = field(default_factory=dict)  # fields of the section of clients


@dataclass
class Examined:
    """All settings with their sources, and what is wrong.

    Attributes:
        file: The file that was read, if any.
        values: Setting: value and source ("default", "file", a variable, "call").
        stores: Each with its source.
        problems: What keeps the settings from being used.
        warnings: What is most likely not meant.
        notes: What is read and has no effect.
    """

    file: Path | None = None
    values: dict[str, tuple[Any, str]] = field(default_factory=dict)
    stores: list[tuple[StoreConfig, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def settings(self) -> dict[str, Any]:
        """The keywords of `EngineConfig`.

        Raises:
            ConfigError: There is a problem; the text is the first one.
        """
        if self.problems:
            more = len(self.problems) - 1
            raise ConfigError(self.problems[0] + (f" (and {more} more)" if more else ""))
        values = {name: value for name, (value, _) in self.values.items()}
        return {**values, "stores": tuple(store for store, _ in self.stores)}


def examine(
    path: str | os.PathLike[str] | None = None,
    *,
    section: str = "engine",
    environ: Mapping[str, str] | None = None,
    over_file: Mapping[str, Mapping[str, Any]] | None = None,
    **overrides: Any,
) -> Examined:
    """Read all sources and find all problems; the arguments are those of `EngineConfig.load`.

    Args:
        path, section, environ, **overrides: See there.
        over_file: Settings that other sections of the same file have, by section; they win over
            `section` and over nothing else.

    Raises:
        ConfigError: The file is missing, unreadable or no YAML.
    """
    environ = os.environ if environ is None else environ
    found = Examined()
    if path is None:
        path = next((environ[name] for name in FILE_VARIABLES if environ.get(name)), None)
    layers = [_of_call(overrides, found), _of_environ(environ, found)]
    if path is not None:
        found.file = Path(path)
        layers += _of_sections(found.file, over_file or {}, found)
        layers.append(_of_file(found.file, section, found))
    for item in fields(EngineConfig):
        if item.name in FIELDS:
            layer = next((layer for layer in layers if item.name in layer.values), None)
            if layer is None:
                found.values[item.name] = (item.default, "default")
            else:
                source = layer.origin.source(layer.spelled[item.name])
                found.values[item.name] = (layer.values[item.name], source)
    found.problems += contradictions({name: value for name, (value, _) in found.values.items()})
    special = {}
    for name in SPECIAL:
        layer = next((layer for layer in layers if name in layer.values), None)
        if layer is not None:
            special[name] = (layer.values[name], layer.origin, layer.spelled[name])
    client = layers[-1].client
    found.stores = list(gathered_stores(special, client, environ, found.problems))
    try:
        named = named_stores(tuple(store for store, _ in found.stores))
    except ConfigError as error:
        found.problems.append(str(error))
    else:
        found.stores = [(s, source) for s, (_, source) in zip(named, found.stores, strict=True)]
    _warn_of_secrets(found)
    return found


def _of_call(overrides: Mapping[str, Any], found: Examined) -> Layer:
    layer = Layer(Origin("call"))
    _take(layer, overrides, found)
    return layer


def _of_file(file: Path, section: str, found: Examined) -> Layer:
    """A section, or all of a file that has none; and the section of clients."""
    document = read_document(file)
    flat = section not in document and any(
        name in OURS or name in FOREIGN or not isinstance(value, dict | None)
        for name, value in document.items()
    )
    layer = Layer(Origin("file", f"{file}: " if flat else f"{file}: {section}: ", file))
    try:
        client = section_of(file, document, "client")
        if flat:
            settings = {name: value for name, value in document.items() if name not in _SECTIONS}
        else:
            settings = section_of(file, document, section)
    except ConfigError as error:
        found.problems.append(str(error))
        return layer
    try:
        layer.client = file_settings(file, client, "client")
    except ConfigError as error:
        found.problems.append(str(error))
    _take(layer, settings, found)
    return layer


def _of_sections(
    file: Path, sections: Mapping[str, Mapping[str, Any]], found: Examined
) -> Iterator[Layer]:
    for section, settings in sections.items():
        layer = Layer(Origin("file", f"{file}: {section}: ", file))
        _take(layer, settings, found)
        yield layer


def _take(layer: Layer, settings: Mapping[str, Any], found: Examined) -> None:
    """Sort what a mapping says into a layer."""
    where = layer.origin.where
    for given, value in settings.items():
        if value is None or (given == "local_disk" and value is False):
            continue
        if given in FOREIGN:
            _foreign(f"{where}{given}", given, value, found)
            continue
        if given not in OURS:
            known = [*OURS, *FOREIGN]
            close = difflib.get_close_matches(str(given), known, n=1, cutoff=0.4)
            advice = nearest(str(given), close or OURS)
            found.problems.append(f"{where}unknown setting {given!r}{advice}")
            continue
        name, unit = ALIASES.get(given, (given, None))
        try:
            if unit is not None:
                value = Number(closed=True).check(given, value) * unit
            value = _spec(name).check(given if unit is None else name, value)
        except ConfigError as error:
            found.problems.append(f"{where}{error}")
            continue
        _put(layer, name, given, value, f"{where}{given}", found)


def _of_environ(environ: Mapping[str, str], found: Examined) -> Layer:
    layer = Layer(Origin("environment"))
    known = []
    for prefix in PREFIXES:
        for given in (*OURS, *FOREIGN):
            variable = prefix + given.upper()
            known.append(variable)
            text = environ.get(variable)
            if not text:
                continue
            if given in FOREIGN:
                _foreign(variable, given, text, found)
                continue
            name, unit = ALIASES.get(given, (given, None))
            if name in layer.values and not layer.spelled[name].startswith(prefix):
                continue  # the stronger prefix came first
            try:
                if unit is not None:
                    value = Number(closed=True).parse(variable, text) * unit
                    value = _spec(name).check(name, value)
                else:
                    value = _spec(name).parse(variable, text)
            except ConfigError as error:
                found.problems.append(str(error))
                continue
            _put(layer, name, variable, value, variable, found)
    for variable in environ:
        ours = variable.startswith(PREFIXES[0]) and not variable.startswith(_OTHERS)
        if ours and variable not in (*known, *FILE_VARIABLES):
            for close in difflib.get_close_matches(variable, known, n=1, cutoff=_SIMILAR):
                found.warnings.append(f"{variable} is not read; did you mean {close}?")
    return layer


def _put(layer: Layer, name: str, given: str, value: Any, where: str, found: Examined) -> None:
    if name in layer.values:
        found.problems.append(f"{where} says {layer.spelled[name]} a second time; keep one")
        return
    layer.values[name] = value
    layer.spelled[name] = given


def _foreign(shown: str, name: str, value: Any, found: Examined) -> None:
    why = refusal(name, value)
    if why is not None:
        found.problems.append(f"{shown} {why}")
    else:
        found.notes.append(f"{shown} has no effect here")


def _spec(name: str) -> Field:
    return FIELDS[name] if name in FIELDS else SPECIAL[name]


def _warn_of_secrets(found: Examined) -> None:
    """A file that others may open should hold no secret."""
    if not others_may_read(found.file):
        return
    for store, source in found.stores:
        if source.startswith("file") and any(_secrets(store)):
            found.warnings.append(
                f"{found.file} holds a secret and others may open it; run chmod 600 on it"
            )
            return


def _secrets(store: StoreConfig) -> Iterator[object]:
    if store.client is not None:
        yield from (store.client.password, store.client.sentinel_password)
        yield store.client.tls_key_password
    yield from store.params
