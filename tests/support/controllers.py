"""Controllers as processes, and processes of many instances that report to them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvferry.config.controller import ControllerConfig
from support import instances
from support.processes import Process
from support.tuned import tuned
from support.views import ask

__all__ = ["ControllerProcess", "many"]


class ControllerProcess(Process):
    """A `kvferry controller`; `ports` and `url` once it is ready."""

    def __init__(self, **settings: Any) -> None:
        given = {"port": 0, "monitor_ports": '{"pull": 0, "reply": 0, "heartbeat": 0}'}
        settings = tuned(ControllerConfig, **{**given, **settings})
        environ = {"KVFERRY_CONTROLLER_TUNING": json.dumps(settings.pop("tuning", {}))}
        words = [
            word
            for name, value in settings.items()
            for word in (f"--{name.replace('_', '-')}", value)
        ]
        super().__init__("controller", *words, **environ)
        found = self.says(r"controller at (\S+); instances at \S+, ports: (.*)")
        self.says("ready")
        self.url = found[1]
        names = (part.split() for part in found[2].split(", "))
        self.ports = {name: int(port) for name, port in names}

    def again(self) -> dict[str, Any]:
        """Settings of a controller in the place of this one."""
        return {
            "port": int(self.url.rpartition(":")[2]),
            "monitor_ports": json.dumps(self.ports),
        }

    def cluster(self) -> dict[str, Any]:
        """What it says of itself."""
        status, body = ask(f"{self.url}/v1/cluster")
        assert status == 200
        return dict(body)

    def lookup(self, hashes: bytes) -> dict[str, int]:
        """Who holds leading chunks."""
        digests = [hashes[i : i + 16].hex() for i in range(0, len(hashes), 16)]
        status, body = ask(f"{self.url}/v1/lookup", "POST", {"hashes": digests, "limit": 1024})
        assert status == 200, body
        return {one["instance"]: one["chunks"] for one in body["instances"]}


@contextmanager
def many(to: Mapping[str, object], first: int, count: int, chunks: int) -> Iterator[Any]:
    """A process of some instances, which report to these ports."""
    asked = {
        "first": first,
        "count": count,
        "chunks": chunks,
        **{name: f"127.0.0.1:{to[name]}" for name in ("pull", "reply")},
    }
    with subprocess.Popen(
        [sys.executable, "-P", Path(instances.__file__), json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()
