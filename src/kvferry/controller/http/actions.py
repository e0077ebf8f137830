"""What instances are asked to do: jobs, and pins, which are jobs that can be undone.

An instance says which actions it takes when it registers. What it does not take, and what nobody
takes, is answered with 501 and a sentence, never with a success that is none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kvferry.controller.controller import Controller
from kvferry.controller.http.asking import Asked, asked, instance_of
from kvferry.controller.jobs import Job, Step
from kvferry.controller.members import Member
from kvferry.errors import UsageError
from kvferry.http.answers import CallError, check_names, field
from kvferry.membership.messages import Command

__all__ = ["Actions"]

Body = Mapping[str, Any]
_ACTIONS = ("clear", "copy", "delete", "move", "pin", "prefetch", "unpin")
_NAMES = (
    *("action", "instance", "to", "tokens", "hashes", "text", "identity", "salt"),
    *("wait", "timeout_s"),
)
_WAIT_S, _WAIT_MAX_S = 10.0, 60.0
_PINS_MAX = 10_000


class Actions:
    """Threads: any.

    Args:
        controller: Whose instances.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._lock = threading.Lock()
        self._pins: dict[str, dict[str, Any]] = {}

    # --- Jobs ---

    def start(self, controller: Controller, body: Body) -> dict[str, Any]:
        """Begin a job; with `wait` also its end, if that comes in time."""
        check_names(body, _NAMES)
        action = field(body, "action", str)
        if action not in _ACTIONS:
            if action in ("compress", "decompress"):
                raise no_such(action)
            raise UsageError(f"'action' is one of {', '.join(_ACTIONS)}")
        job = self.job(action, body)
        if field(body, "wait", bool, False):
            job.ended.wait(_timeout(body))
        return job.shown()

    def jobs(self, controller: Controller, body: Body) -> dict[str, Any]:
        """The last jobs."""
        return {"jobs": controller.jobs.all()}

    def one(self, controller: Controller, body: Body) -> dict[str, Any]:
        """How far a job is."""
        return self.found(field(body, "id", str, "")).shown()

    def found(self, id: str) -> Job:
        """A job.

        Raises:
            CallError: It is not kept.
        """
        job = self._controller.jobs.get(id)
        if job is None:
            raise CallError(404, "job", "there is no job with this id")
        return job

    def job(self, action: str, body: Body) -> Job:
        """Begin one.

        Raises:
            CallError: Nobody can do that; 501 if it is an action that an instance does not take.
            UsageError: The body cannot be right.
        """
        name = field(body, "instance", str)
        if name is None:
            raise UsageError("name the 'instance'")
        members = instance_of(self._controller, name)
        if action == "clear":
            identities = self._whose(members, field(body, "identity", str))
            return self._begin(action, [self._step("clear", members, one) for one in identities])
        prompts = [one for one in asked(self._controller, body) if one.hashes]
        if not prompts:
            raise UsageError("the prompt has no full chunk")
        if action not in ("move", "copy", "prefetch"):
            return self._begin(action, self._steps(action, members, prompts))
        # A prefetch names who holds the chunks; a copy and a move name where they go.
        target = field(body, "to", str)
        if target is None:
            raise UsageError("name 'to': the instance that is to have the chunks")
        targets = instance_of(self._controller, target)
        steps = self._fetches(members, targets, prompts)
        if action == "move":
            steps += self._steps("delete", members, prompts)
        return self._begin(action, steps)

    def _begin(self, action: str, steps: Sequence[Step]) -> Job:
        if not steps:
            raise CallError(404, "identity", "the instance has no chunks of this identity")
        return self._controller.jobs.start(action, steps)

    def _steps(
        self, action: str, members: Sequence[Member], prompts: Sequence[Asked]
    ) -> list[Step]:
        return [
            self._step(action, [member], identity, one.hashes)
            for one in prompts
            for member in members
            for identity in member.identities
            if identity in one.identities
        ]

    def _fetches(
        self, sources: Sequence[Member], targets: Sequence[Member], prompts: Sequence[Asked]
    ) -> list[Step]:
        """Each rank of the target reads from the rank of the source that has the same identity."""
        steps = []
        for source in sources:
            for target in targets:
                for one in prompts:
                    both = source.identities.keys() & target.identities.keys()
                    for identity in both & one.identities.keys():
                        if not source.facts.address:
                            raise CallError(
                                501, "unsupported", f"{source.name} lends its chunks to nobody"
                            )
                        steps.append(
                            self._step(
                                "prefetch", [target], identity, one.hashes, source.facts.address
                            )
                        )
        return steps

    def _step(
        self,
        action: str,
        members: Sequence[Member],
        identity: bytes,
        hashes: bytes = b"",
        source: str = "",
    ) -> Step:
        for member in members:
            if action not in member.facts.actions:
                raise CallError(501, "unsupported", f"{member.name} takes no {action}")
        command = Command("-", action, identity, hashes, source)
        return Step(command, [member.key for member in members])

    def _whose(self, members: Sequence[Member], wanted: str | None) -> list[bytes]:
        if wanted is None:
            return [b""]
        return [
            digest
            for digest, one in {k: v for m in members for k, v in m.identities.items()}.items()
            if one.model == wanted or digest.hex().startswith(wanted.lower())
        ]

    # --- Pins ---

    def pin(self, controller: Controller, body: Body) -> dict[str, Any]:
        """Keep a prompt's chunks in the memory of an instance."""
        check_names(body, _NAMES[1:])
        with self._lock:
            if len(self._pins) >= _PINS_MAX:
                raise CallError(503, "busy", f"there are {_PINS_MAX} pins; remove some first")
        job = self.job("pin", body)
        kept = {name: value for name, value in body.items() if name not in ("wait", "timeout_s")}
        with self._lock:
            self._pins[job.id] = {"body": kept, "since": round(time.time(), 3)}
        job.ended.wait(_timeout(body) if field(body, "wait", bool, False) else 0)
        return self._shown_pin(job.id)

    def pins(self, controller: Controller, body: Body) -> dict[str, Any]:
        """Those that were set here, the oldest first."""
        with self._lock:
            ids = list(self._pins)
        return {"pins": [self._shown_pin(id) for id in ids]}

    def unpin(self, controller: Controller, body: Body) -> dict[str, Any]:
        """Undo one."""
        with self._lock:
            pin = self._pins.pop(field(body, "id", str, ""), None)
        if pin is None:
            raise CallError(404, "pin", "there is no pin with this id")
        return self.job("unpin", pin["body"]).shown()

    def _shown_pin(self, id: str) -> dict[str, Any]:
        job = self._controller.jobs.get(id)
        with self._lock:
            pin = self._pins.get(id)
        shown = job.shown() if job is not None else {"state": "forgotten"}
        return {
            "id": id,
            "instance": pin["body"].get("instance") if pin else None,
            "since": pin["since"] if pin else None,
            "state": shown["state"],
            "chunks": shown.get("chunks"),
            "text": shown.get("text"),
        }


def no_such(action: str) -> CallError:
    """That nobody does this."""
    return CallError(501, "unsupported", f"{action} is not done here: chunks stay as they are")


def _timeout(body: Body) -> float:
    seconds = field(body, "timeout_s", float, _WAIT_S)
    if not 0 <= seconds <= _WAIT_MAX_S:
        raise UsageError(f"'timeout_s' is 0 to {_WAIT_MAX_S:g}")
    return float(seconds)
