"""The TLS side of a test server: which certificate it shows, and what it asks of clients.

    start_server("redis7", tls=True)                                    # the good one
    start_server("redis7", tls=ServerTls(mutual=True))                  # clients need one, too
    start_server("redis7", tls=ServerTls(certificates().expired))       # to be refused
    start_server("redis7", tls=ServerTls(versions="TLSv1.2"))

The plain port stays open beside it, for the tests' own commands.
"""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from support.certificates import Certificate, certificates

PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ServerTls:
    """How a server speaks TLS. ``between_servers``: also to other nodes and its primary."""

    certificate: Certificate = field(default_factory=lambda: certificates().server)
    mutual: bool = False
    versions: str | None = None  # as the server spells them: "TLSv1.2", "TLSv1.2 TLSv1.3"
    between_servers: bool = False

    @property
    def client_settings(self) -> dict[str, Any]:
        """The settings with which a client of kvferry is let in, and finds this server genuine."""
        settings: dict[str, Any] = {"tls": True, "tls_ca_file": certificates().ca_file}
        if self.mutual:
            settings["tls_cert_file"] = certificates().client.cert_file
            settings["tls_key_file"] = certificates().client.key_file
        return settings

    def client_context(self) -> ssl.SSLContext:
        """The same for the standard library's clients."""
        context = ssl.create_default_context(cafile=certificates().ca_file)
        if self.mutual:
            client = certificates().client
            context.load_cert_chain(client.cert_file, client.key_file)
        return context

    def config(self, port: int) -> list[str]:
        """Lines of the server's configuration file."""
        lines = [
            f"tls-port {port}",
            f"tls-cert-file {self.certificate.cert_file}",
            f"tls-key-file {self.certificate.key_file}",
            f"tls-ca-cert-file {certificates().ca_file}",
            f"tls-auth-clients {'yes' if self.mutual else 'no'}",
        ]
        if self.certificate.key_password:
            lines.append(f"tls-key-file-pass {self.certificate.key_password}")
        if self.versions:
            lines.append(f'tls-protocols "{self.versions}"')
        if self.between_servers:
            lines += ["tls-replication yes", "tls-cluster yes"]
        return lines


@cache
def has_tls(path: str) -> bool:
    """Whether that server was built with TLS; it says so when it is asked to use it."""
    probe = [path, "--port", "0", "--tls-port", "1", "--tls-cert-file", "none"]
    said = subprocess.run(
        probe, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
    )
    return "Failed to configure TLS" in said.stdout + said.stderr
