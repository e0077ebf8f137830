"""What a controller writes down of its own members, for the other controllers.

A member's log is a stream of its messages, under their own numbers, from the one that began its
last snapshot. Long messages are cut into pieces. A log that is not whole is worth nothing: it is
deleted, and the member is asked for a snapshot, with which the next log begins. A member whose log
has become much longer than what it holds is asked for a snapshot too.

`MemberLogs` decides and keeps what is to be sent; it sends nothing.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvferry.rpc.link import encode
from kvferry.sharing.controller.members import Change, Key, Member, begins_snapshot
from kvferry.sharing.membership.messages import Synced

__all__ = ["PIECE_BYTES", "PREFIX", "MemberLogs", "RedisCommand", "entry_id", "log_name"]

RedisCommand = tuple[bytes, ...]

PREFIX = b"kvferry:controller:"
PIECE_BYTES = 16 << 10
_WAITING_BYTES_MAX = 256 << 20  # commands that the store has not taken yet
_SPARE_BYTES = 4 << 20  # by which a log may be longer than twice its snapshot
_ASK_EVERY_S = 5.0  # that a member is asked for a snapshot


def log_name(key: Key, incarnation: bytes) -> bytes:
    """Of the stream of a member."""
    return PREFIX + b"log:" + incarnation.hex().encode() + f":{key[1]}:{key[0]}".encode()


def entry_id(seq: int, piece: int = 0) -> bytes:
    """Of a piece of a message in a stream."""
    return b"%d-%d" % (seq, piece)


@dataclass
class _MemberLog:
    """The log of a member that is heard here.

    Attributes:
        whole: The log has all since a snapshot began.
        seq: Of the last change that was seen.
        began: Number with which the last snapshot began.
        size, base: Bytes since then, and how many of them were the snapshot; 0: it is not complete.
        wanted: Another controller cannot use the log.
        heard_at: When it was heard.
        unsaved: There is something to be written of it.
    """

    incarnation: bytes
    whole: bool
    seq: int
    asked_at: float
    heard_at: float
    began: int = 0
    size: int = 0
    base: int = 0
    wanted: bool = False
    unsaved: bool = True


class MemberLogs:
    """The logs of a controller's own members.

    Args:
        patience_s: A member that was not heard here for so long, but elsewhere, is another
            controller's.
        clock: Seconds that never jump.
    """

    def __init__(self, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._logs: dict[Key, _MemberLog] = {}
        self._out: list[tuple[Key, RedisCommand]] = []
        self._out_bytes = 0

    # --- What members say here ---

    def heard(self, member: Member, followed: bool) -> None:
        """A member speaks to this controller; `followed`: its log was read here until now."""
        with self._lock:
            log = self._of(member, followed)
            log.heard_at, log.unsaved = self._clock(), True

    def changed(self, member: Member, change: Change) -> None:
        """A member has said a change, and it was taken."""
        with self._lock:
            log = self._of(member, followed=False)
            if change.seq <= log.seq:
                return
            log.seq, log.unsaved = change.seq, True
            if member.gap:
                log.whole = False
                return
            if begins_snapshot(change):
                if not log.whole:
                    self._put(member.key, b"DEL", log_name(member.key, log.incarnation))
                log.whole, log.wanted = True, False
                log.began, log.size, log.base = change.seq, 0, 0
            if not log.whole:
                return
            log.size += self._write(member.key, log.incarnation, change)
            if isinstance(change, Synced):
                log.base = log.size
                name = log_name(member.key, log.incarnation)
                self._put(member.key, b"XTRIM", name, b"MINID", entry_id(log.began))
            if self._out_bytes > _WAITING_BYTES_MAX:
                self._break()

    def wants_snapshot(self, member: Member) -> bool:
        """Whether a member is to be asked for one now."""
        with self._lock:
            log = self._of(member, followed=False)
            long = bool(log.base) and log.size > 2 * log.base + _SPARE_BYTES
            now = self._clock()
            if log.whole and not log.wanted and not long:
                return False
            if now - log.asked_at < _ASK_EVERY_S:
                return False
            log.asked_at = now
            return True

    def want(self, key: Key) -> None:
        """Another controller cannot use the log of a member."""
        with self._lock:
            if key in self._logs:
                self._logs[key].wanted = True

    def ended(self, key: Key) -> bytes | None:
        """A member left or died; its incarnation, if its log was written here."""
        with self._lock:
            log = self._logs.pop(key, None)
            return None if log is None else log.incarnation

    # --- Who else hears them ---

    def keeps(self, key: Key) -> bool:
        """Whether a member, which another controller says that it hears, was heard here lately; if
        not, its log is written here no more."""
        with self._lock:
            log = self._logs.get(key)
            if log is not None and self._clock() - log.heard_at >= self._patience_s:
                del self._logs[key]
            return key in self._logs

    def __contains__(self, key: Key) -> bool:
        with self._lock:
            return key in self._logs

    def unsaved(self) -> dict[Key, tuple[bytes, int]]:
        """Who was heard since the last call: the incarnation, and the number up to which its log is
        whole; 0: it is not."""
        with self._lock:
            found = {key: log for key, log in self._logs.items() if log.unsaved}
            for log in found.values():
                log.unsaved = False
            return {
                key: (log.incarnation, log.seq if log.whole else 0) for key, log in found.items()
            }

    # --- What is to be sent ---

    def take(self) -> list[tuple[Key, RedisCommand]]:
        """What waits to be sent, in order; it does not wait any more."""
        with self._lock:
            out, self._out, self._out_bytes = self._out, [], 0
            return out

    def refused(self, key: Key) -> None:
        """The store did not take something of a member's log."""
        with self._lock:
            if key in self._logs:
                self._logs[key].whole = False

    def lost(self) -> None:
        """The store is away, or has lost what was in it: no log is whole."""
        with self._lock:
            self._break()

    # --- With the lock ---

    def _of(self, member: Member, followed: bool) -> _MemberLog:
        log = self._logs.get(member.key)
        if log is None or log.incarnation != member.incarnation:
            if log is not None:
                self._put(member.key, b"DEL", log_name(member.key, log.incarnation))
            whole = followed and member.synced and not member.gap
            now = self._clock()
            log = _MemberLog(member.incarnation, whole, member.seq, now, now)
            log.base = int(whole)  # another controller has written it
            self._logs[member.key] = log
        return log

    def _write(self, key: Key, incarnation: bytes, change: Change) -> int:
        name, raw = log_name(key, incarnation), encode(change)
        for piece, at in enumerate(range(0, len(raw), PIECE_BYTES)):
            cut = raw[at : at + PIECE_BYTES]
            kind = b"end" if at + PIECE_BYTES >= len(raw) else b"more"
            self._put(key, b"XADD", name, entry_id(change.seq, piece), kind, cut)
        return len(raw)

    def _put(self, key: Key, *command: bytes) -> None:
        self._out.append((key, command))
        self._out_bytes += sum(map(len, command))

    def _break(self) -> None:
        self._out, self._out_bytes = [], 0
        for log in self._logs.values():
            log.whole, log.unsaved = False, True
