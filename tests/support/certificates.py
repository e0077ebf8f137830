"""Certificates for tests, made when they are first asked for, by the program ``openssl``.

    made = certificates()                       # once per process; removed when it ends
    made.server.cert_file, made.ca_file, made.expired, made.other_host, made.unknown, ...
    made.authority.issue("mine", hosts=["a.test"], ips=["127.0.0.1"])

Keys are EC P-256, a few milliseconds each. Nothing here is a secret: the keys live in a directory
of one test run. A Certificate is two files; both may be overwritten, to test a renewal.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from support.secrets import secret

OPENSSL_TIMEOUT_S = 60.0
LOCAL_HOSTS = ("localhost",)
LOCAL_IPS = ("127.0.0.1", "::1")

# `openssl ca`, because no other of its commands can sign for a time that is over.
_CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
CN = {name}
[ca]
default_ca = signer
[signer]
database = {directory}/index
rand_serial = yes
new_certs_dir = {directory}
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
[root]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
{alternatives}
"""
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, both PEM files; ``key_password`` where the key is encrypted."""

    cert_file: str
    key_file: str
    key_password: str | None = None

    def replace_by(self, other: Certificate) -> None:
        """Put another one into these files, as a renewal does: each file changes at once."""
        for mine, theirs in ((self.cert_file, other.cert_file), (self.key_file, other.key_file)):
            shutil.copyfile(theirs, f"{mine}.new")
            os.replace(f"{mine}.new", mine)


class Authority:
    """A certificate authority in a directory of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir()
        self._directory = directory
        Path(directory, "index").touch()
        self.ca_file, self._key_file = f"{directory}/ca.pem", f"{directory}/ca.key"
        config = self._config(name, "")
        _openssl("req", "-x509", "-config", config, "-extensions", "root", "-days", "3", "-nodes",
                 *_NEW_KEY, "-keyout", self._key_file, "-out", self.ca_file)  # fmt: skip

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = (),
        ips: Sequence[str] = (),
        *,
        valid_days: tuple[float, float] = (-1.0, 2.0),
        key_password: str | None = None,
    ) -> Certificate:
        """A certificate of this authority, for servers and clients; valid from .. to, from now."""
        alternatives = ", ".join([f"DNS:{host}" for host in hosts] + [f"IP:{ip}" for ip in ips])
        config = self._config(name, alternatives and f"subjectAltName = {alternatives}")
        request = f"{self._directory}/{name}.csr"
        made = Certificate(
            f"{self._directory}/{name}.pem", f"{self._directory}/{name}.key", key_password
        )
        lock = ["-passout", "stdin"] if key_password else ["-nodes"]
        _openssl("req", "-new", "-config", config, *_NEW_KEY, *lock, "-keyout", made.key_file,
                 "-out", request, typed=key_password or "")  # fmt: skip
        dates = [_date(days) for days in valid_days]
        _openssl("ca", "-batch", "-notext", "-config", config, "-extensions", "leaf",
                 "-cert", self.ca_file, "-keyfile", self._key_file, "-in", request,
                 "-out", made.cert_file, "-startdate", dates[0], "-enddate", dates[1])  # fmt: skip
        return made

    def _config(self, name: str, alternatives: str) -> str:
        path = Path(self._directory, f"{name}.cnf")
        path.write_text(
            _CONFIG.format(name=name, directory=self._directory, alternatives=alternatives)
        )
        return str(path)


class Certificates:
    """What the tests of TLS need. All leaves but ``other_host`` name the loopback addresses."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(Path(directory, "trusted"), "authority")
        self.stranger = Authority(Path(directory, "unknown"), "stranger")
        local = (LOCAL_HOSTS, LOCAL_IPS)
        self.server = self.authority.issue("server", *local)
        self.client = self.authority.issue("client", *local)
        self.expired = self.authority.issue("expired", *local, valid_days=(-9.0, -2.0))
        self.not_yet = self.authority.issue("not_yet", *local, valid_days=(1.0, 2.0))
        self.other_host = self.authority.issue("other_host", ["other.test"])
        self.unknown = self.stranger.issue("unknown", *local)
        self.locked = self.authority.issue("locked", *local, key_password=secret("key"))

    @property
    def ca_file(self) -> str:
        """The authority's own certificate: who trusts it trusts all but ``unknown``."""
        return self.authority.ca_file


@functools.cache
def certificates() -> Certificates:
    """Those of this process; LookupError, with the reason, where the host has no ``openssl``."""
    if shutil.which("openssl") is None:
        raise LookupError("no openssl on PATH")
    directory, owner = tempfile.mkdtemp(prefix="kvferry-test-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child may come here too
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return Certificates(Path(directory))


def _date(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).strftime("%Y%m%d%H%M%SZ")


def _openssl(*words: str, typed: str = "") -> None:
    done = subprocess.run(
        ["openssl", *words],
        input=f"{typed}\n",
        capture_output=True,
        text=True,
        timeout=OPENSSL_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"openssl {words[0]} failed:\n{done.stderr}"
