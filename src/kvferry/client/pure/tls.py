"""TLS for the client in pure Python, by the standard library's `ssl`.

A context is made for every dial, so that renewed files are used without a restart. Values are
decrypted into the caller's memory, a record at a time; what leaves is cut at the records' size, and
a small piece never shares a record with a large one: a server receives the head of a SET apart from
its value.

What a certificate or a rule of ours forbids is a `TlsRefused`: trying again will not help.

Source: https://docs.python.org/3/library/ssl.html
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Sequence

from kvferry.base.errors import TlsError
from kvferry.base.threads import Guarded
from kvferry.client.pure.connection import HEADER_READ_BYTES, Connection, Disconnected, sentence
from kvferry.config import ClientConfig

__all__ = ["TlsConnection", "TlsRefused", "client_context", "shake_hands"]

RECORD_BYTES = 16 << 10
_FOREIGN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST")
_PLACE = re.compile(r" ?\(_ssl\.c:\d+\)")
_NO_NAME = "TLS: that host name can be in no certificate"


class TlsRefused(Disconnected):
    """A certificate, a file of ours or a rule of either side forbids this connection."""

    kind = TlsError


def client_context(config: ClientConfig) -> ssl.SSLContext:
    """The rules of a connection.

    Raises:
        TlsRefused: A file is missing or of no use; the text names it, and the reason.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = config.tls_verify == "full"
    if config.tls_verify == "none":
        context.verify_mode = ssl.CERT_NONE
    try:
        (config.tls_server_name or config.host).encode("idna")
    except UnicodeError as error:
        raise TlsRefused(_NO_NAME) from error
    _trust(context, config.tls_ca_file)
    if config.tls_cert_file and config.tls_key_file:
        # Without any password OpenSSL would ask for one on the terminal.
        try:
            context.load_cert_chain(config.tls_cert_file, config.tls_key_file, "")
        except OSError as error:
            pair = f"the key file {config.tls_key_file} with {config.tls_cert_file}"
            raise TlsRefused(f"cannot use {pair}: {_reason(error)}") from error
    return context


def shake_hands(
    sock: socket.socket, context: ssl.SSLContext, name: str, until: float
) -> ssl.SSLSocket:
    """Agree with the server on a connected socket, within the time. Owns the socket from now on.

    Args:
        name: What the certificate must be for, a name or an address.
        until: A moment of `time.monotonic`.

    Raises:
        TlsRefused: One side does not want the other.
        Disconnected, OSError: The connection failed.
    """
    left_s = max(until - time.monotonic(), 0.001)
    over = threading.Event()
    try:
        sock = context.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
        # OpenSSL looks at no clock while a peer that does not want to finish goes on sending.
        Guarded(_end_late, "handshake", sock, over, left_s, errand=True).start()
        sock.settimeout(left_s)
        sock.do_handshake()
    except BaseException as error:
        sock.close()
        cut = isinstance(error, OSError) and time.monotonic() >= until
        if isinstance(error, TimeoutError) or (cut and not _says_why(error)):
            raise Disconnected("timed out during the TLS handshake") from error
        if isinstance(error, ssl.SSLEOFError):
            text = "the server closed the connection during the TLS handshake"
            raise Disconnected(text) from error
        if isinstance(error, ssl.SSLError):
            raise TlsRefused(_failure(error)) from error
        if isinstance(error, ValueError):  # e.g. a name that begins with a dot
            raise TlsRefused(_NO_NAME) from error
        raise
    finally:
        over.set()
    return sock


def _says_why(error: BaseException) -> bool:
    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)


def _end_late(sock: socket.socket, over: threading.Event, left_s: float) -> None:
    if not over.wait(left_s):
        _shut_down(sock)


def _shut_down(sock: socket.socket) -> None:
    # Not the SSLSocket's own shutdown: it would turn to plain text under a thread that reads.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class TlsConnection(Connection):
    """A connection over an SSLSocket whose handshake is done."""

    _tuned = False

    def abort(self) -> None:
        _shut_down(self._sock)

    def _set_wait(self, wait_s: float) -> None:
        self._sock.settimeout(wait_s)

    def _send_some(self, parts: list[bytes | memoryview]) -> int:
        joined = bytearray()
        for part in parts:
            if len(joined) + len(part) > RECORD_BYTES:
                break
            joined += part
        try:
            return self._sock.send(joined or memoryview(parts[0])[:RECORD_BYTES])
        except TimeoutError:
            raise BlockingIOError from None

    def _receive_small(self) -> bytes:
        try:
            return self._sock.recv(HEADER_READ_BYTES)
        except TimeoutError:
            raise BlockingIOError from None

    def _receive_at_once(self) -> bytes:
        self._sock.settimeout(0)
        self._armed_s = 0.0
        try:
            return self._sock.recv(HEADER_READ_BYTES)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None

    def _receive_into(self, targets: Sequence[memoryview | bytearray]) -> int:
        try:
            return self._sock.recv_into(targets[0], len(targets[0]))
        except TimeoutError:
            raise BlockingIOError from None

    def _ended(self, error: OSError) -> Disconnected:
        if isinstance(error, ssl.SSLEOFError):
            return Disconnected("the server closed the connection")
        if isinstance(error, ssl.SSLError):
            return TlsRefused(_failure(error))
        return super()._ended(error)


def _trust(context: ssl.SSLContext, ca_file: str | None) -> None:
    if ca_file is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cafile=ca_file)
    except OSError as error:
        raise TlsRefused(f"cannot use the CA file {ca_file}: {_reason(error)}") from error


def _failure(error: ssl.SSLError) -> str:
    """Why TLS ended, in the words of the native client."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is refused: {error.verify_message.rstrip('.')}"
    reason = _reason(error)
    if getattr(error, "reason", None) in _FOREIGN:
        return f"the server does not speak TLS on this port ({reason})"
    if " alert " in reason:
        wants = ", it wants a client certificate" if "certificate required" in reason else ""
        return f"the server ended TLS: {reason}{wants}"
    return f"TLS: {reason}"


def _reason(error: OSError) -> str:
    reason: str | None = getattr(error, "reason", None)  # not every SSLError has one
    return reason.replace("_", " ").lower() if reason else _PLACE.sub("", sentence(error))
