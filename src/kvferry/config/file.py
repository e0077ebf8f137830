"""The configuration file as it lies on disk: YAML sections, read strictly and replaced at once.

    client:                    # one section for each reader; clients read this one
      url: redis://cache-1:6379
      connections: 16
    tuned:                     # what `kvferry tune` measured
      chunk_bytes: 4194304

A reader gets its own section, and whatever else is in the file stays there when a section is
written. A file is replaced in one step (a temporary file beside it, fsync, rename) and is then mode
0600, because it may hold secrets: a reader sees the old file or the new one, also after a crash.
Comments and the spelling of values do not survive a write. Of two writers at the same time the
last one wins.

Errors name the file and the line, never its text: a broken line may be that of a password.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import re
import secrets
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvferry.base.errors import ConfigError
from kvferry.base.shown import in_line, shown

__all__ = [
    "FILE_VARIABLE",
    "FILE_VARIABLES",
    "find_config_file",
    "open_with_secret",
    "read_document",
    "read_small",
    "read_token",
    "section_of",
    "write_sections",
]

_log = logging.getLogger("kvferry.config")

FILE_VARIABLE = "KVFERRY_CONFIG_FILE"
FILE_VARIABLES = (FILE_VARIABLE, "LMCACHE_CONFIG_FILE")  # of a cache
_SIZE_BYTES_MAX = 1 << 20
_TOKEN_BYTES_MAX = 4096
_SECRET = re.compile(r"(\w+_)?(password|secret|token)|params")  # the names of such settings
_URL_WITH_SECRET = re.compile(r"://[^/?#@]*:[^/?#]+@|[?&]\w*password=")
_RENAMED = {"engine": "cache"}  # sections of older files
_SIMILAR = 0.8  # of the name of a section: beyond it a typing error is likelier than a stranger


def find_config_file(
    path: str | os.PathLike[str] | None,
    environ: Mapping[str, str] | None = None,
    variables: Sequence[str] = (FILE_VARIABLE,),
) -> Path | None:
    """`path`, else the file that one of the variables names, else None; it need not exist."""
    environ = os.environ if environ is None else environ
    named = (environ[name] for name in variables if environ.get(name))
    path = next(named, None) if path is None else path
    return None if path is None else Path(path)


def open_with_secret(file: Path, settings: Any) -> list[str]:
    """A warning, if others may open this file and these settings in it hold a secret."""
    if not _holds_secret(settings) or not file.stat().st_mode & 0o077:
        return []
    return [f"{file} holds a secret and others may open it; run chmod 600 on it"]


def _holds_secret(found: Any) -> bool:
    """Whether there is a secret somewhere in it, or a URL with one."""
    if isinstance(found, Mapping):
        return any(
            (value and _SECRET.fullmatch(str(name))) or _holds_secret(value)
            for name, value in found.items()
        )
    if isinstance(found, list):
        return any(map(_holds_secret, found))
    return isinstance(found, str) and _URL_WITH_SECRET.search(found) is not None


def section_of(path: Path, document: Mapping[str, Any], section: str) -> dict[str, Any]:
    """One section of what `read_document` gave; a section that is not there is empty.

    Raises:
        ConfigError: It is no mapping, or there is one with nearly the same name.
    """
    if section not in document:
        for other in (old for old, new in _RENAMED.items() if new == section and old in document):
            raise ConfigError(f"{path}: the section {other!r} is called {section!r} now; rename it")
        for other in difflib.get_close_matches(section, document, n=1, cutoff=_SIMILAR):
            raise ConfigError(f"{path} has no section {section!r} but {shown(other)}; rename it")
    found = document.get(section)
    if found is None:  # absent, or a head with nothing under it
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: section {section!r} is not a list of 'name: value' lines")
    for name in found:
        if not isinstance(name, str):
            raise ConfigError(f"{path}: a name in section {section!r} is not a word; quote it")
    return found


def write_sections(path: Path, sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace these sections and keep the others; the file is made if it is not there.

    Raises:
        ConfigError: What is there cannot be read, and so cannot be kept; nothing was written.
        OSError: The directory cannot be written to; the file is as it was.
    """
    import yaml  # not at the top: most programs never write a file

    path = Path(os.path.realpath(path))  # a link stays a link
    document = read_document(path) if path.exists() else {}
    document.update({name: dict(values) for name, values in sections.items()})
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    _replace(path, text.encode())


def read_document(path: Path) -> dict[str, Any]:
    """All of the file.

    Raises:
        ConfigError: It is missing, unreadable or no YAML, or no mapping.
    """
    if os.path.isdir(path):
        raise ConfigError(f"the configuration file {path} is a directory; name a file in it")
    if not os.path.exists(path):
        raise ConfigError(f"there is no configuration file {in_line(str(path))}")
    document, problem = _parse(read_small(path, "configuration file"))
    # Raised out here, where no parser's error hangs on to ours: those quote the file.
    if problem is not None:
        raise ConfigError(f"{path} {problem}")
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise ConfigError(f"{path} is not made of sections; it begins with e.g. 'client:'")
    return document


def _parse(raw: bytes) -> tuple[Any, str | None]:
    """The document, or what is wrong with it."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Without the silent rule that the last of two equal names wins."""

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (yaml.YAMLError, RecursionError):
                raise
            except Exception:  # of a text that is not what its tag says: any
                raise yaml.MarkedYAMLError(problem_mark=node.start_mark) from None

    def construct_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Hashable, Any]:
        seen = set()
        for name, _ in node.value:
            if name.tag != "tag:yaml.org,2002:merge" and isinstance(name, yaml.ScalarNode):
                if name.value in seen:
                    raise yaml.MarkedYAMLError(problem=_TWICE, problem_mark=name.start_mark)
                seen.add(name.value)
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor("tag:yaml.org,2002:map", construct_mapping)
    try:
        return yaml.load(raw.decode(), Loader), None
    except UnicodeDecodeError:
        return None, "is not UTF-8"
    except yaml.MarkedYAMLError as error:
        what = "names something twice" if error.problem == _TWICE else "is not valid YAML"
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        return None, what + where
    except (yaml.YAMLError, RecursionError):
        return None, "is not valid YAML"


_TWICE = "a name occurs twice"


def _replace(path: Path, content: bytes) -> None:
    """Give the file new content, in one step that a crash cannot halve."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            os.fchmod(handle, 0o600)  # whatever the umask
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)  # the rename itself
    finally:
        os.close(directory)


def read_token(file: Path, name: str = "http_token_file") -> str:
    """The word that a file holds.

    Args:
        file: Its path.
        name: Of the setting that names it.

    Raises:
        ConfigError: It is missing, or holds something else.
    """
    token = read_small(file, name, secret=True).decode("ascii", "replace").strip()
    if not 0 < len(token) <= _TOKEN_BYTES_MAX or not all("!" <= char <= "~" for char in token):
        raise ConfigError(f"{name} {file} does not hold one word of printable ASCII")
    return token


def read_small(file: Path, name: str, *, secret: bool = False) -> bytes:
    """All of a file of at most 1 MiB.

    Args:
        file: Its path.
        name: What names it, for errors.
        secret: Warn where others may open it.

    Raises:
        ConfigError: It is missing, unreadable or larger.
    """
    try:
        with file.open("rb") as stream:
            raw = stream.read(_SIZE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{name} {in_line(str(file))}: {error.strerror}") from None
    if len(raw) > _SIZE_BYTES_MAX:
        raise ConfigError(f"{name} {file} is larger than {_SIZE_BYTES_MAX} bytes; name another")
    for text in open_with_secret(file, {"secret": secret}):
        _log.warning("%s", text)
    return raw
