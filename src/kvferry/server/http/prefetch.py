"""Warming the pool from token files: jobs, one after the other, whose progress can be asked for."""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

from kvferry.cache import TieredCache
from kvferry.errors import KVFerryError, UsageError
from kvferry.http import answers
from kvferry.http.answers import CallError, check_names
from kvferry.server.http import calls
from kvferry.server.http.token_files import read_tokens
from kvferry.server.view import ServerView

__all__ = ["Prefetches"]

_log = logging.getLogger("kvferry.server.http")

_FILES_MAX = 10_000
_WAITING_MAX = 16
_KEPT_MAX = 256
_WAIT_S = 60.0
_WAIT_MAX_S = 600.0
_GRACE_S = 5.0  # of a load beyond its own limit


@dataclass
class _Job:
    id: str
    engine: TieredCache
    files: list[str]
    salt: str | None
    results: list[dict[str, Any]] = field(default_factory=list)
    state: str = "waiting"
    done: threading.Event = field(default_factory=threading.Event)

    def shown(self) -> dict[str, Any]:
        """As JSON; `results` grows while it runs."""
        results = list(self.results)
        return {
            "id": self.id,
            "identity": self.engine.identity.digest.hex(),
            "model": self.engine.identity.model,
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

    def add(self, view: ServerView, body: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a job, and wait for it if that is wanted; at most `timeout_s`."""
        check_names(body, ("files", "identity", "salt", "wait", "timeout_s"))
        files = answers.field(body, "files", list)
        if not files or not all(isinstance(name, str) for name in files):
            raise UsageError("'files' is no list of paths; name at least one token file")
        if len(files) > _FILES_MAX:
            raise UsageError(f"'files' has more than {_FILES_MAX} paths; send several requests")
        wait = answers.field(body, "wait", bool, False)
        timeout_s = answers.field(body, "timeout_s", float, _WAIT_S)
        if not 0 < timeout_s <= _WAIT_MAX_S:
            raise UsageError(f"'timeout_s' is not above 0 to {_WAIT_MAX_S:g}")
        salt = answers.field(body, "salt", str)
        engine = calls.engine_of(view, body)
        calls.prompt_of(engine, [], salt)  # says now what is wrong with the salt
        job = _Job(secrets.token_hex(8), engine, list(files), salt)
        self._begin(job)
        if wait:
            job.done.wait(timeout_s)
        return job.shown()

    def list(self, view: ServerView, body: Mapping[str, Any]) -> dict[str, Any]:
        """The jobs that are known, without their files."""
        with self._lock:
            jobs = list(self._jobs.values())
        return {"jobs": [{**job.shown(), "results": None} for job in jobs]}

    def get(self, view: ServerView, body: Mapping[str, Any]) -> dict[str, Any]:
        """One job, by its id."""
        with self._lock:
            job = self._jobs.get(body["id"])
        if job is None:
            raise CallError(404, "prefetch", "there is no prefetch with this id, or not any more")
        return job.shown()

    def close(self, timeout_s: float = 1.0) -> None:
        """Begin nothing any more, and let go of whoever waits."""
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
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.name = "kvferry-prefetch"
                self._thread.start()
        self._queue.put(job)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None and not self._closed:
            job.state = "running"
            for file in job.files:
                if self._closed:
                    break
                job.results.append(self._one(job, file))
            job.state = "done" if len(job.results) == len(job.files) else "stopped"
            job.done.set()

    def _one(self, job: _Job, file: str) -> dict[str, Any]:
        began = time.monotonic()
        result: dict[str, Any] = {"file": file, "prompt_tokens": 0, "tokens": 0, "error": None}
        try:
            prompt = calls.prompt_of(job.engine, read_tokens(file), job.salt)
            result["prompt_tokens"] = prompt.tokens
            limit_s = job.engine.config.retrieve_timeout_s + _GRACE_S
            result["tokens"] = job.engine.prefetch(prompt).result(limit_s)
        except CancelledError:
            result["error"] = "the server ends"
        except TimeoutError:
            result["error"] = "it was not there in time"
        except KVFerryError as error:
            result["error"] = str(error)
        except Exception:
            _log.exception("a prefetch failed")
            result["error"] = "internal error; the log of the server says more"
        result["took_s"] = round(time.monotonic() - began, 6)
        return result
