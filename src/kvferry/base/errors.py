"""Every exception that kvferry raises, as one tree.

    KVFerryError                 .code   a stable word for programs
    ├── UsageError               the caller's mistake; nothing was sent (also ValueError)
    │   ├── ConfigError          a setting is unknown, malformed or contradicts another
    │   └── BadBufferError       a buffer is read-only, not contiguous, overlapping, of a wrong size
    ├── ClosedError              the object was closed
    ├── CapacityError            a stated limit was reached; try again later
    ├── DeadlineExceeded         the time limit passed (also TimeoutError)
    ├── UnavailableError         the server cannot be reached or refuses us (also ConnectionError)
    │   ├── AuthError            the server refused the credentials
    │   └── TlsError             a certificate was refused, by us or by the server, or TLS was
    ├── ServerError              the server answered with an error; .server_code, e.g. "WRONGTYPE"
    ├── SizeMismatchError        the stored value is not as long as the buffer
    ├── CorruptError             a frame or checksum is wrong; the data was discarded
    ├── BatchCancelledError      the request was withdrawn
    ├── SystemResourceError      no descriptors, threads or memory left (also OSError)
    └── StoreError               a server that we started did not start or died

A missing key is not an exception: it is `False`, or `Status.MISS`.
"""

from __future__ import annotations

__all__ = [
    "AuthError",
    "BadBufferError",
    "BatchCancelledError",
    "CapacityError",
    "ClosedError",
    "ConfigError",
    "CorruptError",
    "DeadlineExceeded",
    "KVFerryError",
    "ServerError",
    "SizeMismatchError",
    "StoreError",
    "SystemResourceError",
    "TlsError",
    "UnavailableError",
    "UsageError",
]


class KVFerryError(Exception):
    """Base of all errors of this package."""

    code = "error"


class UsageError(KVFerryError, ValueError):
    """The call cannot be right; nothing was sent."""

    code = "usage"


class ConfigError(UsageError):
    """A setting is unknown, malformed or contradicts another one."""

    code = "config"


class BadBufferError(UsageError, BufferError):
    """A buffer is read-only, not contiguous, overlapping, or of a wrong size."""

    code = "buffer"


class ClosedError(KVFerryError):
    """The object was closed before or during the call."""

    code = "closed"


class CapacityError(KVFerryError):
    """A stated limit was reached: back-pressure, not failure. Nothing was sent."""

    code = "capacity"


class DeadlineExceeded(KVFerryError, TimeoutError):
    """The time limit passed. The content of a target buffer is undefined."""

    code = "deadline"


class UnavailableError(KVFerryError, ConnectionError):
    """The server cannot be reached or refuses us; the text says why."""

    code = "unavailable"


class AuthError(UnavailableError):
    """The server refused the credentials."""

    code = "auth"


class TlsError(UnavailableError):
    """TLS was refused: a certificate, a file of ours, or the protocol; the text holds the reason.

    Trying again does not help until somebody corrects it.
    """

    code = "tls"


class ServerError(KVFerryError):
    """The server answered with an error.

    `server_code` is the first word of its text, e.g. ``OOM``, ``WRONGTYPE``, ``READONLY``.
    """

    code = "server"

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.server_code = text.split(" ", 1)[0]


class SizeMismatchError(KVFerryError):
    """The stored value is not as long as the buffer; the buffer's content is undefined."""

    code = "size_mismatch"


class CorruptError(KVFerryError):
    """A frame or checksum is wrong. The data was discarded, never returned."""

    code = "corrupt"


class BatchCancelledError(KVFerryError):
    """The request was withdrawn before it was complete."""

    code = "cancelled"


class SystemResourceError(KVFerryError, OSError):
    """The operating system has no more descriptors, threads or memory for us."""

    code = "system"


class StoreError(KVFerryError):
    """A server that we started did not start, or died; the text holds its last words."""

    code = "store"


for _name in __all__:  # as programs import them, and as tracebacks say
    globals()[_name].__module__ = "kvferry.errors"
