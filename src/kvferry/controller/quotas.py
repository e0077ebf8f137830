"""What each process of an instance may hold in memory: set here, told with every heartbeat.

A controller keeps nothing over a restart. An instance says with its registration which quotas it
was told, and what nobody has set or removed here since is taken over from there. Threads: any.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass

from kvferry.controller.journal import Journal
from kvferry.errors import CapacityError
from kvferry.membership.messages import Quota

__all__ = ["Quotas", "SetQuota"]

_OF_INSTANCE_MAX = 64
_ALL_MAX = 4096


@dataclass(frozen=True)
class SetQuota:
    """A quota of an instance."""

    instance: str
    quota: Quota
    since: float

    @property
    def id(self) -> str:
        """The same for each instance and model."""
        return _id(self.instance, self.quota.model)


class Quotas:
    """See the module.

    Args:
        journal: Is told what is set and removed.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._set: dict[str, SetQuota] = {}
        self._decided: set[str] = set()  # here, since this controller began

    def put(self, instance: str, quota: Quota) -> SetQuota:
        """Set one, in the place of that of the same model.

        Raises:
            CapacityError: There are too many.
        """
        one = SetQuota(instance, quota, round(time.time(), 3))
        with self._lock:
            if one.id not in self._set:
                of_instance = sum(each.instance == instance for each in self._set.values())
                if of_instance >= _OF_INSTANCE_MAX or len(self._set) >= _ALL_MAX:
                    raise CapacityError(f"{of_instance} quotas of {instance}; remove some first")
            self._set[one.id] = one
            self._decided.add(one.id)
        what = f" of {quota.model}" if quota.model else ""
        self._tell(one, f"{instance} may hold {quota.bytes} bytes{what}")
        return one

    def remove(self, id: str) -> SetQuota | None:
        """Remove one; None: there is none."""
        with self._lock:
            one = self._set.pop(id, None)
            self._decided.add(id)
        if one is not None:
            self._tell(one, f"a quota of {one.instance} is removed")
        return one

    def heard(self, instance: str, quotas: tuple[Quota, ...]) -> None:
        """An instance says what it was told, maybe by the controller before this one."""
        with self._lock:
            for quota in quotas:
                one = SetQuota(instance, quota, round(time.time(), 3))
                if one.id not in self._decided and len(self._set) < _ALL_MAX:
                    self._set.setdefault(one.id, one)

    def of(self, instance: str) -> tuple[Quota, ...]:
        """Those of an instance."""
        with self._lock:
            return tuple(one.quota for one in self._set.values() if one.instance == instance)

    def all(self) -> list[SetQuota]:
        """All of them, by instance and model."""
        with self._lock:
            return sorted(self._set.values(), key=lambda one: (one.instance, one.quota.model))

    def _tell(self, one: SetQuota, text: str) -> None:
        self._journal.write("quota", text, instance=one.instance)


def _id(instance: str, model: str) -> str:
    return hashlib.sha256(f"{instance}\0{model}".encode()).hexdigest()[:16]
