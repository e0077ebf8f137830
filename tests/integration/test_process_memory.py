"""Reads from process to process: whoever owns the memory may die, evict, lie or be somebody else,
and what is read is right or comes over a socket."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from kvferry import _native
from kvferry.base.errors import SystemResourceError, UnavailableError
from kvferry.client.pure.connection import Connection
from kvferry.connectors.one_sided.agent import ProcessAgent
from kvferry.server import Client
from kvferry.sharing.controller.controller import Controller
from support.cache_server import CacheServerProcess
from support.dashboard import samples
from support.engines import expected, prompt
from support.one_sided import IDENTITIES, owner_of, reader_of, says
from support.programs import Program
from support.servers import wait_for
from support.sharing import running_controller, sharing

_AGENT = """
import os, sys, time
from kvferry import _native
from kvferry.connectors.one_sided.agent import ProcessAgent
agent = ProcessAgent()
agent.lend(0, 0, None)
print(agent.metadata.hex(), flush=True)
time.sleep(600)
"""
# Reads that the other side may not see, into buffers; `wrong` changes what a lease says.
_READ = """
until_one_sided(engine)
connector = engine.tiers[0].tier.connector
from kvferry.chunks.prompt import read_prompt
keys = read_prompt(prompt(tokens, 1), identity.layout.chunk_size, b"").keys(0, chunks)
def read():
    "Of which statuses; every chunk that is OK is right."
    buffers = blanks(chunks, identity.layout)
    result = connector.submit_get(keys, buffers, timeout_s=30.0).wait(30)
    for index, chunk in enumerate(expected(prompt(tokens, 1), identity)):
        assert result.statuses[index] or bytes(buffers[index]) == chunk.tobytes()
    return list(result.statuses)
"""


@dataclass
class Met:
    """A connection, as far as an agent looks at it."""

    process: int


@pytest.fixture
def controller() -> Iterator[Controller]:
    with running_controller() as controller:
        yield controller


@pytest.fixture
def other() -> Iterator[tuple[int, bytes]]:
    """A process that lends its memory, and what its agent says."""
    with Program(_AGENT) as program:
        yield program.process.pid, bytes.fromhex(program.read_line())


def meets(process: int, metadata: bytes) -> object:
    return ProcessAgent().meet(cast("Connection", Met(process)), metadata)


def test_a_process_is_met_that_has_its_mark(other: tuple[int, bytes]) -> None:
    process, metadata = other
    assert meets(process, metadata) == process


def test_one_that_is_another_or_lies_is_not_met(other: tuple[int, bytes]) -> None:
    process, metadata = other
    another = metadata[:-1] + bytes([metadata[-1] ^ 1])
    nowhere = metadata[:6] + bytes(8) + metadata[14:]
    for pid, said in [
        (os.getpid(), metadata),  # as a PID of another namespace would be
        (process, another),
        (process, nowhere),
        (0, metadata),  # no Unix socket, another user, or a process that is not seen here
        (process, metadata[:-1]),
        (process, metadata + b"x"),
        (process, b"nixl" + metadata[4:]),
        (process, b""),
    ]:
        with pytest.raises((UnavailableError, SystemResourceError)):
            meets(pid, said)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_another_user_reads_nothing(other: tuple[int, bytes]) -> None:
    process, metadata = other
    address = int.from_bytes(metadata[6:14], "little")
    with Program(
        """
import os, sys
from kvferry import _native
from kvferry.errors import SystemResourceError
process, address = map(int, sys.argv[1:])
for user in (0, 65534):
    if user:
        os.setgid(user)
        os.setuid(user)
    try:
        _native.read_process(process, [address], [bytearray(16)])
        print("read")
    except SystemResourceError as error:
        print(error)
""",
        process,
        address,
    ) as program:
        said = program.ends().splitlines()
    assert said[0] == "read"
    assert "Operation not permitted" in said[1]


def test_what_is_read_is_summed_as_it_is_copied() -> None:
    source = bytearray(os.urandom((1 << 20) + 77))
    target = bytearray(len(source))
    address = _address(source)
    half = len(source) // 2
    pieces = [memoryview(target)[:half], memoryview(target)[half:]]
    sums = _native.read_process(os.getpid(), [address, address + half], pieces)
    assert target == source
    assert sums == [_native.checksum(source[:half]), _native.checksum(source[half:])]
    with pytest.raises(SystemResourceError):
        _native.read_process(os.getpid(), [address, 16], pieces)


def _address(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))


def test_an_owner_that_evicts_is_never_a_wrong_byte(controller: Controller) -> None:
    """A check fails on any byte that is not the prompt's; how much is found is luck."""
    body = """
until_one_sided(engine)
end, found = time.monotonic() + 4.0, 0
for seed in itertools.cycle(range(8)):
    if time.monotonic() > end:
        break
    engine.clear(stores=False)
    found += check(engine, prompt(tokens, seed))
print(json.dumps([found, figures(engine)]), flush=True)
"""
    with (
        owner_of(controller, "striped", 4, "evicts"),
        reader_of(controller, "striped", 4, body) as reader,
    ):
        found, figures = json.loads(says(reader))
    assert found > 0
    assert figures["reads"] > 0
    assert figures["fallbacks"] == 0


@pytest.mark.parametrize("name", ["plain", "striped"])
def test_memory_that_is_not_where_a_lease_says_is_read_over_the_socket(
    controller: Controller, name: str
) -> None:
    body = (
        _READ
        + """
lease = type(connector._contact).lease
def lying(self, names, sizes, until):
    said = lease(self, names, sizes, until)
    said.pieces[2] = said.pieces[2]._replace(address=4096)
    return said
type(connector._contact).lease = lying
print(json.dumps([read(), figures(engine)["fallbacks"], read(), figures(engine)]), flush=True)
"""
    )
    with owner_of(controller, name, 4), reader_of(controller, name, 4, body) as reader:
        first, fallbacks, again, figures = json.loads(says(reader))
        reader.process.kill()
        log = reader.process.communicate()[1].decode()
    assert first == again == [0] * 4
    assert fallbacks == figures["fallbacks"] == 1
    assert log.count("is read over a socket, not from its process's memory: ") == 1


def test_pages_are_taken_for_what_is_there_and_for_nothing_else(controller: Controller) -> None:
    body = (
        _READ
        + """
from kvferry.chunks.keys import chunk_hashes
asked = read_prompt(prompt(tokens, 1) + prompt(tokens, 9), identity.layout.chunk_size, b"")
keys = asked.keys(0, 2 * chunks)
engine.clear(stores=False)
before = figures(engine)["reads"]
pages = engine.memory.on_demand(asked.hashes, 0)
statuses = connector.submit_get(keys, pages, timeout_s=30.0).wait(30).statuses
states, _ = pages.states()
pages.commit(bytes(status == 0 for status in statuses))
came = figures(engine)["reads"] - before
print(json.dumps([list(statuses), list(states), came, check(engine, prompt(tokens, 1))]))
unwanted = engine.memory.on_demand(asked.hashes, chunks)
unwanted.keep(0)
engine.clear(stores=False)
other = engine.memory.on_demand(asked.hashes, 0)
other.keep(1)
statuses = connector.submit_get(keys, other, timeout_s=30.0).wait(30).statuses
print(json.dumps([list(statuses), list(other.states()[0])]), flush=True)
other.commit(b"")
"""
    )
    with owner_of(controller, "striped", 3), reader_of(controller, "striped", 3, body) as reader:
        statuses, states, came, found = json.loads(says(reader))
        assert statuses == [0] * 3 + [1] * 3
        assert states == [1] * 3 + [0] * 3
        assert (came, found) == (3, 3 * 64)
        statuses, states = json.loads(says(reader))
        assert statuses == [0, 7, 7, 1, 1, 1]
        assert states == [1, 0, 0, 0, 0, 0]


def test_little_goes_over_the_socket(controller: Controller) -> None:
    body = (
        _READ
        + """
before = figures(engine)["reads"]
blank = blanks(1, identity.layout)
result = connector.submit_get(keys[:1], blank, timeout_s=30.0).wait(30)
print(json.dumps([list(result.statuses), figures(engine)["reads"] - before]), flush=True)
"""
    )
    with owner_of(controller, "plain", 4), reader_of(controller, "plain", 4, body) as reader:
        assert json.loads(says(reader)) == [[0], 0]


def test_small_chunks_meet_nobody(controller: Controller) -> None:
    body = """
for seed in (0, 1, 2):
    engine.clear(stores=False)
    check(engine, prompt(tokens, seed), tokens)
met = engine.tiers[0].tier.connector._meeting
print(json.dumps([met, figures(engine)]), flush=True)
"""
    with owner_of(controller, "small", 5), reader_of(controller, "small", 5, body) as reader:
        met, figures = json.loads(says(reader))
    assert (met, figures["reads"], figures["fallbacks"]) == (False, 0, 0)


def test_nothing_is_left_open_by_a_read(controller: Controller) -> None:
    """Connections may come meanwhile, of which there are few."""
    body = (
        _READ
        + """
def held():
    with open("/proc/self/maps") as maps:
        return len(os.listdir("/proc/self/fd")), sum(1 for _ in maps)
read()
before = held()
for _ in range(100):
    assert read() == [0] * chunks
print(json.dumps([before, held()]), flush=True)
"""
    )
    with owner_of(controller, "plain", 4), reader_of(controller, "plain", 4, body) as reader:
        before, after = json.loads(says(reader))
    assert after[0] - before[0] < 50
    assert after[1] - before[1] < 100


def _has(client: Client, tokens: list[int]) -> bool:
    return client.contains(tokens) == len(tokens)


def test_cache_servers_read_each_others_segments(controller: Controller, tmp_path: Path) -> None:
    identity = IDENTITIES["plain"]
    tokens = 8 * identity.layout.chunk_size
    with ExitStack() as stack:
        clients, servers = [], []
        for name in ("one", "other"):
            directory = tmp_path / name
            directory.mkdir()
            settings = sharing(controller, name, chunk_size=identity.layout.chunk_size)
            file = directory / "example.yaml"
            file.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
            server = CacheServerProcess(directory, "--config", str(file), mib=64).start()
            stack.callback(server.stop)
            client = stack.enter_context(Client(identity, server.endpoint, timeout_s=20.0))
            assert client.wait(20)
            clients.append(client)
            servers.append(server)
        one, other = clients
        for seed in (0, 1):
            one.store(prompt(tokens, seed), expected(prompt(tokens, seed), identity))
            wanted = prompt(tokens, seed)
            wait_for("it is found", partial(_has, other, wanted))
        wait_for("it is met", lambda: "from its process's memory" in servers[1].log)
        for seed in (0, 1):
            with other.retrieve(prompt(tokens, seed)) as hit:
                assert hit.tiers["peer one"] == tokens
                for page, chunk in zip(
                    hit.pages, expected(prompt(tokens, seed), identity), strict=True
                ):
                    assert bytes(page) == chunk.tobytes()
        page = servers[1].http("/metrics")
        shown = {name: value for name, _, value in samples(page)}
        assert shown["kvferry_one_sided_reads_total"] == 16
