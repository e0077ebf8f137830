"""A cache server for tests: in a thread, or in a process of its own that can be killed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvferry.engine_config import EngineConfig
from kvferry.server.config import ServerConfig
from kvferry.server.server import Server
from support.stamps import until


@contextlib.contextmanager
def running(tmp_path: Path, *, mib: float = 16, **settings: Any) -> Iterator[Server]:
    """A server in a thread of this process, on an ipc socket: `server.config.endpoints[0]`."""
    engine = settings.pop("engine", {})
    config = ServerConfig(
        engine=EngineConfig(max_local_cpu_size=mib / 1024, **engine),
        **{"endpoints": (f"ipc://{tmp_path}/server",), "http": None, "drain_s": 5.0, **settings},
    )
    server = Server(config)
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        until(lambda: server.state != "starting", 10)
        assert server.ready
        yield server
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()
