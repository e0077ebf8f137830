"""One-sided reads between processes: identical bytes or a socket, and no page written late."""

from __future__ import annotations

import importlib.util
import json
import logging
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from kvferry.sharing.controller.controller import Controller
from support.dashboard import samples
from support.engines import check, expected, prompt
from support.one_sided import NIXL, OWNER, owner_of, reader_of, says
from support.sharing import PROMPT, finds, instances, meets, running_controller

needs_nixl = pytest.mark.skipif(
    importlib.util.find_spec("nixl") is None,
    reason="nixl is not installed: pip install --no-deps nixl nixl-cu12",
)
OVER_NIXL = pytest.param("nixl", marks=needs_nixl, id="nixl")
WAYS = ["memory", OVER_NIXL, pytest.param("tcp", marks=needs_nixl, id="nixl-tcp")]


@pytest.fixture
def controller() -> Iterator[Controller]:
    with running_controller() as controller:
        yield controller


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Settings of both sides: from process to process, over NIXL, over NIXL's TCP."""
    if request.param == "tcp":
        monkeypatch.setenv("UCX_TLS", "tcp")
    return {} if request.param == "memory" else NIXL


@pytest.mark.parametrize("name", ["plain", "striped"])
def test_what_is_read_one_sided_is_what_its_owner_has(
    controller: Controller, way: dict[str, str], name: str
) -> None:
    body = """
until_one_sided(engine)
before = figures(engine)
for seed in (0, 1, 2, 1):
    engine.clear(stores=False)
    check(engine, prompt(tokens, seed), tokens)
print(json.dumps([before, figures(engine), engine.metrics.text()]), flush=True)
"""
    with (
        owner_of(controller, name, 5, **way),
        reader_of(controller, name, 5, body, **way) as reader,
    ):
        before, after, page = json.loads(says(reader))
        assert after["reads"] > before["reads"]
        assert after["fallbacks"] == after["expired"] == 0
        peer = f'peer="peer {OWNER}"'
        shown = {name: value for name, labels, value in samples(page) if labels == peer}
        assert shown == {f"kvferry_one_sided_{what}_total": n for what, n in after.items()}


def test_an_owner_killed_in_the_middle_is_a_shorter_prefix(
    controller: Controller, way: dict[str, str]
) -> None:
    """It says after each read that it has begun another one, so that the kill meets one."""
    body = """
until_one_sided(engine)
print("reads", flush=True)
longest, seed = 0.0, 0
while peers_of(engine):
    engine.clear(stores=False)
    began = time.monotonic()
    check(engine, prompt(tokens, seed % 3))
    longest, seed = max(longest, time.monotonic() - began), seed + 1
engine.clear(stores=False)
gone = check(engine, prompt(tokens, 1))
print(json.dumps([longest, gone, figures(engine)]), flush=True)
"""
    with (
        owner_of(controller, "striped", 8, **way) as owner,
        reader_of(controller, "striped", 8, body, retrieve_timeout_s=2.0, **way) as reader,
    ):
        assert says(reader) == "reads"
        time.sleep(random.Random(5).uniform(0.05, 0.4))
        owner.process.kill()
        longest, gone, _ = json.loads(says(reader))
        assert gone == 0
        assert longest < 10  # of two retrieves of at most 2 s, on a machine that is full


@needs_nixl
def test_a_read_that_was_given_up_never_writes_to_the_buffers(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UCX does not take reads back: over TCP they go on when the owner does."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    body = """
until_one_sided(engine)
owner, connector = int(sys.argv[5]), engine.tiers[0].tier.connector
from kvferry.chunks.prompt import read_prompt
from kvferry.chunks.keys import chunk_hashes
keys = read_prompt(prompt(tokens, 2), identity.layout.chunk_size, b"").keys(0, chunks)
buffers = blanks(chunks, identity.layout)
ticket = connector.submit_get(keys, buffers, timeout_s=2.0)
end = time.monotonic() + 2.0
while ticket.prefix_len < 1 and time.monotonic() < end:
    time.sleep(0.0005)
os.kill(owner, signal.SIGSTOP)
result = None
while result is None:
    result = ticket.wait(0.1)
late_s = time.monotonic() - end
ok = list(result.statuses)
for index, buffer in enumerate(buffers):
    assert ok[index] or bytes(buffer) == expected(prompt(tokens, 2), identity)[index].tobytes()
    buffer[:] = 0xAA  # ours again
given_up = len(connector._agent._given_up)
os.kill(owner, signal.SIGCONT)
time.sleep(1.0)
assert all((buffer == 0xAA).all() for buffer in buffers), "bytes came late"
engine.clear(stores=False)
check(engine, prompt(tokens, 1))
print(json.dumps([late_s, sum(map(bool, ok)), given_up, figures(engine)]), flush=True)
"""
    with owner_of(controller, "striped", 8, **NIXL) as owner:
        pid = owner.process.pid
        with reader_of(controller, "striped", 8, body, pid, **NIXL) as reader:
            late_s, failed, given_up, figures = json.loads(says(reader))
    assert late_s < 5
    assert failed > 0
    assert given_up == 1  # a read was under way, and its memory waits for its end
    assert figures["fallbacks"] == 1


def test_bytes_of_a_lease_that_is_over_are_a_miss(
    controller: Controller, way: dict[str, str]
) -> None:
    body = """
until_one_sided(engine)
connector = engine.tiers[0].tier.connector
agent, read = connector._agent, type(connector._agent).read
def late(peer, pieces, until):
    sums = read(agent, peer, pieces, until)
    time.sleep(0.6)
    return sums
agent.read = late
from kvferry.chunks.prompt import read_prompt
keys = read_prompt(prompt(tokens, 1), identity.layout.chunk_size, b"").keys(0, chunks)
ours = blanks(chunks, identity.layout)
result = connector.submit_get(keys, ours, prefix=True, timeout_s=1.0).wait(30)
del agent.read
again = connector.submit_get(keys, ours, timeout_s=30.0).wait(30)
print(json.dumps([list(result.statuses), list(again.statuses), figures(engine)]), flush=True)
"""
    with (
        owner_of(controller, "plain", 4, **way),
        reader_of(controller, "plain", 4, body, **way) as reader,
    ):
        statuses, again, figures = json.loads(says(reader))
    assert statuses == [1, 7, 7, 7]
    assert again == [0, 0, 0, 0]
    assert figures["expired"] == 1
    assert figures["fallbacks"] == 0


def test_other_bytes_than_those_of_the_frame_are_refused(
    controller: Controller, way: dict[str, str]
) -> None:
    body = """
until_one_sided(engine)
connector = engine.tiers[0].tier.connector
agent, read = connector._agent, type(connector._agent).read
def damaged(peer, pieces, until):
    read(agent, peer, pieces, until)
    pieces[0][1][100] ^= 1
    return [_native.checksum(target) for _, target in pieces]
def swapped(peer, pieces, until):
    addresses = [address for address, _ in pieces]
    wrong = [*addresses[1:], addresses[0]]
    return read(agent, peer, [(at, target) for at, (_, target) in zip(wrong, pieces)], until)
from kvferry import _native
from kvferry.chunks.prompt import read_prompt
keys = read_prompt(prompt(tokens, 1), identity.layout.chunk_size, b"").keys(0, chunks)
for wrong in (damaged, swapped):
    agent.read = wrong
    ticket = connector.submit_get(keys, blanks(chunks, identity.layout), timeout_s=30.0)
    print(json.dumps(list(ticket.wait(30).statuses)), flush=True)
"""
    with (
        owner_of(controller, "plain", 4, **way),
        reader_of(controller, "plain", 4, body, **way) as reader,
    ):
        assert json.loads(says(reader)) == [3, 0, 0, 0]  # the first is CORRUPT
        assert json.loads(says(reader)) == [3, 3, 3, 3]


def test_a_forked_child_reads_over_a_socket_and_its_parent_goes_on(
    controller: Controller, way: dict[str, str]
) -> None:
    body = """
until_one_sided(engine)
connector = engine.tiers[0].tier.connector
from kvferry.chunks.prompt import read_prompt
keys = read_prompt(prompt(tokens, 1), identity.layout.chunk_size, b"").keys(0, chunks)
def read():
    "Of which statuses, and how many came one-sided."
    before, buffers = figures(engine)["reads"], blanks(chunks, identity.layout)
    result = connector.submit_get(keys, buffers, timeout_s=30.0).wait(30)
    for buffer, chunk in zip(buffers, expected(prompt(tokens, 1), identity)):
        assert bytes(buffer) == chunk.tobytes()
    return list(result.statuses), figures(engine)["reads"] - before
said, say = os.pipe()
if os.fork() == 0:
    os.write(say, json.dumps(read()).encode())
    connector.close()
    os._exit(0)
print(os.read(said, 1000).decode(), flush=True)
print(json.dumps(read()), flush=True)
"""
    with (
        owner_of(controller, "plain", 4, **way),
        reader_of(controller, "plain", 4, body, **way) as reader,
    ):
        assert json.loads(says(reader)) == [[0] * 4, 0]
        assert json.loads(says(reader)) == [[0] * 4, 4]


@needs_nixl
def test_an_owner_without_nixl_is_read_over_tcp(controller: Controller) -> None:
    body = """
for seed in (0, 1, 2):
    engine.clear(stores=False)
    check(engine, prompt(tokens, seed), tokens)
    time.sleep(0.2)
print(json.dumps(figures(engine)), flush=True)
"""
    with (
        owner_of(controller, "small", 5, "without", **NIXL),
        reader_of(controller, "small", 5, body, **NIXL) as reader,
    ):
        figures = json.loads(says(reader))
        assert (figures["reads"], figures["fallbacks"]) == (0, 1)
        reader.process.kill()
        _, log = reader.process.communicate()
    assert log.decode().count("is read over a socket, not over NIXL: ") == 1


def test_an_instance_without_nixl_says_so_once(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    caplog.set_level(logging.INFO, "kvferry")
    with instances(controller) as opened:
        one, other = (opened(name, transfer_channel="nixl") for name in ("one", "other"))
        tokens = prompt(PROMPT)
        one.store(tokens, expected(tokens))
        meets(other, "one")
        finds(other, tokens)
        assert check(other, tokens) == PROMPT
    said = [m for m in caplog.messages if m.startswith("transfer_channel nixl")]
    assert len(said) == 2  # each instance once
    assert said[0].endswith(
        "chunks go over the node in its place: the package nixl is not installed"
    )


@needs_nixl
def test_the_benchmark_measures_both_ways() -> None:
    small = ["--size-mib", "1", "--count", "8", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.over_nixl", *small],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(tcp|nixl|nixl / tcp) +([\d.]+)", done.stdout, re.M)
    assert [way for way, _ in found] == ["tcp", "nixl", "nixl / tcp"]
    assert all(float(rate) > 0 for _, rate in found)
