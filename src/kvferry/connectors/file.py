"""The file driver: a value a file, in a directory that several processes may share.

The format is in docs/formats/file.md; how it behaves when disks fill, hang or lose power, in
native/connector/file.hpp and docs/guides/connectors.md.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from kvferry import _native
from kvferry.base.errors import ConfigError, DeadlineExceeded, UnavailableError
from kvferry.base.shown import reason_of
from kvferry.base.threads import Guarded, noticed
from kvferry.config.url import nearest
from kvferry.connectors.base import Space
from kvferry.connectors.calls import error_text
from kvferry.connectors.native import QUEUED_KEYS_MAX, NativeConnector

__all__ = ["FileConnector"]

T = TypeVar("T")

# The numbers of native/connector/file_store.hpp and native/connector/file.hpp.
_FSYNC = {"never": 0, "data": 1, "full": 2}
_DIRECT = {"auto": 0, "on": 1, "off": 2}
_MARK_BYTES_MAX = 256


class FileConnector(NativeConnector):
    """A store on a disk; see `Connector`.

    Args:
        space: What it is opened with.
        path: The directory, made if need be; nothing else may be in it.
        capacity_bytes: What all spaces in the directory may take together; None: the whole disk.
        fsync: "never": the kernel writes when it likes, and after a power cut checksums tell what
            is torn. "data": before a value becomes visible. "full": its name too, before SET is OK.
        direct: "auto": O_DIRECT where the file system takes it; "on": or not at all; "off".
        io_uring: Use it where the kernel allows.
        rescan_s: How old the count of what is there may be, in seconds, while values are stored.
        queued_keys_max: Beyond it submissions raise CapacityError.

    Raises:
        ConfigError: A setting is none of these.
        UsageError: The directory has something else in it, or does not take O_DIRECT.
        SystemResourceError: It cannot be opened or written to.
    """

    def __init__(
        self,
        space: Space,
        path: str | os.PathLike[str],
        *,
        capacity_bytes: int | None = None,
        fsync: str = "never",
        direct: str = "auto",
        io_uring: bool = True,
        rescan_s: float = 30.0,
        queued_keys_max: int = QUEUED_KEYS_MAX,
    ) -> None:
        self.path = os.fspath(path)
        self._options = (
            capacity_bytes or 0,
            _choice("fsync", fsync, _FSYNC),
            _choice("direct", direct, _DIRECT),
            io_uring,
            rescan_s,
            queued_keys_max,
        )
        self._lock_fd: int | None = None
        self._marking: threading.Thread | None = None
        super().__init__(space)

    def _where(self) -> str:
        return self.path

    def _open(self, space: Space) -> _native.Connector:
        return _native.open_file_connector(
            space.prefix.encode(),
            space.identity,
            space.value_size_bytes,
            space.description,
            self.path,
            *self._options,
        )

    def lock_eviction(self, ttl_s: float) -> bool:
        """See `Connector`; the lock is the kernel's, of a file that the store has anyway."""
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would be waited for
            lock = os.open(os.path.join(self.path, "format"), flags)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return False
        self._lock_fd = lock
        return True

    def unlock_eviction(self) -> None:
        """See `Connector`."""
        lock, self._lock_fd = self._lock_fd, None
        if lock is not None:
            os.close(lock)

    # --- The mark of clears for everybody: see `kvferry.cache.store.generations` ---

    def read_mark(self, timeout_s: float) -> bytes | None:
        """What lies in ``identities/<identity>.generation``.

        Raises:
            UnavailableError: The folder is not there, or cannot be read.
            DeadlineExceeded: The disk hangs.
        """
        return self._within(timeout_s, self._read_mark)

    def write_mark(self, value: bytes, timeout_s: float, *, absent: bool) -> None:
        """Write that; `absent`: only where there is none. Raises as `read_mark`."""
        self._within(timeout_s, lambda: self._write_mark(value, absent=absent))

    @property
    def _mark_path(self) -> str:
        return os.path.join(self.path, "identities", f"{self.space.identity.hex()}.generation")

    def _read_mark(self) -> bytes | None:
        try:
            file = os.open(self._mark_path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            os.stat(os.path.dirname(self._mark_path))  # else it is the store that is not there
            return None
        try:
            return os.read(file, _MARK_BYTES_MAX)
        finally:
            os.close(file)

    def _write_mark(self, value: bytes, *, absent: bool) -> None:
        folder = os.path.dirname(self._mark_path)
        # With a dot in front it is nobody's description.
        temporary = os.path.join(folder, f".{self.space.identity.hex()}.{os.urandom(8).hex()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(temporary, flags, 0o600)
        try:
            try:
                os.write(file, value)
                os.fsync(file)
            finally:
                os.close(file)
            if not absent or not self._linked(temporary):
                os.replace(temporary, self._mark_path)
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(root)
        finally:
            os.close(root)

    def _linked(self, temporary: str) -> bool:
        """Whether there is a mark now: this one, or that of another cache, which was first."""
        try:
            os.link(temporary, self._mark_path)
        except FileExistsError:
            return True
        except OSError:  # a file system without links
            return False
        return True

    def _within(self, timeout_s: float, call: Callable[[], T]) -> T:
        """Do it in a thread: a disk may hang, and no call of ours may."""
        if self._marking is not None and self._marking.is_alive():
            raise DeadlineExceeded(f"{self.path} hangs")
        found: list[T] = []
        failed: list[Exception] = []

        def run() -> None:
            try:
                found.append(call())
            except Exception as error:
                if not isinstance(error, OSError):
                    noticed("mark", error)
                failed.append(error)

        thread = Guarded(run, "mark", errand=True)
        self._marking = thread
        thread.start()
        thread.join(timeout_s)
        if failed:
            (error,) = failed
            why = reason_of(error) if isinstance(error, OSError) else error_text(error)
            raise UnavailableError(f"{self.path}: {why}")
        if not found:
            raise DeadlineExceeded(f"{self.path} hangs")
        return found[0]

    @property
    def mode(self) -> str:
        """How it works here: "direct" or "buffered", and "io_uring" or "threads"."""
        return self._handle().mode()


def _choice(name: str, value: object, known: dict[str, int]) -> int:
    # YAML reads a bare on and off as truth values.
    text = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
    if not isinstance(text, str) or text not in known:
        raise ConfigError(f"{name}={value!r} is unknown{nearest(str(value), known)}")
    return known[text]
