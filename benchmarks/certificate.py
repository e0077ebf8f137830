"""A certificate for a server of the lab, made by the program ``openssl`` when it is needed.

It is its own authority: who trusts it trusts that server. Its key is no secret worth keeping; both
lie in a temporary directory and are gone with it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kvferry.base.errors import StoreError

__all__ = ["LabCertificate", "lab_certificate"]

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
