"""A cluster of one scripted node, which says that all slots are its own."""

from __future__ import annotations

from collections.abc import Callable

from support.scripted import Action, Command, Handler, MiniStore, ScriptedServer

__all__ = ["lying", "slots_of"]


def slots_of(host: bytes, port: Callable[[], int]) -> Handler:
    """CLUSTER SLOTS that names one node for all."""

    def handler(command: Command) -> Action | None:
        if command.name != b"CLUSTER":
            return None
        owner = b"*2\r\n$%d\r\n%b\r\n:%d\r\n" % (len(host), host, port())
        return b"*1\r\n*3\r\n:0\r\n:16383\r\n" + owner

    return handler


def lying(*handlers: Handler) -> ScriptedServer:
    """A cluster of one node, which answers as the handlers say."""
    server: ScriptedServer
    server = ScriptedServer(slots_of(b"", lambda: server.port), *handlers, MiniStore())
    return server
