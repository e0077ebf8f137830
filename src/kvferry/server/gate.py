"""Endpoints with keys: libzmq speaks CurveZMQ with clients, and passes their messages on to us."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import zmq

from kvferry.config.endpoints import ipc_path
from kvferry.errors import StoreError
from kvferry.server.curve import CurveGuard, apply_server, server_keys
from kvferry.server.listener import HANDSHAKE_S, remove_own, remove_stale
from kvferry.server.protocol import MESSAGE_BYTES_MAX

__all__ = ["Gate"]

_END = b"TERMINATE"
_JOIN_S = 2.0


class Gate:
    """A ROUTER with keys in front of a socket that only we can reach, and a thread in between.

    Args:
        endpoints: Where clients connect.
        key_file: Of the server.

    Attributes:
        endpoint: Where the messages come out; to be listened on, before `start`.
        endpoints: Where clients connect, with the ports that they got.

    Raises:
        ConfigError: The file of keys cannot be.
        StoreError: An endpoint cannot be listened on.
    """

    def __init__(self, endpoints: Sequence[str], key_file: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._key_file = key_file
        self._directory = tempfile.TemporaryDirectory(prefix="kvferry-gate-")  # of mode 0700
        self.endpoint = f"ipc://{self._directory.name}/in"
        self.endpoints: list[str] = []
        self._paths: list[tuple[Path, int]] = []
        self._guard: CurveGuard | None = None
        try:
            self._open(endpoints)
        except BaseException:
            self._close()
            raise

    def _open(self, endpoints: Sequence[str]) -> None:
        front = self._context.socket(zmq.ROUTER)
        self._guard = apply_server(front, self._context, self._key_file)
        front.setsockopt(zmq.LINGER, 0)
        front.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        front.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
        front.setsockopt(zmq.IPV6, any("[" in endpoint for endpoint in endpoints))
        for endpoint in endpoints:
            self._bind(front, endpoint)
        back = self._context.socket(zmq.DEALER)
        back.setsockopt(zmq.LINGER, 0)
        self._control = self._context.socket(zmq.PAIR)
        self._control.bind("inproc://end")
        self._thread = threading.Thread(
            target=self._run, args=(front, back), name="kvferry-gate", daemon=True
        )

    def _bind(self, front: zmq.Socket[bytes], endpoint: str) -> None:
        path = ipc_path(endpoint)
        mask = os.umask(0o177)  # a Unix socket is for its user alone
        try:
            if path is not None:
                remove_stale(Path(path))  # libzmq would remove whatever is there
            front.bind(endpoint)
            if path is not None:
                self._paths.append((Path(path), os.stat(path).st_ino))
        except (OSError, zmq.ZMQError) as error:
            raise StoreError(
                f"cannot listen at {endpoint}: {error.strerror or error}; choose another --port or "
                "--ipc, or end the server that has it"
            ) from None
        finally:
            os.umask(mask)
        self.endpoints.append(front.getsockopt_string(zmq.LAST_ENDPOINT))

    def start(self) -> None:
        """Pass messages on from now on."""
        self._thread.start()

    def reload(self) -> None:
        """Read again which clients may connect.

        Raises:
            ConfigError: The file of keys cannot be.
        """
        assert self._guard is not None
        self._guard.allow(server_keys(self._key_file)[2])

    def _run(self, front: zmq.Socket[bytes], back: zmq.Socket[bytes]) -> None:
        with self._context.socket(zmq.PAIR) as control:
            control.connect("inproc://end")
            back.connect(self.endpoint)
            zmq.proxy_steerable(front, back, None, control)
        front.close(0)
        back.close(0)

    def stop(self) -> None:
        """End all of it."""
        if self._thread.ident is not None:
            self._control.send(_END)
            self._thread.join(_JOIN_S)
        self._close()

    def _close(self) -> None:
        if self._guard is not None:
            self._guard.stop()
        self._context.destroy(linger=0)
        for path, inode in self._paths:
            remove_own(path, inode)
        self._directory.cleanup()
