"""The stores that the settings name, each with all that the sources say about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry._url import nearest
from kvferry.config import ClientConfig, check_known, env_settings
from kvferry.config_file import limits_of, merged_settings
from kvferry.engine_config.foreign import EXTRA
from kvferry.engine_config.stores import StoreConfig, store_settings
from kvferry.errors import ConfigError

__all__ = ["Origin", "gathered_stores"]

_THEIRS = "LMCACHE_RESP_"
Special = Mapping[str, tuple[Any, "Origin", str]]  # setting: value, origin, as it is spelled there


@dataclass(frozen=True)
class Origin:
    """A place that settings come from: "call", "environment" or "file"."""

    kind: str
    where: str = ""  # before the name of a setting in an error
    file: Path | None = None

    def source(self, spelled: str) -> str:
        """What to say of a setting that comes from here."""
        return spelled if self.kind == "environment" else self.kind


@dataclass
class _Entry:
    """A store in the making."""

    shown: str
    origin: Origin
    source: str
    settings: Any
    takes_environ: bool = False


def gathered_stores(
    special: Special,
    client: Mapping[str, Any],
    environ: Mapping[str, str],
    problems: list[str],
) -> Iterator[tuple[StoreConfig, str]]:
    """Every store and its source; what is wrong with the others goes to `problems`.

    Args:
        special: The settings that become stores.
        client: Fields of the file's section of clients.
        environ: For ``KVFERRY_RESP_*`` and ``LMCACHE_RESP_*``.
    """
    extra = _extra(special, problems)
    entries = list(_entries(special, extra, problems))
    redis = [entry for entry in entries if _is_redis(entry.settings)]
    if not redis and not ("stores" in special and special["stores"][1].kind == "call"):
        try:
            named = env_settings(environ, {})
        except ConfigError as error:
            problems.append(str(error))
            named = {}
        if "host" in named or "unix_path" in named:
            settings = {"type": "redis", **extra}
            redis = [_Entry("KVFERRY_RESP_*", Origin("file"), "KVFERRY_RESP_*", settings)]
            entries += redis
    for entry in redis[:1]:
        entry.takes_environ = True
    for entry in entries:
        try:
            if isinstance(entry.settings, StoreConfig):
                yield entry.settings, entry.source
                continue
            own, explicit = store_settings(entry.settings)
            if own["type"] == "redis" and "client" not in own:
                env = environ if entry.takes_environ else {}
                merged = _merged(entry.origin, explicit, client, env)
                check_known(merged)
                own["client"] = ClientConfig(**merged)
            yield StoreConfig(**own), entry.source
        except ConfigError as error:
            problems.append(f"{entry.shown}: {error}")


def _entries(special: Special, extra: Mapping[str, Any], problems: list[str]) -> Iterator[_Entry]:
    if "local_disk" in special:
        path, origin, spelled = special["local_disk"]
        size = special.get("max_local_disk_size", (0, origin, ""))[0]
        settings: dict[str, Any] = {
            "type": "file",
            "path": path.removeprefix("file://"),
            "max_capacity_gb": size,
        }
        if size:
            yield _Entry(f"{origin.where}{spelled}", origin, origin.source(spelled), settings)
        else:
            problems.append(f"{origin.where}{spelled} needs max_local_disk_size, in GB")
    if "remote_url" in special:
        url, origin, spelled = special["remote_url"]
        settings = {"type": "redis", "url": url, **extra}
        yield _Entry(f"{origin.where}{spelled}", origin, origin.source(spelled), settings)
    if "stores" in special:
        stores, origin, spelled = special["stores"]
        for index, item in enumerate(stores):
            shown = f"{origin.where}{spelled}[{index}]"
            if not isinstance(item, Mapping | StoreConfig):
                problems.append(f"{shown} is no mapping; it begins with e.g. type: redis")
            elif isinstance(item, Mapping) and not all(isinstance(name, str) for name in item):
                problems.append(f"{shown}: a name is not a word; quote it")
            else:
                yield _Entry(shown, origin, origin.source(spelled), item)


def _is_redis(settings: Any) -> bool:
    """Whether it is a redis store that is not complete already."""
    if not isinstance(settings, Mapping):
        return False
    return str(settings.get("type")).lower() in ("redis", "resp", "valkey")


def _extra(special: Special, problems: list[str]) -> dict[str, Any]:
    """What extra_config says of the remote store."""
    if "extra_config" not in special:
        return {}
    extra, origin, spelled = special["extra_config"]
    shown = f"{origin.where}{spelled}"
    found = {}
    for name, value in extra.items():
        if name not in EXTRA:
            problems.append(f"{shown}: unknown setting {name!r}{nearest(str(name), EXTRA)}")
        elif name == "save_chunk_meta" and value not in (None, False):
            problems.append(
                f"{shown}: save_chunk_meta={value!r} is not possible: the frame in front of each "
                "value says what it is; set it to false"
            )
        elif (ours := EXTRA[name]) is not None and value not in (None, ""):
            found[ours] = value
    return found


def _merged(
    origin: Origin,
    explicit: Mapping[str, Any],
    client: Mapping[str, Any],
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """The settings of one client; see the head of the package."""
    has_server = bool({"host", "unix_path"} & explicit.keys())
    if origin.kind == "file":
        base = limits_of(client) if has_server else client
        theirs = {name: text for name, text in environ.items() if name.startswith(_THEIRS)}
        ours = {name: text for name, text in environ.items() if name not in theirs}
        merged = merged_settings({**base, **explicit}, ours, {}, by_url=False)
        # With LMCache its variables say what the file leaves open.
        defaults = env_settings(theirs, merged)
        if "unix_path" in merged:
            defaults = {name: defaults[name] for name in defaults if name not in ("host", "port")}
        return {**defaults, **merged}
    return merged_settings(client, environ, explicit, by_url=has_server)
