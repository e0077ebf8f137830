"""
The native core of kvferry. Use the classes of the kvferry package instead.
"""

from typing import Any


class CredentialSource:
    """Where connections ask for user and password. See kvferry.Credentials."""

    def __init__(self) -> None: ...

    def wait(self, timeout_s: float) -> int:
        """1: a connection asks; 0: none did in time; -1: the client is closed."""

    def provide(self, username: str, password: str) -> None: ...

    def refuse(self, why: str) -> None:
        """There are none now; `why` holds no secret."""

class Client:
    """A client of a server or of many. See kvferry.RedisClient."""

    def __init__(self, settings: dict[str, Any], credentials: CredentialSource | None = None) -> None:
        """Starts the I/O threads; they connect at once. Waits for nothing."""

    def submit(self, verb: int, keys: Any, buffers: Any | None, timeout_s: float, ttl_ms: int, prefix: bool, identity: int | None, value_size_bytes: int) -> int:
        """Returns the id at once; see drain()."""

    def run(self, verb: int, keys: Any, buffers: Any | None, timeout_s: float, ttl_ms: int, prefix: bool, identity: int | None, value_size_bytes: int) -> tuple[bytes, bytes, float, str | None]:
        """
        Waits without the GIL: statuses, sizes as u64, seconds, the first error.
        """

    def drain(self) -> list[tuple[int, tuple[bytes, bytes, float, str | None]]]: ...

    def drain_log(self) -> list[tuple[int, str]]: ...

    def cancel(self, batch_id: int) -> None: ...

    def event_fd(self) -> int: ...

    def available(self) -> bool: ...

    def down_reason(self) -> str: ...

    def stats(self) -> dict[str, int | str]: ...

    def nodes(self) -> list[dict[str, Any]]: ...

    def presence(self, keys: Any) -> list[bool | None]: ...

    def presence_stats(self) -> dict[str, int]: ...

    def close(self) -> None: ...

def begin_exit() -> None:
    """Other threads that come back from a wait now stay there."""

def await_parked() -> None:
    """Waits until they do, a second at most."""

class Connector:
    """A store behind the cache. See kvferry.connectors."""

    def submit(self, verb: int, keys: Any, buffers: Any | None, timeout_s: float, ttl_ms: int, prefix: bool, quiet: bool) -> int:
        """Returns the id at once: for wait() if it is quiet, else for drain()."""

    def wait(self, job_id: int, timeout_s: float) -> tuple[bytes, bytes, float, str | None] | None:
        """
        Waits without the GIL; None while the job still runs. To be discarded in the end.
        """

    def discard(self, job_id: int) -> None: ...

    def progress(self, job_id: int) -> int: ...

    def drain(self) -> list[tuple[int, tuple[bytes, bytes, float, str | None]]]: ...

    def drain_log(self) -> list[tuple[int, str]]: ...

    def cancel(self, job_id: int) -> None: ...

    def event_fd(self) -> int: ...

    def available(self) -> bool: ...

    def mode(self) -> str:
        """How the driver works here, e.g. 'direct, io_uring'."""

    def usage(self) -> tuple[int, int | None, int | None]:
        """Bytes used, capacity in bytes, keys."""

    def scan(self, cursor: int) -> tuple[list[tuple[bytes, float]], int]:
        """Keys and ages in seconds, and where to go on; 0 = nowhere."""

    def descriptions(self) -> list[tuple[bytes, str]]: ...

    def stats(self) -> dict[str, int]: ...

    def close(self) -> None: ...

def open_memory_connector(prefix: bytes, identity: bytes, value_size_bytes: int, description: str, name: str, capacity_bytes: int, queued_keys_max: int) -> Connector: ...

def open_file_connector(prefix: bytes, identity: bytes, value_size_bytes: int, description: str, path: str, capacity_bytes: int, fsync: int, direct: int, ring: bool, rescan_after_s: float, queued_keys_max: int) -> Connector: ...

def open_redis_connector(client: Client, prefix: bytes, identity: bytes, value_size_bytes: int, description: str) -> Connector: ...

class PagePool:
    """Equal pages cut from one mapping; see kvferry.pool."""

    def __init__(self, page_size_bytes: int, pages_count: int, *, hugetlb: bool = False, prefault: bool = True) -> None: ...

    def allocate(self) -> int | None:
        """The handle of a page, or None when the pool is exhausted."""

    def allocate_many(self, count: int) -> list[int] | None:
        """All the handles, or None and no page."""

    def free(self, handle: int) -> None:
        """End the use of a page. ValueError for a handle that is not in use."""

    def address(self, handle: int) -> int:
        """Where the page starts in memory. ValueError as free()."""

    @property
    def page_size_bytes(self) -> int: ...

    @property
    def page_stride_bytes(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def huge_pages(self) -> str: ...

    @property
    def pages_count(self) -> int: ...

    @property
    def free_count(self) -> int: ...

    @property
    def used_count_max(self) -> int: ...

class Page:
    """
    A page as a writable buffer. It adopts the handle: it frees the page when it goes, unless free() was called.
    """

    def __init__(self, pool: PagePool, handle: int) -> None: ...

    def free(self) -> None:
        """ValueError when the page was freed before."""

    @property
    def freed(self) -> bool: ...

    @property
    def handle(self) -> int: ...

    @property
    def address(self) -> int:
        """ValueError when the page was freed."""

    @property
    def nbytes(self) -> int: ...
