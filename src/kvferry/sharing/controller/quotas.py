"""What each process of an instance may hold in memory: set here, told with every heartbeat.

A controller keeps nothing over a restart. An instance says with its registration which quotas it
was told, and quotas that are not known here are taken over. Where several controllers have set or
removed a quota, the younger change counts.

Threads: any.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from kvferry.base.errors import CapacityError
from kvferry.base.field_types import Moment, Name
from kvferry.sharing.controller.journal import Journal
from kvferry.sharing.membership.messages import Quota

__all__ = ["Quotas", "SetQuota"]

_OF_INSTANCE_MAX = 64
_ALL_MAX = 4096


@dataclass(frozen=True)
class SetQuota:
    """A quota of an instance.

    Attributes:
        since: When it was set, in seconds since 1970; 0: before this controller began.
        removed: It is none any more.
    """

    instance: Name
    quota: Quota
    since: Moment
    removed: bool = False

    @property
    def id(self) -> str:
        """The same for each instance and model."""
        text = f"{self.instance}\0{self.quota.model}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Quotas:
    """The quotas of all instances.

    Args:
        journal: Is told which quotas are set and removed.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._all: dict[str, SetQuota] = {}  # those that were removed too

    def put(self, instance: str, quota: Quota) -> SetQuota:
        """Set one, in the place of that of the same model.

        Raises:
            CapacityError: There are too many.
        """
        one = SetQuota(instance, quota, round(time.time(), 3))
        with self._lock:
            others = [each for each in self._all.values() if each.id != one.id]
            count = sum(each.instance == instance and not each.removed for each in others)
            if count >= _OF_INSTANCE_MAX or len(others) >= _ALL_MAX:
                raise CapacityError(f"{count} quotas of {instance}; remove some first")
            self._all[one.id] = one
        what = f" of {quota.model}" if quota.model else ""
        text = f"{instance} may hold {quota.bytes} bytes{what}"
        self._journal.write("quota", text, instance=instance)
        return one

    def remove(self, id: str) -> SetQuota | None:
        """Remove one; None: there is none."""
        with self._lock:
            one = self._all.get(id)
            if one is None or one.removed:
                return None
            now = round(time.time(), 3)
            self._all[id] = SetQuota(one.instance, one.quota, now, removed=True)
        text = f"a quota of {one.instance} is removed"
        self._journal.write("quota", text, instance=one.instance)
        return one

    def heard(self, instance: str, quotas: Iterable[Quota]) -> None:
        """An instance says what it was told, maybe by the controller before this one."""
        with self._lock:
            for quota in quotas:
                one = SetQuota(instance, quota, 0.0)
                if len(self._all) < _ALL_MAX:
                    self._all.setdefault(one.id, one)

    def merged(self, others: Iterable[SetQuota]) -> list[SetQuota]:
        """Take over what others have set or removed later; the quotas that others do not have."""
        with self._lock:
            there = {one.id: one for one in others}
            for id, one in there.items():
                if id not in self._all or self._all[id].since < one.since:
                    self._all[id] = one
            return [one for id, one in self._all.items() if there.get(id) != one]

    def of(self, instance: str) -> tuple[Quota, ...]:
        """Those of an instance."""
        return tuple(one.quota for one in self.all() if one.instance == instance)

    def all(self) -> list[SetQuota]:
        """All of them, by instance and model."""
        with self._lock:
            found = [one for one in self._all.values() if not one.removed]
        return sorted(found, key=lambda one: (one.instance, one.quota.model))
