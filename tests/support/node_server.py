"""A node in this process, with what tests ask of a real server; see servers.py.

with NodeServer(size_gb=0.5) as server:
    server.cli("SET", "key", "value"), server.info("stats"), server.restart()
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from typing import Any, Self

from kvferry.sharing.node import Node, NodeSettings
from support.resp import ReplyError, encode, read_reply
from support.servers import HOST
from support.tuned import tuned

__all__ = ["NodeServer"]


class NodeServer:
    """A node at a free port and at a Unix socket; its ports outlive restart().

    Args:
        **settings: Of `NodeSettings`.
    """

    kind = "node"
    host = HOST
    tls = None
    proxy = None

    def __init__(self, **settings: Any) -> None:
        self._home = tempfile.mkdtemp(prefix="kvferry-test-")
        self.unix_path = f"{self._home}/s.sock"
        self.password: str | None = settings.get("password")
        self.version = (7, 2, 4)
        wanted = {"size_gb": 0.5, "prefault": False, **settings}
        self.node = self._start(0, wanted)
        self.port = int(self.node.endpoints[0].rpartition(":")[2])
        self._settings = wanted

    def _start(self, port: int, settings: dict[str, Any]) -> Node:
        listen = (f"{HOST}:{port}", f"unix:{self.unix_path}")
        return Node(NodeSettings(listen=listen, **tuned(NodeSettings, **settings)))

    @property
    def _user(self) -> str:
        return f":{self.password}@" if self.password else ""

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def client_port(self) -> int:
        return self.port

    @property
    def url(self) -> str:
        return f"redis://{self._user}{self.address}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._user}{self.unix_path}"

    def cli(self, *words: bytes | str | int | float, timeout_s: float = 10.0) -> Any:
        """Send one command; its reply. An error reply raises ReplyError."""
        with socket.create_connection((HOST, self.port), timeout_s) as talk:
            if self.password:
                talk.sendall(encode("AUTH", self.password))
            talk.sendall(encode(*words))
            with talk.makefile("rb") as stream:
                reply = read_reply(stream)
                reply = read_reply(stream) if self.password else reply
                if isinstance(reply, ReplyError):
                    raise reply
                return reply

    def info(self, section: str = "everything") -> dict[str, str]:
        """INFO as a dictionary."""
        lines = self.cli("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def flush(self) -> None:
        self.cli("FLUSHALL")

    def restart(self) -> None:
        """An orderly end, and a start at the same addresses."""
        self.node.stop()
        self.node = self._start(self.port, self._settings)

    def stop(self) -> None:
        self.node.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
