"""What controllers keep in their store: names, records, and the commands that write them."""

from __future__ import annotations

import msgspec

from kvferry.base.received import Count, Line, Name, Rank, Short
from kvferry.sharing.controller.member_logs import PREFIX, RedisCommand, log_name
from kvferry.sharing.controller.members import Key
from kvferry.sharing.membership.facts import Digest
from kvferry.sharing.membership.messages import (
    Command,
    MemoryUsage,
    RegisterInstance,
    Result,
    WorkDone,
)

__all__ = [
    "COMMANDS",
    "MEMBERS",
    "QUOTAS",
    "RESULTS",
    "WANTS",
    "CommandRecord",
    "MemberRecord",
    "added",
    "deletion",
    "encode",
    "field_of",
    "key_in",
    "read_command",
    "read_record",
]

_STREAM_MAX = b"10000"
MEMBERS, WANTS, QUOTAS = PREFIX + b"members", PREFIX + b"wants", PREFIX + b"quotas"
COMMANDS, RESULTS = PREFIX + b"commands", PREFIX + b"results"


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


read_record = msgspec.msgpack.Decoder(MemberRecord).decode
read_command = msgspec.msgpack.Decoder(CommandRecord).decode
encode = msgspec.msgpack.Encoder().encode


def field_of(key: Key) -> bytes:
    return f"{key[1]}:{key[0]}".encode()


def key_in(field: bytes) -> Key:
    rank, _, instance = field.decode().partition(":")
    return instance, int(rank)


def deletion(key: Key, incarnation: bytes) -> list[RedisCommand]:
    return [(b"HDEL", MEMBERS, field_of(key)), (b"DEL", log_name(key, incarnation))]


def added(stream: bytes, said: CommandRecord) -> RedisCommand:
    return (b"XADD", stream, b"MAXLEN", b"~", _STREAM_MAX, b"*", b"said", encode(said))
