"""Numbers and texts from elsewhere: what is none is no message, and none makes a second line."""

from __future__ import annotations

import logging
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kvferry.base.shown import in_line
from kvferry.chunks.prompt import Prompt
from kvferry.rpc.link import encode
from kvferry.server import protocol as p
from kvferry.sharing.controller.jobs import Jobs, Step
from kvferry.sharing.controller.journal import Journal
from kvferry.sharing.membership import Command, Hits, Peer, Quota, Result, WorkDone
from kvferry.sharing.membership.controller_link import RefusedError
from kvferry.sharing.membership.messages import (
    Beat,
    HeldIdentity,
    InstanceHello,
    InstanceRefused,
    InstanceRegistered,
    Malformed,
    MemoryUsage,
    Pulse,
    RegisterInstance,
    decoded,
)
from kvferry.sharing.peers.peer_tier import Peers
from support.holdings import IDENTITY

DIGEST = IDENTITY.digest
FORGERIES = ("a\nINFO all is well", "a\r\n", "\x1b[2Ka", "a\x00", "a\x85b", "a\u2028b", "\u202ea")
NUMBERS = (float("nan"), float("inf"), float("-inf"), -1.0, 1e300)


def register(**changes: Any) -> RegisterInstance:
    given = RegisterInstance(1.0, "localhost:7000", (IDENTITY,), MemoryUsage())
    return msgspec.structs.replace(given, **changes)


def beat(**changes: Any) -> Beat:
    return msgspec.structs.replace(Beat(MemoryUsage()), **changes)


Make = Callable[[str], object]

FIELDS: dict[str, Make] = {
    "instance": lambda text: InstanceHello(1, "pull", text, 0, DIGEST, b"", b""),
    "action": lambda text: register(actions=(text,)),
    "software": lambda text: register(software=text),
    "address": lambda text: register(address=text),
    "lookup_address": lambda text: register(lookup_address=text),
    "model": lambda text: register(identities=(HeldIdentity(DIGEST, text, 16),)),
    "model of a quota": lambda text: register(quotas=(Quota(1, text),)),
    "tier": lambda text: beat(work=WorkDone(hits=(Hits(text, 1, 1),))),
    "job": lambda text: beat(results=(Result(text, True),)),
    "code": lambda text: InstanceRefused(text, ""),
    "heartbeat": lambda text: InstanceRegistered(text, 1.0),
    "peer": lambda text: Pulse(0, peers=(Peer("one", 0, text, ()),)),
    "source": lambda text: Pulse(0, commands=(Command("1", "prefetch", source=text),)),
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_text_that_would_be_two_lines_is_no_message_of_a_controller(field: str) -> None:
    for text in FORGERIES:
        with pytest.raises(Malformed):
            decoded(encode(FIELDS[field](text)))


def test_a_number_that_is_none_is_no_message_of_a_controller() -> None:
    for number in NUMBERS:
        for message in (
            register(started=number),
            beat(work=WorkDone(saved_s=number)),
            InstanceRegistered(":1", number),
        ):
            with pytest.raises(Malformed):
                decoded(encode(message))
    with pytest.raises(Malformed):
        decoded(encode(InstanceRegistered(":1", 0.0)))  # heartbeats without a pause


REQUESTS: dict[str, Make] = {
    "process": lambda text: p.Register(1, 0, 0, 1, {}, DIGEST, process=text),
    "source": lambda text: p.LookupRequest(1, 0, 0, Prompt(DIGEST, 4, 4, source=(text, 1))),
    "series": lambda text: p.Counted(1, 0, 0, {text: {}}),
    "labels": lambda text: p.Counted(1, 0, 0, {"tokens": {text: 1.0}}),
}


@pytest.mark.parametrize("field", REQUESTS)
def test_a_text_that_would_be_two_lines_is_no_request_of_a_server(field: str) -> None:
    for text in FORGERIES:
        with pytest.raises(msgspec.ValidationError):
            p.decode_request(p.encode(REQUESTS[field](text)))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_a_number_that_is_none_is_no_message_of_a_server(number: float) -> None:
    for request in (
        p.Speed(1, 0, 0, (number, 0.0, 0.0, 0.0)),
        p.Counted(1, 0, 0, {"tokens": {"": number}}),
        p.Counted(1, 0, 0, {}, {"seconds": {"": (number, [1])}}),
    ):
        with pytest.raises(msgspec.ValidationError):
            p.decode_request(p.encode(request))
    for reply in (
        p.Leased(1, 0, [], {}, lookup_s=number),
        p.Pong(1, "a", number),
    ):
        with pytest.raises(msgspec.ValidationError):
            p.decode_reply(p.encode(reply))


def test_what_an_instance_says_of_its_failure_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    journal = Journal()
    jobs = Jobs(journal)
    for text in FORGERIES:
        job = jobs.start("pin", [Step(Command("-", "pin"), [("one", 0)])])
        [command] = jobs.commands(("one", 0))
        said = Result(command.job, False, 0, text)
        jobs.results(("one", 0), [said])
        assert job.text.isprintable()
    assert all(event["text"].isprintable() for event in journal.since(0))
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert len(caplog.records) == len(FORGERIES)


def test_what_a_controller_says_of_a_refusal_is_one_line() -> None:
    for text in FORGERIES:
        assert str(RefusedError(InstanceRefused("full", text))).isprintable()
    assert len(in_line("x" * 100_000)) <= 400


def test_a_peer_whose_address_is_none_keeps_no_other_one_away() -> None:
    cache: Any = types.SimpleNamespace(tiers=[], available=True)

    def opened(name: str, address: str) -> Any:
        if "bad" in address:
            raise ValueError("no port")
        return types.SimpleNamespace(tier=types.SimpleNamespace(counted=dict))

    peers = Peers(cache, opened)
    peers.follow({name: Peer(name, 0, f"{name}:1", ()) for name in ("bad", "good", "bad2", "more")})
    assert len(cache.tiers) == 2


def test_a_line_in_the_log_of_our_programs_is_one_line() -> None:
    code = """
import logging
from kvferry.base.process import log_to_stderr
log_to_stderr("info")
logging.getLogger("kvferry.x").info("%s", "a\\nINFO forged\\x1b[2K")
try:
    raise ValueError("why")
except ValueError:
    logging.getLogger("kvferry.x").exception("it failed")
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stderr.splitlines()
    assert said[0].endswith("INFO kvferry.x: a\\nINFO forged\\x1b[2K")
    assert said[1].endswith("ERROR kvferry.x: it failed")
    assert said[-1] == "ValueError: why"
