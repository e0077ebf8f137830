"""Warming the pool from token files: jobs, one after the other, whose progress can be asked for.

A token file is a JSON list of numbers, or a NumPy array. No error quotes what is in a file: whoever
may name one need not be allowed to read it.
"""

from __future__ import annotations

import io
import logging
import os
import queue
import secrets
import stat
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

from kvferry.base.errors import KVFerryError, UsageError
from kvferry.base.threads import Guarded, noticed
from kvferry.cache import TieredCache
from kvferry.http.answers import CallError
from kvferry.http.bodies import ById, numbers
from kvferry.http.waits import AnswerLater, Ended
from kvferry.server.http import http_calls as calls
from kvferry.server.http.http_calls import IdentityName, SaltHex, Whose
from kvferry.server.server import Server

__all__ = ["Prefetches"]

_log = logging.getLogger("kvferry.server.http")

_FILES_MAX = 10_000  # of one prefetch
_WAITING_MAX = 16  # prefetches that are not done; one more is refused
_KEPT_MAX = 256  # prefetches whose results can still be asked for
# How long a caller waits for the end of a prefetch, by default and at most.
_WAIT_S = 60.0
_WAIT_MAX_S = 600.0
_GRACE_S = 5.0  # of a load beyond its own limit
_FILE_BYTES_MAX = 64 << 20  # 8 million tokens of int64
_MAGIC = b"\x93NUMPY"
_ELEMENTS = ("<i4", "<u4", "<i8")


class PrefetchBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Prompts to load."""

    files: Annotated[
        list[str],
        msgspec.Meta(
            min_length=1,
            max_length=_FILES_MAX,
            description="Absolute paths on the host of the server: JSON lists, or .npy of int32, "
            "uint32, int64.",
        ),
    ]
    identity: IdentityName = None
    salt: SaltHex = None
    wait: Annotated[
        bool, msgspec.Meta(description="Answer when all are done, or after timeout_s.")
    ] = False
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=_WAIT_MAX_S)] = _WAIT_S


class PrefetchFile(TypedDict):
    """What became of a file."""

    file: str
    prompt_tokens: int
    tokens: int
    error: str | None
    took_s: NotRequired[float]


class PrefetchReport(Whose):
    """How far a prefetch is."""

    id: str
    state: Annotated[str, msgspec.Meta(description='"waiting", "running", "done" or "stopped".')]
    files: int
    finished: int
    tokens: int
    results: list[PrefetchFile] | None


class PrefetchReports(TypedDict):
    """The last prefetches, without their files."""

    jobs: list[PrefetchReport]


@dataclass
class _Job:
    id: str
    cache: TieredCache
    files: list[str]
    salt: str | None
    results: list[PrefetchFile] = field(default_factory=list)
    state: str = "waiting"
    done: Ended = field(default_factory=Ended)

    def shown(self) -> PrefetchReport:
        """As JSON; `results` grows while it runs."""
        results = list(self.results)
        return {
            "id": self.id,
            **calls.whose(self.cache),
            "state": self.state,
            "files": len(self.files),
            "finished": len(results),
            "tokens": sum(one["tokens"] for one in results),
            "results": results,
        }


class Prefetches:
    """The jobs. One thread runs them, from the first job until `close`.

    Threads: any. Jobs beyond a number are refused; of those that are done the last ones are kept.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._queue: queue.Queue[_Job | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, view: Server, body: PrefetchBody) -> AnswerLater[PrefetchReport]:
        """Load prompts of token files into memory."""
        cache = calls.cache_of(view, body.identity)
        calls.prompt_of(cache, [], body.salt)  # says now what is wrong with the salt
        job = _Job(secrets.token_hex(8), cache, body.files, body.salt)
        self._begin(job)
        return AnswerLater(job.done, body.timeout_s if body.wait else 0, job.shown)

    def list(self, view: Server) -> PrefetchReports:
        """The last prefetches, without their files."""
        with self._lock:
            jobs = list(self._jobs.values())
        return {"jobs": [{**job.shown(), "results": None} for job in jobs]}

    def get(self, view: Server, body: ById) -> PrefetchReport:
        """How far a prefetch is."""
        with self._lock:
            job = self._jobs.get(body.id)
        if job is None:
            raise CallError(404, "prefetch", "there is no prefetch with this id, or not any more")
        return job.shown()

    def close(self, timeout_s: float = 1.0) -> None:
        """Begin no more files, and answer the callers that wait."""
        with self._lock:
            self._closed = True
            jobs, thread = list(self._jobs.values()), self._thread
        for job in jobs:
            job.done.set()
        self._queue.put(None)
        if thread is not None:
            thread.join(timeout_s)

    def _begin(self, job: _Job) -> None:
        with self._lock:
            if self._closed:
                raise CallError(503, "not_ready", "the server ends")
            if sum(not one.done.is_set() for one in self._jobs.values()) >= _WAITING_MAX:
                raise CallError(503, "busy", f"{_WAITING_MAX} prefetches wait; ask again later")
            finished = [one.id for one in self._jobs.values() if one.done.is_set()]
            for id in finished[: max(0, len(self._jobs) + 1 - _KEPT_MAX)]:
                del self._jobs[id]
            self._jobs[job.id] = job
            if self._thread is None:
                self._thread = Guarded(self._run, "prefetch")
                self._thread.start()
        self._queue.put(job)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None and not self._closed:
            job.state = "running"
            try:
                for file in job.files:
                    if self._closed:
                        break
                    job.results.append(self._one(job, file))
            finally:
                job.state = "done" if len(job.results) == len(job.files) else "stopped"
                job.done.set()

    def _one(self, job: _Job, file: str) -> PrefetchFile:
        began = time.monotonic()
        result: PrefetchFile = {"file": file, "prompt_tokens": 0, "tokens": 0, "error": None}
        try:
            prompt = calls.prompt_of(job.cache, _read_tokens(file), job.salt)
            result["prompt_tokens"] = prompt.tokens
            limit_s = job.cache.config.retrieve_timeout_s + _GRACE_S
            result["tokens"] = job.cache.prefetch(prompt).result(limit_s)
        except CancelledError:
            result["error"] = "the server ends"
        except TimeoutError:
            result["error"] = "it was not there in time"
        except KVFerryError as error:
            result["error"] = str(error)
        except Exception as error:
            noticed("prefetch", error)
            result["error"] = "internal error; the log of the server says more"
        result["took_s"] = round(time.monotonic() - began, 6)
        return result


def _read_tokens(path: str) -> Sequence[int]:
    """The tokens of a file; those of an array as a buffer.

    Raises:
        UsageError: It cannot be read, is too large, or holds something else.
    """
    raw = _content(path)
    return _array(path, raw) if raw.startswith(_MAGIC) else _list(path, raw)


def _content(path: str) -> bytes:
    if not path or "\0" in path or not os.path.isabs(path):
        raise UsageError(f"{path!r}: name token files by absolute paths on the host of the server")
    try:
        # A pipe or device would block, or do something.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with open(handle, "rb") as stream:
            regular = stat.S_ISREG(os.fstat(handle).st_mode)
            raw = stream.read(_FILE_BYTES_MAX + 1) if regular else b""
    except OSError:
        regular, raw = False, b""
    if not regular:
        raise UsageError(f"{path} cannot be read, or is no file")
    if len(raw) > _FILE_BYTES_MAX:
        raise UsageError(f"{path} is larger than {_FILE_BYTES_MAX} bytes")
    return raw


def _list(path: str, raw: bytes) -> Sequence[int]:
    try:
        return numbers(raw)
    except UsageError:
        pass
    raise UsageError(f"{path} is neither a JSON list of whole numbers nor a .npy file")


def _array(path: str, raw: bytes) -> memoryview[Any]:
    import numpy as np  # only who names such a file pays for it

    stream, found = io.BytesIO(raw), None
    with suppress(Exception):  # for headers that cannot be, NumPy has no common one
        found = np.load(stream, allow_pickle=False)
    if found is None:
        raise UsageError(f"{path} is no whole .npy file")
    if found.dtype.str not in _ELEMENTS:
        raise UsageError(f"{path} is no array of int32, uint32 or int64 in little-endian order")
    if found.ndim != 1 or stream.read(1):
        raise UsageError(f"{path} is not one array of one dimension")
    return memoryview(found)
