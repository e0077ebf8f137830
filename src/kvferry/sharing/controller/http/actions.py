"""What HTTP changes: jobs of instances, pins, which are jobs that can be undone, and quotas.

An instance says which actions it takes when it registers. What it does not take, and what nobody
takes, is answered with 501 and a sentence, never with a success that is none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from kvferry.base.errors import UsageError
from kvferry.base.field_types import Line, Name
from kvferry.http.answers import CallError
from kvferry.http.bodies import ById
from kvferry.http.waits import AnswerLater
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.answers import JobRows, PinRow, PinRows, QuotaRow, QuotaRows
from kvferry.sharing.controller.http.prompts import AskedPrompt, PromptBody, asked, instance_of
from kvferry.sharing.controller.jobs import Job, JobRow, Step
from kvferry.sharing.controller.members import Member
from kvferry.sharing.controller.quotas import SetQuota
from kvferry.sharing.membership.messages import Command, Quota

__all__ = [
    "Actions",
    "JobBody",
    "PinBody",
    "QuotaBody",
    "no_such",
    "put_quota",
    "quotas",
    "remove_quota",
]

_ACTIONS = ("clear", "copy", "delete", "move", "pin", "prefetch", "unpin")
_PINS_MAX = 10_000


class PinBody(PromptBody, kw_only=True):
    """Whose memory keeps a prompt."""

    instance: Annotated[
        str, Meta(description="Who does it; of copy, move and prefetch: who holds the chunks.")
    ]
    wait: Annotated[bool, Meta(description="Answer when it has ended, or after timeout_s.")] = False
    timeout_s: Annotated[float, Meta(ge=0, le=60)] = 10.0


class JobBody(PinBody, kw_only=True):
    """What is to be done by whom."""

    action: Annotated[str, Meta(description=f"One of {', '.join(_ACTIONS)}.")]
    to: Annotated[
        str | None, Meta(description="Of copy, move and prefetch: who is to have the chunks.")
    ] = None


@dataclass(frozen=True)
class _SetPin:
    body: PinBody
    since: float


class Actions:
    """Jobs and pins. Threads: any.

    Args:
        controller: Whose instances.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._lock = threading.Lock()
        self._pins: dict[str, _SetPin] = {}

    # --- Jobs ---

    def start(self, controller: Controller, body: JobBody) -> AnswerLater[JobRow]:
        """Have instances do something."""
        if body.action not in _ACTIONS:
            if body.action in ("compress", "decompress"):
                raise no_such(body.action)
            raise UsageError(f"'action' is one of {', '.join(_ACTIONS)}")
        job = self.job(body)
        return AnswerLater(job.ended, body.timeout_s if body.wait else 0, job.shown)

    def jobs(self, controller: Controller) -> JobRows:
        """The last jobs."""
        return {"jobs": controller.jobs.all()}

    def one(self, controller: Controller, body: ById) -> JobRow:
        """How far a job is."""
        return self.found(body.id).shown()

    def found(self, id: str) -> Job:
        """A job.

        Raises:
            CallError: It is not kept.
        """
        job = self._controller.jobs.get(id)
        if job is None:
            raise CallError(404, "job", "there is no job with this id")
        return job

    def job(self, body: JobBody) -> Job:
        """Begin one.

        Raises:
            CallError: Nobody can do that; 501 if it is an action that an instance does not take.
            UsageError: The body cannot be right.
        """
        action, members = body.action, instance_of(self._controller, body.instance)
        if action == "clear":
            identities = self._whose(members, body.identity)
            return self._begin(action, [self._step("clear", members, one) for one in identities])
        prompts = [one for one in asked(self._controller, body) if one.hashes]
        if not prompts:
            raise UsageError("the prompt has no full chunk")
        if action not in ("move", "copy", "prefetch"):
            return self._begin(action, self._steps(action, members, prompts))
        # A prefetch names who holds the chunks; a copy and a move name where they go.
        if body.to is None:
            raise UsageError("name 'to': the instance that is to have the chunks")
        targets = instance_of(self._controller, body.to)
        steps = self._fetches(members, targets, prompts)
        if action == "move":
            steps += self._steps("delete", members, prompts)
        return self._begin(action, steps)

    def _begin(self, action: str, steps: Sequence[Step]) -> Job:
        if not steps:
            raise CallError(404, "identity", "the instance has no chunks of this identity")
        return self._controller.jobs.start(action, steps)

    def _steps(
        self, action: str, members: Sequence[Member], prompts: Sequence[AskedPrompt]
    ) -> list[Step]:
        return [
            self._step(action, [member], identity, one.hashes)
            for one in prompts
            for member in members
            for identity in member.identities
            if identity in one.identities
        ]

    def _fetches(
        self, sources: Sequence[Member], targets: Sequence[Member], prompts: Sequence[AskedPrompt]
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

    def pin(self, controller: Controller, body: PinBody) -> AnswerLater[PinRow]:
        """Keep a prompt's chunks in the memory of an instance."""
        with self._lock:
            if len(self._pins) >= _PINS_MAX:
                raise CallError(503, "busy", f"there are {_PINS_MAX} pins; remove some first")
        job = self.job(_job_of(body, "pin"))
        with self._lock:
            self._pins[job.id] = _SetPin(body, round(time.time(), 3))
        wait_s = body.timeout_s if body.wait else 0
        return AnswerLater(job.ended, wait_s, partial(self._shown_pin, job.id))

    def pins(self, controller: Controller) -> PinRows:
        """Pins that were set here, the oldest first."""
        with self._lock:
            ids = list(self._pins)
        return {"pins": [self._shown_pin(id) for id in ids]}

    def unpin(self, controller: Controller, body: ById) -> JobRow:
        """Undo a pin."""
        with self._lock:
            pin = self._pins.pop(body.id, None)
        if pin is None:
            raise CallError(404, "pin", "there is no pin with this id")
        return self.job(_job_of(pin.body, "unpin")).shown()

    def _shown_pin(self, id: str) -> PinRow:
        job = self._controller.jobs.get(id)
        with self._lock:
            pin = self._pins.get(id)
        return {
            "id": id,
            "instance": pin.body.instance if pin else None,
            "since": pin.since if pin else None,
            "state": job.state if job is not None else "forgotten",
            "chunks": job.chunks if job is not None else None,
            "text": job.text if job is not None else None,
        }


def _job_of(body: PinBody, action: str) -> JobBody:
    return JobBody(action=action, **msgspec.structs.asdict(body))


def no_such(action: str) -> CallError:
    """That nobody does this."""
    return CallError(501, "unsupported", f"{action} is not done here: chunks stay as they are")


class QuotaBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What an instance may hold."""

    instance: Name
    bytes: Annotated[int, Meta(ge=0, le=1 << 62, description="Of each of its processes.")]
    model: Annotated[Line, Meta(description="Of its chunks; empty: of all models together.")] = ""


# --- Quotas ---


def quotas(controller: Controller) -> QuotaRows:
    """What instances may hold in memory."""
    return {"quotas": [_shown_quota(one) for one in controller.quotas.all()]}


def put_quota(controller: Controller, body: QuotaBody) -> QuotaRow:
    """Limit what an instance holds in memory; the one of the same model is replaced."""
    instance_of(controller, body.instance)
    return _shown_quota(controller.quotas.put(body.instance, Quota(body.bytes, body.model)))


def remove_quota(controller: Controller, body: ById) -> QuotaRow:
    """Remove a quota."""
    one = controller.quotas.remove(body.id)
    if one is None:
        raise CallError(404, "quota", "there is no quota with this id")
    return _shown_quota(one)


def _shown_quota(one: SetQuota) -> QuotaRow:
    quota = one.quota
    return {
        "id": one.id,
        "instance": one.instance,
        "model": quota.model,
        "bytes": quota.bytes,
        "since": one.since,
    }
