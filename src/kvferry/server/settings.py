"""The settings of a server one by one: what each may be, by the name that people write."""

from __future__ import annotations

import json
from typing import Any

from kvferry.engine_config.fields import (
    POLICIES,
    Choice,
    Field,
    Json,
    Number,
    Switch,
    Text,
    Whole,
)
from kvferry.errors import ConfigError

__all__ = ["ADAPTERS", "ALIASES", "PLAIN", "PREFIX", "SETTINGS", "AdapterText"]

PREFIX = "KVFERRY_SERVER_"


class Secret(Text):
    """A text that no error shows."""

    def check(self, name: str, value: Any) -> Any:
        """As `Field.check`, without the value."""
        return self._checked(name, value)

    def parse(self, variable: str, text: str) -> Any:
        """As `Field.parse`, without the value."""
        return self._checked(variable, text)

    def _checked(self, name: str, value: Any) -> Any:
        if value is None and not self.needed:
            return None
        if isinstance(value, str) and value and all("!" <= char <= "~" for char in value):
            return value
        raise ConfigError(f"{name} is not valid; use {self.wanted}")


class AdapterText:
    """An adapter as JSON from a command line, which nothing shows.

    Args:
        name: What errors call it.
        text: The JSON.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text

    def __repr__(self) -> str:
        return f"<AdapterText {self.name}>"


class Adapters(Json):
    """A list of mappings; as JSON also a single one. There are secrets in it: none is quoted."""

    def check(self, name: str, value: Any) -> Any:
        """As `Json.check`; an `AdapterText` in the list is parsed."""
        found: list[Any] = []
        for one in super().check(name, value) or ():
            found += self.parse(one.name, one.text) if isinstance(one, AdapterText) else [one]
        return found

    def parse(self, variable: str, text: str) -> Any:
        """Every adapter of the text.

        Raises:
            ConfigError: It is no JSON, names something twice, or is something else.
        """
        value, problem = _parsed(text)
        if problem is not None:
            raise ConfigError(f"{variable} {problem}")
        if isinstance(value, dict):
            value = [value]
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise ConfigError(f'{variable} is no object; write {{"type": "redis", ...}}')
        return value


def _parsed(text: str) -> tuple[Any, str | None]:
    """What the text holds, or what is wrong with it. No error of the parser leaves this function:
    it would hold the text."""

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
    return value, f"names {twice[0]!r} twice; keep one" if twice else None


ADAPTERS = Adapters(kind=list, what="a list of mappings, each with a type")

# Those that `ServerConfig` has as they are.
PLAIN: dict[str, Field] = {
    "chunk_size": Whole(low=1, high=1 << 20, unit="tokens", needed=False),
    "http_token": Secret(what="a text of printable ASCII without spaces", needed=False),
    "curve_key_file": Text(what="the path of a file", needed=False),
    "shm_name": Text(what="a short word"),
    "hugepages": Switch(),
    "numa": Whole(low=0, high=1023, needed=False),
    "state_file": Text(what="the path of a file", needed=False),
    "lease_s": Number(high=86_400.0, unit="seconds"),
    "heartbeat_s": Number(high=3_600.0, unit="seconds"),
    "dead_after_s": Number(high=86_400.0, unit="seconds"),
    "client_share": Number(high=1.0),
    "drain_s": Number(high=3_600.0, closed=True, unit="seconds"),
}

# All that a file, the environment and the command line may name.
SETTINGS: dict[str, Field] = {
    # What the pool and the stores are: these win over the engine's own settings.
    "l1_size_gb": Number(high=1 << 20, unit="GB"),
    "eviction_policy": Choice(words=POLICIES),
    "l2_adapters": ADAPTERS,
    # Where engines connect: all of it at once, or in parts.
    "endpoints": Json(kind=list, what="a list such as [tcp://127.0.0.1:5555]"),
    "tcp": Switch(),
    "host": Text(what="an address of this host, e.g. localhost"),
    "port": Whole(low=0, high=65_535),
    "ipc": Text(what="the path of a socket"),
    # Where people and programs look.
    "http": Switch(),
    "http_host": Text(what="an address of this host, e.g. localhost"),
    "http_port": Whole(low=0, high=65_535),
    "http_token_file": Text(what="the path of a file"),
    **PLAIN,
}

# Other names for the same.
ALIASES = {
    "l2_adapter": "l2_adapters",
    "stores": "l2_adapters",
    "l1_size": "l1_size_gb",
    "max_local_cpu_size": "l1_size_gb",
    "state": "state_file",
}
