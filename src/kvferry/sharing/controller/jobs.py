"""What instances are asked to do: commands that wait for the next heartbeat, and their results.

A job is a list of steps, one behind the other; a step is a command for some members. A job fails
with the first command that fails, that is not answered in time, or that a dead member was to obey.

Threads: any.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypedDict

from msgspec import Meta

from kvferry.base.errors import CapacityError
from kvferry.base.shown import in_line
from kvferry.http.waits import Ended
from kvferry.sharing.controller.journal import Journal
from kvferry.sharing.controller.members import Key
from kvferry.sharing.membership.messages import Command, Result

__all__ = ["Job", "JobRow", "Jobs", "Step"]

_KEPT = 1000  # jobs
_WAITING_MAX = 256  # commands of one member
_AT_ONCE = 16  # commands of one heartbeat
_ANSWER_TIMEOUT_S = 120.0


class JobRow(TypedDict):
    """How far a job is."""

    id: str
    action: str
    state: Annotated[str, Meta(description='"running", "done" or "failed".')]
    chunks: int
    text: Annotated[str, Meta(description="Why it failed.")]
    since: float
    waits_for: list[str]


@dataclass(frozen=True)
class Step:
    """One command for each of some members; its `job` is filled in when it is sent."""

    command: Command
    members: Sequence[Key]


@dataclass
class Job:
    """What was asked for, and how far it is.

    Attributes:
        chunks: Of the answers of the last step, added up.
        least: Of all answers, the smallest; None: there is none yet.
        state: "running", "done" or "failed".
    """

    id: str
    action: str
    steps: deque[Step]
    began: float
    until: float
    state: str = "running"
    chunks: int = 0
    least: int | None = None
    text: str = ""
    waits_for: dict[str, Key] = field(default_factory=dict)  # commands, by their id
    ended: Ended = field(default_factory=Ended)

    def shown(self) -> JobRow:
        """As JSON knows it."""
        return {
            "id": self.id,
            "action": self.action,
            "state": self.state,
            "chunks": self.chunks,
            "text": self.text,
            "since": round(self.began, 3),
            "waits_for": [f"{name}/{rank}" for name, rank in self.waits_for.values()],
        }


class Jobs:
    """The last jobs of a controller.

    Args:
        journal: Is told of every end.
        clock: Seconds that never jump.
    """

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._of_command: dict[str, Job] = {}
        self._queues: dict[Key, deque[Command]] = {}

    def start(self, action: str, steps: Sequence[Step]) -> Job:
        """Begin one.

        Raises:
            CapacityError: Too much waits for a member.
        """
        now = self._clock()
        job = Job(secrets.token_hex(8), action, deque(steps), time.time(), now + _ANSWER_TIMEOUT_S)
        with self._lock:
            for step in steps:
                for key in step.members:
                    if len(self._queues.get(key, ())) >= _WAITING_MAX:
                        raise CapacityError(f"{_WAITING_MAX} commands wait for {key[0]}/{key[1]}")
            self._jobs[job.id] = job
            while len(self._jobs) > _KEPT:
                old = next((one for one in self._jobs.values() if one.state != "running"), None)
                if old is None:
                    break
                del self._jobs[old.id]
            self._go_on(job)
        return job

    def commands(self, key: Key) -> tuple[Command, ...]:
        """What a member is told with the answer to its heartbeat; each command once."""
        with self._lock:
            queue = self._queues.get(key)
            if not queue:
                return ()
            taken = tuple(queue.popleft() for _ in range(min(len(queue), _AT_ONCE)))
            if not queue:
                del self._queues[key]
            return taken

    def put(self, key: Key, command: Command) -> None:
        """A command of another controller's job, for a member that is heard here."""
        with self._lock:
            queue = self._queues.setdefault(key, deque())
            if len(queue) < _WAITING_MAX:
                queue.append(command)

    def elsewhere(self, which: Callable[[Key], bool]) -> list[tuple[Key, Command]]:
        """Take the commands of members that are heard elsewhere."""
        with self._lock:
            keys = [key for key in self._queues if which(key)]
            return [(key, command) for key in keys for command in self._queues.pop(key)]

    def results(self, key: Key, results: Sequence[Result]) -> list[Result]:
        """What a member has done; those that belong to no job here."""
        others = []
        with self._lock:
            for result in results:
                job = self._of_command.get(result.job)
                if job is None or job.waits_for.get(result.job) != key:
                    others.append(result)  # said twice, too late, or not for this one
                    continue
                del self._of_command[result.job], job.waits_for[result.job]
                job.chunks += result.chunks
                job.least = result.chunks if job.least is None else min(result.chunks, job.least)
                if not result.ok:
                    text = in_line(result.text) or "no reason"
                    self._end(job, "failed", f"{key[0]}/{key[1]}: {text}")
                elif not job.waits_for:
                    self._go_on(job)
        return others

    def gone(self, key: Key) -> None:
        """A member died or left: it answers nothing any more."""
        with self._lock:
            self._queues.pop(key, None)
            for job in {j.id: j for j in self._of_command.values()}.values():
                if key in job.waits_for.values():
                    self._end(job, "failed", f"{key[0]}/{key[1]} is gone")

    def tick(self) -> None:
        """Time has passed."""
        now = self._clock()
        with self._lock:
            for job in {j.id: j for j in self._of_command.values()}.values():
                if now >= job.until:
                    self._end(job, "failed", f"no answer within {_ANSWER_TIMEOUT_S:g} s")

    def get(self, id: str) -> Job | None:
        """One, if it is kept."""
        with self._lock:
            return self._jobs.get(id)

    def all(self) -> list[JobRow]:
        """The last ones, the youngest first."""
        with self._lock:
            return [job.shown() for job in reversed(self._jobs.values())]

    # --- With the lock ---

    def _go_on(self, job: Job) -> None:
        if not job.steps:
            self._end(job, "done", "")
            return
        step, job.chunks = job.steps.popleft(), 0
        for key in step.members:
            one = step.command
            id = secrets.token_hex(8)
            command = Command(id, one.action, one.identity, one.hashes, one.source)
            job.waits_for[id] = key
            self._of_command[id] = job
            self._queues.setdefault(key, deque()).append(command)

    def _end(self, job: Job, state: str, text: str) -> None:
        for id in job.waits_for:
            self._of_command.pop(id, None)
        for key in set(job.waits_for.values()):
            queue = self._queues.get(key, deque())
            self._queues[key] = deque(one for one in queue if one.job not in job.waits_for)
        job.waits_for = {}
        job.state, job.text = state, text
        job.ended.set()
        said = f"{job.action} is {state}: {text or f'{job.chunks} chunks'}"
        self._journal.write("job", said, job=job.id, state=state)
