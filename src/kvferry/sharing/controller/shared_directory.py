"""Controllers that share what they know in Redis or Valkey, so that any of them may die.

Each member speaks to one controller, its home, which writes down what the member is, that it lives,
and what it holds (`member_logs`). The other controllers read that a few times a second and take it
as if the member had told them, so each of them answers look-ups from an index of its own. When a
controller dies, its members go to the next address that they were given; there they are known
already, and go on.

    members    hash: for each member a `MemberRecord`, written by its home; "" has the name of the
               store's contents, by which it is seen that all was lost
    log:...    stream: the changes of a member
    wants      hash: members whose log somebody cannot use; their home asks them for a snapshot
    quotas     hash: all that were set, and removed; the younger one counts
    commands   stream: what members are to do that are at home elsewhere
    results    stream: what came of that

A store that is away stops the sharing, and nothing else: every controller goes on with what it
knows, and takes no member for dead of which it cannot hear. What the store has lost is written
anew.

Threads: one of its own waits for the store; whoever calls does not.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from kvferry.base.errors import CapacityError, KVFerryError, UsageError
from kvferry.base.field_types import Count, Line, Name, Rank, Short
from kvferry.base.threads import Guarded, noticed
from kvferry.client.commands import ask_each, sparing
from kvferry.client.sync import RedisClient
from kvferry.config import ClientConfig
from kvferry.sharing.controller.jobs import Jobs
from kvferry.sharing.controller.member_logs import (
    PREFIX,
    MemberLogs,
    RedisCommand,
    entry_id,
    log_name,
)
from kvferry.sharing.controller.members import Change, Key, Member, Members
from kvferry.sharing.controller.quotas import Quotas, SetQuota
from kvferry.sharing.membership.messages import (
    Command,
    Digest,
    InstanceRefused,
    Malformed,
    MemoryUsage,
    RegisterInstance,
    Result,
    WorkDone,
    decoded,
)

__all__ = ["CommandRecord", "MemberRecord", "SharedDirectory"]

_log = logging.getLogger("kvferry.controller")

_TURN_EVERY_S = 0.2
_RETRY_S = 2.0  # after a turn that failed
_QUIET_S = 1.0  # since the last turn; after that, members of other controllers cannot be heard
_TURN_TIMEOUT_S = 5.0
_FIRST_TURN_TIMEOUT_S = 30.0  # reads all that is there when a controller begins
_COMMANDS_MAX = 256  # of one question
_RECORDS_MAX = 64  # of one question
_ENTRIES_MAX = 192  # of a stream, of one question: 3 MiB
_WANT_AFTER_S = 2.0  # that the log of a member is behind: its home asks for a snapshot
_STREAM_MAX = b"10000"  # entries
_MEMBERS, _WANTS, _QUOTAS = PREFIX + b"members", PREFIX + b"wants", PREFIX + b"quotas"
_COMMANDS, _RESULTS = PREFIX + b"commands", PREFIX + b"results"


class MemberRecord(msgspec.Struct, frozen=True):
    """A member, as its home has last heard it.

    Attributes:
        home: The controller.
        beats: How often it was heard there.
        seq: Number up to which its log is whole; 0: it is not.
    """

    home: Short
    instance: Name
    rank: Rank
    incarnation: Digest
    host: Line
    facts: RegisterInstance
    usage: MemoryUsage
    work: WorkDone
    beats: Count
    seq: Count


class CommandRecord(msgspec.Struct, frozen=True):
    """A command to a member, or what came of one."""

    instance: Name
    rank: Rank
    what: Command | None = None
    came: Result | None = None


_read_record = msgspec.msgpack.Decoder(MemberRecord).decode
_read_command = msgspec.msgpack.Decoder(CommandRecord).decode
_encode = msgspec.msgpack.Encoder().encode


def _field_of(key: Key) -> bytes:
    return f"{key[1]}:{key[0]}".encode()


def _key_in(field: bytes) -> Key:
    rank, _, instance = field.decode().partition(":")
    return instance, int(rank)


def _deletion(key: Key, incarnation: bytes) -> list[RedisCommand]:
    return [(b"HDEL", _MEMBERS, _field_of(key)), (b"DEL", log_name(key, incarnation))]


def _added(stream: bytes, said: CommandRecord) -> RedisCommand:
    return (b"XADD", stream, b"MAXLEN", b"~", _STREAM_MAX, b"*", b"said", _encode(said))


class _Followed:
    """A member that another controller hears."""

    def __init__(self) -> None:
        self.raw = b""
        self.incarnation = b""
        self.beats = -1
        self.behind_at: float | None = None  # since when its log is not whole here


class SharedDirectory:
    """The part of one controller.

    Args:
        config: Of the store.
        heartbeat_s: How often members say that they live.
        members, jobs, quotas: Of the controller.
    """

    def __init__(
        self,
        config: ClientConfig,
        heartbeat_s: float,
        members: Members,
        jobs: Jobs,
        quotas: Quotas,
    ) -> None:
        self._config = config
        self._client = RedisClient.from_config(sparing(config))
        self._members, self._jobs, self._quotas = members, jobs, quotas
        self._logs = MemberLogs(1.5 * heartbeat_s)
        self._id = secrets.token_bytes(16)
        self._lock = threading.Lock()
        self._out: list[RedisCommand] = []
        self._followed: dict[Key, _Followed] = {}
        self._died: set[Key] = set()
        self._contents = b""
        self._at = {_COMMANDS: b"", _RESULTS: b""}
        self._closing = threading.Event()
        self._thread = Guarded(self._run, "directory")
        self._turned = time.monotonic()
        self.problem = ""

    # --- Life ---

    def start(self) -> None:
        """Read all that is there, for some time at most, and go on in a thread."""
        self._try_turn(_FIRST_TURN_TIMEOUT_S)
        self._thread.start()

    def stop(self) -> None:
        """End; what members said last they say again, to whoever comes next."""
        self._closing.set()
        self._thread.join(_TURN_TIMEOUT_S)
        self._client.close()

    @property
    def address(self) -> str:
        """Of the store."""
        return self._config.address

    def _run(self) -> None:
        while not self._closing.wait(_RETRY_S if self.problem else _TURN_EVERY_S):
            self._try_turn(_TURN_TIMEOUT_S)

    def _try_turn(self, limit_s: float) -> None:
        try:
            self._turn(time.monotonic() + limit_s)
            if self.problem:
                _log.info("the directory at %s is there again", self.address)
            self.problem, self._turned = "", time.monotonic()
        except Exception as error:
            if not isinstance(error, KVFerryError | msgspec.MsgspecError | Malformed):
                noticed("directory", error)
            if str(error) != self.problem:
                _log.warning("the directory at %s: %s", self.address, error)
            self.problem = str(error) or type(error).__name__
            self._logs.lost()

    # --- What is told here ---

    def registered(self, member: Member) -> None:
        """A member registers here."""
        followed = self._followed.get(member.key)
        known = followed is not None and followed.incarnation == member.incarnation
        self._logs.heard(member, known)
        if followed is not None and followed.incarnation and not known:
            with self._lock:
                self._out.append((b"DEL", log_name(member.key, followed.incarnation)))

    def changed(self, member: Member, change: Change) -> None:
        """A member has said a change here, and it was taken."""
        self._logs.changed(member, change)

    def beaten(self, member: Member) -> bool:
        """A member lives; whether it is to send a snapshot."""
        self._logs.heard(member, followed=False)
        return not self.problem and self._logs.wants_snapshot(member)

    def gone(self, key: Key) -> None:
        """A member left here, or is taken for dead."""
        incarnation = self._logs.ended(key)
        with self._lock:
            if incarnation is None:
                self._died.add(key)
            else:
                self._out += _deletion(key, incarnation)

    def results(self, key: Key, results: Sequence[Result]) -> None:
        """What a member has done that was not asked for here."""
        with self._lock:
            self._out += [
                _added(_RESULTS, CommandRecord(key[0], key[1], came=each)) for each in results
            ]

    def tick(self) -> None:
        """Time has passed: who is heard elsewhere is not silent while that cannot be read."""
        if time.monotonic() - self._turned > _QUIET_S:
            self._members.pardon(key for key in list(self._followed) if key not in self._logs)

    # --- A turn ---

    def _turn(self, until: float) -> None:
        self._contents_of_store(until)
        self._write(until)
        self._read_members(until)
        self._read_quotas(until)
        self._read_streams(until)

    def _ask(self, until: float, *commands: RedisCommand) -> list[Any]:
        replies: list[Any] = []
        for at in range(0, len(commands), _COMMANDS_MAX):
            some = commands[at : at + _COMMANDS_MAX]
            left_s = max(0.1, until - time.monotonic())
            replies += [
                reply if ok else None
                for ok, reply in ask_each(
                    self._client, some, timeout_s=min(left_s, _TURN_TIMEOUT_S)
                )
            ]
        return replies

    def _contents_of_store(self, until: float) -> None:
        name = secrets.token_hex(8).encode()  # if it has none
        _, found = self._ask(until, (b"HSETNX", _MEMBERS, b"", name), (b"HGET", _MEMBERS, b""))
        if self._contents and found != self._contents:  # what was in it is lost
            self._logs.lost()
            self._followed.clear()
        if self._contents != found:
            self._at = {_COMMANDS: b"", _RESULTS: b""}
        self._contents = bytes(found or b"")

    def _write(self, until: float) -> None:
        out = self._logs.take()
        for (key, _), reply in zip(
            out, self._ask(until, *(command for _, command in out)), strict=True
        ):
            if reply is None:
                self._logs.refused(key)
        with self._lock:
            others, self._out = self._out, []
        others += [
            _added(_COMMANDS, CommandRecord(key[0], key[1], what=command))
            for key, command in self._jobs.elsewhere(self._elsewhere)
        ]
        for key, (incarnation, seq) in self._logs.unsaved().items():
            member = self._members.find(key, incarnation)
            if member is not None:
                others.append((b"HSET", _MEMBERS, _field_of(key), self._record(member, seq)))
        self._ask(until, *others)

    def _elsewhere(self, key: Key) -> bool:
        return key in self._followed and key not in self._logs

    def _record(self, member: Member, seq: int) -> bytes:
        return _encode(
            MemberRecord(
                self._id,
                member.instance,
                member.rank,
                member.incarnation,
                member.host,
                member.facts,
                member.usage,
                member.work,
                member.beats,
                seq,
            )
        )

    # --- What others hear ---

    def _read_members(self, until: float) -> None:
        wants, names = self._ask(until, (b"HKEYS", _WANTS), (b"HKEYS", _MEMBERS))
        for name in wants or ():
            if (key := _key_in(name)) in self._logs:
                self._logs.want(key)
                self._ask(until, (b"HDEL", _WANTS, name))
        if b"" not in (names or ()):
            return  # all was lost just now
        names = [name for name in names if name]
        raws: list[Any] = []
        for at in range(0, len(names), _RECORDS_MAX):
            [found] = self._ask(until, (b"HMGET", _MEMBERS, *names[at : at + _RECORDS_MAX]))
            raws += found or ()
        seen = set()
        for name, raw in zip(names, raws, strict=False):
            key = _key_in(name)
            seen.add(key)
            if isinstance(raw, bytes):
                with suppress(msgspec.MsgspecError):  # of another version
                    self._follow(key, raw, _read_record(raw), until)
        for key in [key for key in self._followed if key not in seen]:
            followed = self._followed.pop(key)
            member = self._members.find(key, followed.incarnation)
            if member is not None and member.state == "alive" and key not in self._logs:
                self._drop(key, self._members.leave(key, followed.incarnation))

    def _follow(self, key: Key, raw: bytes, record: MemberRecord, until: float) -> None:
        if record.home == self._id or self._logs.keeps(key):
            self._followed.pop(key, None)
            return
        followed = self._followed.setdefault(key, _Followed())
        with self._lock:
            died = key in self._died
            self._died.discard(key)
        if died and followed.raw == raw:  # nobody hears it: nor does its home
            self._ask(until, *_deletion(key, record.incarnation))
            return
        if followed.raw != raw:
            gone = self._members.register(key, record.incarnation, record.host, record.facts)
            if isinstance(gone, InstanceRefused):
                return
            self._drop(key, gone)
            followed.raw, followed.incarnation = raw, record.incarnation
        if followed.beats != record.beats:
            self._members.beat(key, record.incarnation, record.usage, record.work)
            followed.beats = record.beats
        self._catch_up(key, followed, record, until)

    def _catch_up(self, key: Key, followed: _Followed, record: MemberRecord, until: float) -> None:
        """Read the log of a member up to where its home has written it."""
        member = self._members.find(key, record.incarnation)
        if member is None or record.seq <= member.seq:
            return
        with suppress(Malformed, UsageError, CapacityError):  # then it stays behind
            self._read_log(member, until)
        now = time.monotonic()
        if member.seq >= record.seq and not member.gap:
            followed.behind_at = None
        elif followed.behind_at is None:
            followed.behind_at = now
        elif now - followed.behind_at > _WANT_AFTER_S:
            followed.behind_at = now
            self._ask(until, (b"HSET", _WANTS, _field_of(key), b"1"))

    def _read_log(self, member: Member, until: float) -> None:
        name = log_name(member.key, member.incarnation)
        start, message = entry_id(member.seq + 1), b""
        while time.monotonic() < until and member.key not in self._logs:
            count = b"%d" % _ENTRIES_MAX
            [found] = self._ask(until, (b"XRANGE", name, start, b"+", b"COUNT", count))
            for id, (kind, piece) in found or ():
                # What is in front of a first piece was never written to its end.
                message = piece if id.endswith(b"-0") else message + piece
                start = b"(" + id
                change = decoded(message) if kind == b"end" else None
                if isinstance(change, Change) and member.key not in self._logs:
                    self._members.change(member.key, member.incarnation, change)
            if not found or len(found) < _ENTRIES_MAX:
                break

    def _drop(self, key: Key, seats: list[int]) -> None:
        if seats:
            self._jobs.gone(key)
            self._members.drop(seats)

    # --- What people and programs ask for ---

    def _read_quotas(self, until: float) -> None:
        [found] = self._ask(until, (b"HVALS", _QUOTAS))
        there = []
        for raw in found or ():
            with suppress(msgspec.MsgspecError):
                there.append(msgspec.msgpack.decode(raw, type=SetQuota))
        news = self._quotas.merged(there)
        self._ask(until, *((b"HSET", _QUOTAS, one.id.encode(), _encode(one)) for one in news))

    def _read_streams(self, until: float) -> None:
        for name in (_COMMANDS, _RESULTS):
            if not self._at[name]:  # what was said before is not for this controller
                [last] = self._ask(until, (b"XREVRANGE", name, b"+", b"-", b"COUNT", b"1"))
                self._at[name] = last[0][0] if last else b"0-0"
            start = b"(" + self._at[name]
            [found] = self._ask(until, (b"XRANGE", name, start, b"+", b"COUNT", b"64"))
            for id, (_, raw) in found or ():
                self._at[name] = id
                said = _read_command(raw)
                key = (said.instance, said.rank)
                if said.what is not None and key in self._logs:
                    self._jobs.put(key, said.what)
                if said.came is not None:
                    self._jobs.results(key, [said.came])
