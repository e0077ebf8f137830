"""The settings of a controller, as one frozen object that is checked when it is made.

config = ControllerConfig.load(port=9000, monitor_ports={"pull": 8300, "reply": 8400})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from kvferry.base.errors import ConfigError
from kvferry.config.client import ClientConfig
from kvferry.config.endpoints import address_of
from kvferry.config.removed import REMOVED
from kvferry.config.setting import Path, setting, word
from kvferry.config.source_values import Section
from kvferry.config.tuning import ControllerTuning
from kvferry.config.url import is_loopback

__all__ = ["MONITOR_PORTS", "ControllerConfig"]

MONITOR_PORTS = {"pull": 8300, "reply": 8400, "heartbeat": 8082}
_PORTS = 'a mapping such as {"pull": 8300, "reply": 8400, "heartbeat": 8082}'
_Port = Annotated[int, setting(ge=0, le=65_535)]
_Url = Annotated[str, setting(secret=True, use="a URL, e.g. redis://cache-1:6379/1")]


class ControllerConfig(Section, frozen=True, kw_only=True):
    """What a controller runs with.

    Attributes:
        host: The address where instances and callers of HTTP connect. One that other hosts reach
            needs `secret_file` and `token_file`.
        port: The port where HTTP listens; 0 takes any that is free.
        monitor_ports: The ports where instances connect: "pull" takes updates, "reply" answers
            registrations and look-ups, "heartbeat" takes heartbeats. 0 takes any that is free.
        secret: The word that instances must know. It is needed where other hosts can connect;
            without it, processes of this user on this host make one.
        secret_file: A file with the word that instances must know. It is needed where other hosts
            can connect; without it, processes of this user on this host make one.
        http_token: The word that callers of HTTP must show. It is needed where other hosts can
            connect.
        token_file: A file with the word that callers of HTTP must show. It is needed where other
            hosts can connect.
        directory: The URL of a Redis or Valkey in which controllers share who lives and who holds
            what, so that any of them may die.
        tokenizer_file: A tokenizer.json of the models that instances run, so that a text can be
            looked up and explained. It needs `pip install tokenizers`.
        tuning: Values that are no settings.

    Raises:
        ConfigError: A setting cannot be, or contradicts another one.
    """

    section: ClassVar = "controller"
    removed: ClassVar = REMOVED["controller"]
    guide: ClassVar = (
        *("host", "port", "monitor_ports", "secret_file", "token_file", "directory"),
        "tokenizer_file",
    )

    host: Annotated[str, setting(min_length=1, use="an address of this host")] = "localhost"
    port: _Port = 9000
    monitor_ports: Annotated[Mapping[str, int], setting(use=_PORTS)] = msgspec.field(
        default_factory=lambda: dict(MONITOR_PORTS)
    )
    secret: Annotated[str, word("secret_file")] | None = None
    secret_file: Path | None = None
    http_token: Annotated[str, word("token_file")] | None = None
    token_file: Path | None = None
    directory: _Url | None = None
    tokenizer_file: Path | None = None
    tuning: Annotated[ControllerTuning, setting(private=True)] = ControllerTuning()

    def _check(self) -> None:
        self._set("host", address_of("host", self.host))
        ports = {**MONITOR_PORTS, **self.monitor_ports}
        if len(ports) > len(MONITOR_PORTS) or not all(0 <= p <= 65_535 for p in ports.values()):
            raise ConfigError(f"monitor_ports is not valid; use {_PORTS} and ports up to 65535")
        taken = [port for port in (self.port, *ports.values()) if port]
        for port in taken:
            if taken.count(port) > 1:
                raise ConfigError(f"port {port} is there twice; HTTP and instances need their own")
        self._set("monitor_ports", ports)
        if self.directory is not None:
            try:
                store = ClientConfig.from_url(self.directory)
            except ConfigError as error:
                raise ConfigError(f"directory: {error}") from None
            if store.topology == "cluster":
                raise ConfigError("directory is one server, or one that Sentinels watch")
        if not is_loopback(self.host):
            for name, file, value in (
                ("secret", "secret_file", self.secret),
                ("token", "token_file", self.http_token),
            ):
                if value is None:
                    raise ConfigError(
                        f"host={self.host!r} is reachable from other hosts, which needs a {name}; "
                        f"set {file}, or listen on localhost"
                    )
