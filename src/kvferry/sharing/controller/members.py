"""Who lives, and what it has said that it holds. It sees neither sockets nor threads of its own.

An instance is "alive", "suspect" after some seconds of silence (it is named last), and "dead" after
some more: what it held is forgotten at once, its name is kept for people. A process that comes back
after that registers anew and sends all that it holds. Nobody is declared dead for a time in which
the controller itself did not run.

Every message names the incarnation of its sender. What an older one says counts for nothing.

Where there is no room for a newcomer, the origin that has most members makes room for one that has
less; see `kvferry.rpc.listener`. So nobody fills the table for all, and one host alone may have
all of it.

Members say with their registration which clears for everybody they have heard of. The newest mark
of each identity is passed on (`Marks`) and none is drawn here; a controller that begins anew hears
them again.

Threads: any; a call waits for others while they look something up, not while they change the index.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from kvferry import _native
from kvferry.base.errors import CapacityError, UsageError
from kvferry.chunks.generation import Mark
from kvferry.rpc.listener import greediest, origin_of
from kvferry.sharing.controller.journal import Journal
from kvferry.sharing.controller.traffic import Traffic
from kvferry.sharing.membership.messages import (
    Begin,
    End,
    HeldIdentity,
    InstanceRefused,
    MemoryUsage,
    Peer,
    RegisterInstance,
    Renewed,
    SnapshotPart,
    Synced,
    Update,
    WorkDone,
    whole,
)

__all__ = ["Change", "FoundMember", "Key", "Marks", "Member", "Members", "begins_snapshot"]

Key = tuple[str, int]  # name of the instance, rank
Change = Update | Begin | SnapshotPart | End | Synced

_DEAD_KEPT = 1000  # members
_AHEAD_MAX_S = 86_400.0  # that the clock of a member may be ahead
_SEATS_MAX = 16  # identities of one process
_MARKS_MAX = 4096  # identities


@dataclass
class Member:
    """One process of an instance; read it under no lock, for people and look-ups."""

    instance: str
    rank: int
    incarnation: bytes
    host: str
    facts: RegisterInstance
    usage: MemoryUsage
    registered_at: float  # seconds since 1970
    beat_at: float  # seconds since 1970
    heard: float  # on the clock of `Members`
    state: str = "alive"
    seq: int = 0
    synced: bool = False
    gap: bool = True  # nothing counts until a snapshot begins
    resyncs: int = 0
    beats: int = 0
    work: WorkDone = field(default_factory=WorkDone)
    seats: dict[bytes, int] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Name and rank."""
        return (self.instance, self.rank)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.instance}/{self.rank}"

    @property
    def identities(self) -> dict[bytes, HeldIdentity]:
        """What it said of its chunks, by digest."""
        return {one.digest: one for one in self.facts.identities}


@dataclass(frozen=True)
class FoundMember:
    """A member that holds leading chunks of one identity."""

    member: Member
    identity: bytes
    chunks: int


class Marks:
    """The newest mark of each identity. One thread at a time."""

    def __init__(self) -> None:
        self._newest: OrderedDict[bytes, Mark] = OrderedDict()

    def hear(self, identities: Iterable[HeldIdentity]) -> None:
        """An instance says these."""
        for one in identities:
            known = self._newest.get(one.digest)
            if one.clears and (known is None or one.clears > known.counter):
                self._newest[one.digest] = one.mark
                self._newest.move_to_end(one.digest)
        while len(self._newest) > _MARKS_MAX:
            self._newest.popitem(last=False)

    def of(self, identities: Iterable[HeldIdentity]) -> tuple[Renewed, ...]:
        """The marks that an instance which says these is to hear.

        A mark that is as new as the instance's own and differs is among them: then the instance
        draws a newer one.
        """
        found = ((one, self._newest.get(one.digest)) for one in identities)
        return tuple(
            Renewed(one.digest, *mark)
            for one, mark in found
            if mark is not None and mark != one.mark and mark.counter >= one.clears
        )


class Members:
    """The members of one controller.

    Args:
        journal: Is told what happens.
        suspect_s, dead_s: Silence after which a member is "suspect", and "dead".
        members_max: How many members there may be. The index has 4096 slots; a member takes one for
            each identity, and another for a snapshot.
        clock: Seconds that never jump.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        suspect_s: float = 3.0,
        dead_s: float = 10.0,
        members_max: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = _native.Directory()
        self.traffic = Traffic(clock)
        self._journal = journal
        self._suspect_s, self._dead_s = suspect_s, dead_s
        self._members_max = members_max
        self._clock = clock
        self._lock = threading.Lock()
        self._members: dict[Key, Member] = {}
        self._dead: dict[Key, Member] = {}
        self._of_seat: dict[int, tuple[Member, bytes]] = {}
        self._ousted: list[tuple[Member, list[int]]] = []  # since the last tick
        self._ticked = clock()
        self._marks = Marks()
        # Of the list of peers; another controller's numbers are others.
        self._peers_number = 1 + secrets.randbits(60)
        self.counts = {"gaps": 0, "stale": 0, "resyncs": 0, "deaths": 0}

    # --- What members say ---

    def register(
        self, key: Key, incarnation: bytes, host: str, facts: RegisterInstance
    ) -> InstanceRefused | list[int]:
        """A member says what it is; the seats of the process before it, which are to be dropped."""
        gone: list[int] = []
        now = time.time()
        if facts.started > now + _AHEAD_MAX_S:  # else it would be the youngest for ever
            facts = replace(facts, started=now)
        with self._lock:
            self._marks.hear(facts.identities)
            member = self._members.get(key)
            if member is not None and member.incarnation == incarnation:
                if _readable(member.facts) != _readable(facts):
                    self._peers_number += 1
                member.facts = replace(facts, started=member.facts.started)
                member.heard = self._clock()
                return gone
            if member is not None and member.facts.started > facts.started:
                self.counts["stale"] += 1
                text = f"a younger process at {member.host} is {member.name} now"
                return InstanceRefused("replaced", text)
            full = member is None and len(self._members) >= self._members_max
            if full and not self._make_room(origin_of(host)):
                return InstanceRefused("full", f"{self._members_max} instances are registered")
            if member is not None:
                gone = self._forget(member)
            name, rank = key
            member = Member(
                name, rank, incarnation, host, facts, facts.usage, now, now, self._clock()
            )
            self._dead.pop(key, None)
            self._members[key] = member
            self._peers_number += 1
        self._journal.write("join", f"{member.name} at {host} has joined", **_who(member))
        return gone

    def leave(self, key: Key, incarnation: bytes) -> list[int]:
        """A member ends; its seats, which are to be dropped."""
        with self._lock:
            member = self._known(key, incarnation)
            if member is None:
                return []
            del self._members[key]
            self._peers_number += 1
            gone = self._forget(member)
        self._journal.write("leave", f"{member.name} has left", **_who(member))
        return gone

    def counted(self, key: Key, incarnation: bytes) -> int | None:
        """The number of the last change that counted; None: the member has to register first."""
        with self._lock:
            member = self._known(key, incarnation)
            return None if member is None else member.seq

    def beat(self, key: Key, incarnation: bytes, usage: MemoryUsage, work: WorkDone) -> bool | None:
        """A member lives; whether it shall send a snapshot. None: it has to register first."""
        with self._lock:
            member = self._known(key, incarnation)
            if member is None:
                return None
            if member.beats:  # before its first beat it may have done something without us
                self.traffic.add(*key, member.work, work)
            member.usage, member.work, member.heard = usage, work, self._clock()
            member.beat_at, member.beats = time.time(), member.beats + 1
            back, member.state = member.state != "alive", "alive"
            resync = member.gap and member.seq > 0
        if back:
            self._journal.write("alive", f"{member.name} is heard again", **_who(member))
        return resync

    def change(self, key: Key, incarnation: bytes, change: Change) -> bool:
        """What a member holds has changed; False: the member has to register first.

        Raises:
            Malformed: The hashes are not whole.
        """
        for hashes in _hashes(change):
            whole(hashes)
        with self._lock:
            member = self._known(key, incarnation)
            if member is None:
                return False
            if change.seq <= member.seq:
                self.counts["stale"] += 1  # said twice, or out of step
                return True
            gap = change.seq != member.seq + 1
            member.seq = change.seq
            begins = begins_snapshot(change)
            if gap and not member.gap and not begins:
                self.counts["gaps"] += 1
                self._journal.write("gap", f"{member.name}: updates were lost", **_who(member))
            member.gap = (gap or member.gap) and not begins
            if member.gap:
                return True
            if isinstance(change, Synced):
                others = [one for one in member.seats if one not in change.identities]
                seat, gone = -1, [member.seats.pop(one) for one in others]
                for one in gone:
                    self._of_seat.pop(one, None)
                member.synced, member.resyncs = True, member.resyncs + 1
                self.counts["resyncs"] += 1
            else:
                seat, gone = self._seat(member, change.identity), []
        if isinstance(change, Update):
            self.directory.update(seat, change.added, change.removed)
        elif isinstance(change, Begin):
            if not self.directory.begin(seat):
                raise CapacityError("the directory has no room for a snapshot")
        elif isinstance(change, SnapshotPart):
            self.directory.fill(seat, change.hashes)
        elif isinstance(change, End):
            self.directory.finish(seat)
        else:
            self.drop(gone)
            held = sum(map(self.directory.size, member.seats.values()))
            text = f"{member.name} has sent all that it holds: {held} chunks"
            self._journal.write("synced", text, **_who(member), chunks=held)
        return True

    def renewed(self, key: Key) -> tuple[Renewed, ...]:
        """Clears for everybody that a member has not heard of."""
        with self._lock:
            member = self._members.get(key)
            return () if member is None else self._marks.of(member.facts.identities)

    def find(self, key: Key, incarnation: bytes) -> Member | None:
        """A member that lives, if it is this process."""
        with self._lock:
            member = self._members.get(key)
            return member if member is not None and member.incarnation == incarnation else None

    def pardon(self, keys: Iterable[Key]) -> None:
        """Count the silence of these members from now on: they could not be heard."""
        with self._lock:
            for key in keys:
                if key in self._members:
                    self._members[key].heard = self._clock()

    def drop(self, seats: Iterable[int]) -> None:
        """Forget what these seats held; it takes a while, so it is done in a thread."""
        for seat in seats:
            self.directory.drop(seat)

    def tick(self) -> list[tuple[Key, list[int]]]:
        """Time has passed: call it several times a second. The dead, with seats to be dropped."""
        events: list[tuple[str, Member]] = []
        dead: list[tuple[Key, list[int]]] = []
        self.traffic.tick()
        with self._lock:
            now, ousted, self._ousted = self._clock(), self._ousted, []
            # The controller was stopped or starved: nobody could be heard meanwhile.
            lost_s = now - self._ticked
            if lost_s > self._suspect_s / 3:
                for member in self._members.values():
                    member.heard = min(now, member.heard + lost_s)
            self._ticked = now
            for member in list(self._members.values()):
                silent_s = now - member.heard
                if silent_s >= self._dead_s:
                    dead.append((member.key, self._bury(member)))
                    events.append(("dead", member))
                elif silent_s >= self._suspect_s and member.state == "alive":
                    member.state = "suspect"
                    events.append(("suspect", member))
        for kind, member in events:
            self._journal.write(kind, f"{member.name} is {kind}: it is silent", **_who(member))
        for member, seats in ousted:
            dead.append((member.key, seats))
            text = f"{member.name} made room: {member.host} has the most of {self._members_max}"
            self._journal.write("dead", text, **_who(member))
        return dead

    # --- What others ask ---

    def all(self) -> list[Member]:
        """Those that live, then those that died."""
        with self._lock:
            return [*self._members.values(), *self._dead.values()]

    def living(self) -> list[Member]:
        """Those that are not dead."""
        with self._lock:
            return list(self._members.values())

    def peers(self, known: int) -> tuple[int, tuple[Peer, ...] | None]:
        """The number of the list of those that can be read from, and the list, if it is another
        one than the one with the number `known`."""
        with self._lock:
            if known == self._peers_number:
                return known, None
            found = [
                Peer(one.instance, one.rank, *_readable(one.facts), one.facts.lookup_address)
                for one in self._members.values()
                if one.facts.address
            ]
            return self._peers_number, tuple(found)

    def lookup(self, hashes: bytes) -> list[FoundMember]:
        """Who holds leading chunks: those that live first, then the longest."""
        with self._lock:
            found = [
                FoundMember(*self._of_seat[seat], chunks)
                for seat, chunks in self.directory.lookup(hashes)
                if seat in self._of_seat
            ]
        found.sort(key=lambda one: one.member.state != "alive")  # stable: the longest stay first
        return found

    def chunks(self, member: Member) -> int:
        """How many chunks a member holds, of all identities."""
        return sum(self.directory.size(seat) for seat in list(member.seats.values()))

    # --- With the lock ---

    def _known(self, key: Key, incarnation: bytes) -> Member | None:
        member = self._members.get(key)
        if member is None or member.incarnation != incarnation:
            self.counts["stale"] += member is not None
            return None
        return member

    def _seat(self, member: Member, identity: bytes) -> int:
        seat = member.seats.get(identity)
        if seat is None:
            if len(member.seats) >= _SEATS_MAX:
                raise UsageError(f"{member.name} has chunks of more than {_SEATS_MAX} identities")
            seat = member.seats[identity] = self.directory.open()
            self._of_seat[seat] = (member, identity)
        return seat

    def _make_room(self, newcomer: str) -> bool:
        """Bury a member of the origin that has most; False: none has more than the newcomer's."""
        origin = greediest((origin_of(one.host) for one in self._members.values()), newcomer)
        if origin is None:
            return False
        theirs = [one for one in self._members.values() if origin_of(one.host) == origin]
        # Those that were never heard first, then the one that came last.
        last = max(theirs, key=lambda one: (not one.beats, one.registered_at))
        self._ousted.append((last, self._bury(last)))
        return True

    def _bury(self, member: Member) -> list[int]:
        member.state = "dead"
        del self._members[member.key]
        self._peers_number += 1
        self._dead[member.key] = member
        while len(self._dead) > _DEAD_KEPT:
            del self._dead[next(iter(self._dead))]
        self.counts["deaths"] += 1
        return self._forget(member)

    def _forget(self, member: Member) -> list[int]:
        gone = list(member.seats.values())
        member.seats = {}
        for seat in gone:
            self._of_seat.pop(seat, None)
        return gone


def _readable(facts: RegisterInstance) -> tuple[str, tuple[bytes, ...]]:
    return facts.address, tuple(one.digest for one in facts.identities)


def _hashes(change: Change) -> tuple[bytes, ...]:
    if isinstance(change, Update):
        return (change.added, change.removed)
    return (change.hashes,) if isinstance(change, SnapshotPart) else ()


def begins_snapshot(change: Change) -> bool:
    """Whether a snapshot begins with it; one of nothing is begun and complete at once."""
    if isinstance(change, Synced):
        return not change.identities
    return isinstance(change, Begin) and change.first


def _who(member: Member) -> dict[str, object]:
    return {"instance": member.instance, "rank": member.rank}
