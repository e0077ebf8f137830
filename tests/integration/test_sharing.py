"""Instances read each other's memory: a real controller, real nodes, every byte compared."""

from __future__ import annotations

import random
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvferry import Identity, KVLayout, TieredCache
from kvferry.base.errors import ConfigError, UnavailableError, UsageError
from kvferry.base.local_secret import folder
from kvferry.base.socket_folder import node_path, node_socket
from kvferry.chunks.prompt import read_prompt
from kvferry.config import ClientConfig
from kvferry.connectors.peer import PeerConnector
from kvferry.server import Client
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.membership import Command
from kvferry.sharing.peers.peer_tier import open_peer
from support.cache_server import CacheServerProcess
from support.engines import (
    CHUNK,
    IDENTITY,
    LAYOUT,
    check,
    expected,
    open_engine,
    pages_gb,
    prompt,
    space,
)
from support.servers import free_port, start_server, wait_for
from support.sharing import (
    PROMPT,
    Open,
    finds,
    from_peers,
    instances,
    meets,
    owner,
    peers_of,
    running_controller,
    sharing,
    sharing_of,
    told,
)
from support.stamps import within


@pytest.fixture
def controller() -> Iterator[Controller]:
    with running_controller() as controller:
        yield controller


@pytest.fixture
def instance(controller: Controller) -> Iterator[Open]:
    with instances(controller) as opened:
        yield opened


@pytest.mark.parametrize("presence", [False, pytest.param(True, marks=pytest.mark.presence)])
def test_an_instance_reads_what_another_one_has_in_memory(
    instance: Open, presence: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kvferry")
    one, other = instance("one"), instance("other")
    tokens = prompt(PROMPT + 5)
    one.store(tokens, expected(tokens))
    meets(other, "one")
    finds(other, tokens)
    assert check(other, tokens) == PROMPT
    assert from_peers(other) == PROMPT
    assert f"Retrieved {PROMPT} out of {PROMPT + 5} tokens (peer one {PROMPT})" in caplog.text
    met = "Established connection to peer_init_url localhost:"
    wait_for("the contact is told", lambda: met in caplog.text)
    assert ". The peer_lookup_url: localhost:" in caplog.text


def test_both_ports_of_a_node_serve() -> None:
    with running_controller(secret="right") as controller, instances(controller) as instance:
        one = instance("one", p2p_lookup_ports=0, p2p_secret="right")
        tokens = prompt(PROMPT)
        one.store(tokens, expected(tokens))
        wait_for("it registers", lambda: controller.members.living())
        [member] = controller.members.living()
        addresses = {member.facts.address, member.facts.lookup_address}
        assert len(addresses) == 2
        keys = read_prompt(tokens, CHUNK, b"").keys(0, 40)
        for address in addresses:
            host, _, port = address.rpartition(":")
            config = ClientConfig(host=host, port=int(port), username="peer", password="right")
            with PeerConnector(space(), config) as peer:
                assert peer.batch_exists(keys).prefix_len == 40


def test_the_longest_prefix_of_several_owners_is_put_together(instance: Open) -> None:
    tokens = prompt(PROMPT)
    chunks = expected(tokens)
    one, two, reader = instance("one"), instance("two"), instance("reader")
    one.store(tokens[: 10 * CHUNK], chunks[:10])
    two.store(tokens, chunks[5:], first_chunk=5)
    meets(reader, "one", "two")
    wait_for("all of it is found", lambda: reader.contains(tokens) == PROMPT)
    assert check(reader, tokens) == PROMPT
    assert from_peers(reader) == PROMPT


def test_what_memory_holds_is_not_asked_for(instance: Open) -> None:
    one, other = instance("one"), instance("other")
    tokens = prompt(PROMPT)
    for engine in (one, other):
        engine.store(tokens, expected(tokens))
    meets(other, "one")
    assert check(other, tokens) == PROMPT
    assert from_peers(other) == 0


def test_another_identity_is_no_peer(instance: Open) -> None:
    theirs = Identity(model="another", layout=LAYOUT)
    one, other, third = instance("one", identity=theirs), instance("other"), instance("third")
    tokens = prompt(PROMPT)
    one.store(tokens, expected(tokens, theirs))
    meets(other, "third")
    meets(third, "other")
    assert other.contains(tokens) == 0


def test_a_reader_writes_deletes_and_clears_nothing_at_its_peer(instance: Open) -> None:
    one, other = instance("one"), instance("other")
    tokens, mine = prompt(PROMPT), prompt(PROMPT, 7)
    one.store(tokens, expected(tokens))
    meets(other, "one")
    meets(one, "other")
    stored = other.store(mine, expected(mine))
    assert (stored.queued, stored.dropped) == ({}, {})  # it is not even tried
    assert other.flush()
    before = one.memory.cache.stats()["resident"]
    assert before == 40
    other.clear(weights_version="next")
    assert [len(tier.generations._deletions) for tier in other.tiers] == [0]
    time.sleep(0.3)  # a deletion in the background would have begun
    assert one.memory.cache.stats()["resident"] == 40
    assert check(other, tokens) == 0  # another generation
    assert check(one, tokens) == PROMPT
    peer = next(tier.tier.connector for tier in other.tiers)
    with pytest.raises(UsageError, match="never written"):
        peer.batch_set(["x"], [bytes(LAYOUT.chunk_bytes)])
    with pytest.raises(UsageError, match="never written"):
        peer.batch_delete(["x"])


def test_generations_that_have_one_name_find_each_other(instance: Open) -> None:
    one, other = instance("one"), instance("other")
    meets(other, "one")
    for engine in (one, other):
        engine.clear(weights_version="v2")
    tokens = prompt(PROMPT)
    one.store(tokens, expected(tokens, IDENTITY))
    finds(other, tokens)
    assert check(other, tokens) == PROMPT


@pytest.mark.parametrize("presence", [False, pytest.param(True, marks=pytest.mark.presence)])
def test_what_its_owner_evicts_is_a_shorter_prefix(instance: Open, presence: bool) -> None:
    one, other = instance("one"), instance("other")
    tokens = prompt(PROMPT)
    one.store(tokens, expected(tokens))
    meets(other, "one")
    finds(other, tokens)
    keys = read_prompt(tokens, CHUNK, b"").hashes
    one.memory.cache.remove(keys[16 * 12 : 16 * 13])
    assert check(other, tokens) == 12 * CHUNK
    one.memory.cache.clear()
    other.memory.cache.clear()
    assert check(other, tokens) == 0


def test_an_owner_under_pressure_lends_whole_chunks_or_none(instance: Open) -> None:
    one = instance("one", max_local_cpu_size=pages_gb(120))
    readers = [instance(f"reader{n}", max_local_cpu_size=pages_gb(120)) for n in range(2)]
    for reader in readers:
        meets(reader, *sorted({"one", "reader0", "reader1"} - {readers_name(reader)}))
    stop, problems, hits = threading.Event(), [], [0]

    def read(reader: TieredCache, seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not stop.is_set():
                hits[0] += check(reader, prompt(PROMPT, rng.randrange(8))) > 0
                reader.clear(stores=False)
        except BaseException as error:
            problems.append(error)

    threads = [
        threading.Thread(target=read, args=(reader, n)) for n in range(2) for reader in readers
    ]
    for thread in threads:
        thread.start()
    rng = random.Random(1)
    until = time.monotonic() + 3
    while (now := time.monotonic()) < until or (not hits[0] and now < until + 60):
        if problems:
            break
        tokens = prompt(PROMPT, rng.randrange(8))
        one.store(tokens, expected(tokens))
        check(one, tokens)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not problems, problems
    assert hits[0] > 0
    wait_for("pages come back", lambda: one.memory.cache.stats()["leases"] == 0)


def readers_name(engine: TieredCache) -> str:
    return str(engine.config.lmcache_instance_id)


def test_an_owner_that_is_killed_is_a_miss_and_is_read_again_when_it_is_back(
    controller: Controller, instance: Open
) -> None:
    reader = instance("reader", retrieve_timeout_s=2.0)
    rng = random.Random(3)
    for _ in range(3):
        with owner(controller, "owner") as program:
            meets(reader, "owner")
            tokens = prompt(PROMPT, 1)
            reader.clear(stores=False)
            finds(reader, tokens)
            killer = threading.Timer(rng.uniform(0, 0.05), program.process.kill)
            killer.start()
            for seed in range(40):  # bytes are compared in there
                with within(10):
                    check(reader, prompt(PROMPT, seed % 4))
                reader.clear(stores=False)
            killer.join()
        wait_for("it is gone", lambda: not peers_of(reader))
        assert check(reader, prompt(PROMPT, 2)) == 0


def test_an_owner_that_hangs_keeps_nobody_waiting_beyond_the_deadline(
    controller: Controller, instance: Open
) -> None:
    reader = instance("reader", retrieve_timeout_s=1.0)
    with owner(controller, "owner") as program:
        meets(reader, "owner")
        tokens = prompt(PROMPT, 1)
        finds(reader, tokens)
        program.process.send_signal(signal.SIGSTOP)
        for seed in range(3):
            with within(3):
                assert check(reader, prompt(PROMPT, seed)) == 0
        program.process.send_signal(signal.SIGCONT)

        def works() -> bool:
            reader.clear(stores=False)
            return check(reader, tokens) == PROMPT

        wait_for("it is read again", works)


def test_peers_that_know_each_other_go_on_without_a_controller() -> None:
    tokens, later = prompt(PROMPT), prompt(PROMPT, 5)
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        controller = first.enter_context(running_controller())
        one, other = (
            stack.enter_context(open_engine(**sharing(controller, name)))
            for name in ("one", "other")
        )
        meets(other, "one")
        ports = controller.ports
        first.close()
        part = sharing_of(other)
        part._meet(())  # as a controller says that has begun anew, before the others are back
        time.sleep(1.2)  # it is looked at twice a second
        assert peers_of(other) == ["peer one"]
        one.store(tokens, expected(tokens))
        finds(other, tokens)
        assert check(other, tokens) == PROMPT
        again = stack.enter_context(running_controller(monitor_ports=ports))
        wait_for("they register", lambda: len(again.members.living()) == 2)
        assert peers_of(other) == ["peer one"]
        one.store(later, expected(later))
        finds(other, later)
        assert check(other, later) == PROMPT
        held = read_prompt(later, CHUNK, b"").hashes
        wait_for("the directory is whole", lambda: len(again.members.lookup(held)) == 2)


def test_who_does_not_know_the_secret_reads_nothing(tmp_path: Path) -> None:
    with running_controller(secret="right") as controller, ExitStack() as stack:

        def opened(name: str, secret: str) -> TieredCache:
            settings = sharing(controller, name, p2p_secret=secret)
            return stack.enter_context(open_engine(**settings))

        one, other, stranger = (
            opened("one", "right"),
            opened("other", "right"),
            opened("stranger", "wrong"),
        )
        tokens = prompt(PROMPT)
        one.store(tokens, expected(tokens))
        meets(other, "one")
        finds(other, tokens)
        assert check(other, tokens) == PROMPT
        [member] = [m for m in controller.members.living() if m.instance == "one"]
        host, _, port = member.facts.address.rpartition(":")
        config = ClientConfig(host=host, port=int(port), username="peer", password="wrong")
        stranger.tiers.append(open_peer(stranger, "one", config))
        assert check(stranger, tokens) == 0
        assert sorted(m.instance for m in controller.members.living()) == ["one", "other"]


@pytest.mark.parametrize("secret", ["", "right"])
def test_peers_on_one_host_are_read_over_a_unix_socket(secret: str) -> None:
    word = {"p2p_secret": secret} if secret else {}
    told = {"secret": secret} if secret else {}
    with running_controller(**told) as controller, instances(controller) as opened:
        other = opened("other", **word)
        with open_engine(**sharing(controller, "one", **word)) as one:
            meets(other, "one")
            tier = next(tier.tier for tier in other.tiers if tier.tier.name == "peer one")

            def moved() -> bool:
                stats = tier.connector.stats()
                from_tcp = (
                    stats["client_connections_unix"] if secret else stats["client_connections_up"]
                )
                return 0 < from_tcp == stats["client_connections_up"]

            wait_for("all connections have moved", moved)
            tokens = prompt(PROMPT)
            one.store(tokens, expected(tokens))
            finds(other, tokens)
            assert check(other, tokens) == PROMPT
            assert from_peers(other) == PROMPT
            assert moved()
            [left] = [path for path in folder().glob("*.node") if _is_of(one, path)]
            port = int(part.ports[0]) if (part := sharing_of(one).node) else 0
            assert left == node_path("localhost", port)
        assert not left.exists()


def _is_of(engine: TieredCache, path: Path) -> bool:
    node = sharing_of(engine).node
    assert node is not None
    return f"unix:{path}" in node.endpoints()


def test_a_socket_of_a_node_that_was_killed_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    paths = [node_path("localhost", port) for port in (8200, 8201)]
    with socket.socket(socket.AF_UNIX) as killed, socket.socket(socket.AF_UNIX) as lives:
        killed.bind(str(paths[0]))
        killed.close()
        lives.bind(str(paths[1]))
        lives.listen()
        assert Path(node_socket("localhost")).name == node_path("127.0.0.1", "*").name
        assert [path.name for path in (tmp_path / "kvferry").iterdir()] == [paths[1].name]
    (tmp_path / "kvferry").chmod(0o755)
    assert node_socket("localhost") == ""


def test_peers_meet_in_a_folder_whose_path_is_too_long_for_a_socket(
    controller: Controller, instance: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    one, tokens = instance("one"), prompt(PROMPT)
    one.store(tokens, expected(tokens))
    with owner(controller, "other", prompts=2):
        meets(one, "other")
        finds(one, prompt(PROMPT, 1))
        assert check(one, prompt(PROMPT, 1)) == PROMPT
    assert [path.name for path in folder().glob("*.node")]


def test_a_peer_that_lies_is_refused(instance: Open) -> None:
    """Frames say whose bytes they are: those of other tokens cannot pass for these."""
    one = instance("one")
    tokens, others = prompt(PROMPT), prompt(PROMPT, 1)
    with start_server("valkey") as server:
        liar = open_engine(stores=[{"type": "redis", "url": server.url}])
        with liar:
            for each in (tokens, others):
                liar.store(each, expected(each))
            assert liar.flush()
        prefix = space().prefix
        for true, false in zip(
            read_prompt(tokens, CHUNK, b"").keys(0, 40),
            read_prompt(others, CHUNK, b"").keys(0, 40),
            strict=True,
        ):
            server.cli("RENAME", prefix + false, prefix + true)
        config = ClientConfig(host=server.host, port=server.port)
        one.tiers.append(open_peer(one, "liar", config))
        assert check(one, tokens) == 0
        assert from_peers(one) == 0
        asked = server.cli("INFO", "commandstats").decode()
        assert "cmdstat_get:" in asked
        assert not re.search("cmdstat_(?:del|unlink):", asked), asked  # not even tried


def test_a_port_that_is_taken_is_said(controller: Controller, instance: Open) -> None:
    one = instance("one")
    wait_for("it registers", lambda: controller.members.living())
    [member] = controller.members.living()
    port = int(member.facts.address.rpartition(":")[2])
    with pytest.raises(UnavailableError, match=str(port)):
        instance("other", p2p_init_ports=port)
    assert one.available


def test_a_second_engine_of_one_identity_is_refused_and_the_first_goes_on(
    controller: Controller, instance: Open
) -> None:
    one, tokens = instance("one"), prompt(PROMPT)
    with pytest.raises(UsageError, match="lent already"):
        instance("one")
    one.store(tokens, expected(tokens))
    other = instance("other")
    meets(other, "one")
    finds(other, tokens)
    assert check(other, tokens) == PROMPT


def test_a_controller_steers_what_memory_holds(controller: Controller, instance: Open) -> None:
    one, other = instance("one"), instance("other")
    tokens = prompt(PROMPT)
    prompt_ = read_prompt(tokens, CHUNK, b"")
    one.store(tokens, expected(tokens))
    meets(other, "one")
    finds(other, tokens)

    def asked(engine: TieredCache, action: str, hashes: bytes = b"") -> int:
        part = sharing_of(engine)
        result = part.obey(Command("job", action, IDENTITY.digest, hashes))
        assert result.ok, result
        return result.chunks

    assert asked(other, "prefetch", prompt_.hashes) == 40
    assert other.memory.ready(prompt_)[0] == 40
    assert asked(one, "pin", prompt_.first(10)) == 10
    assert one.memory.cache.stats()["pinned"] == 10
    assert asked(one, "unpin", prompt_.first(10)) == 10
    assert asked(one, "delete", prompt_.hashes[16 * 39 :]) == 1
    assert asked(one, "clear") == 39
    assert asked(one, "clear") == 0


def test_a_controller_is_told_what_comes_and_goes(controller: Controller, instance: Open) -> None:
    one = instance("one", max_local_cpu_size=pages_gb(64))
    for seed in range(4):
        tokens = prompt(PROMPT, seed)
        one.store(tokens, expected(tokens))
    resident = one.memory.cache.stats()["resident"]
    assert resident == 64

    wait_for("it is told", lambda: told(controller) == resident)
    one.memory.cache.clear()
    wait_for("it is told", lambda: told(controller) == 0)


def test_engines_of_one_process_share_a_node(controller: Controller, instance: Open) -> None:
    theirs = Identity(model="another", layout=LAYOUT)
    one, also = instance("one"), instance("one", identity=theirs)
    tokens = prompt(PROMPT)
    one.store(tokens, expected(tokens))
    also.store(tokens, expected(tokens, theirs))

    wait_for("both are told", lambda: told(controller) == 80)
    other, third = instance("other"), instance("third", identity=theirs)
    meets(other, "one")
    meets(third, "one")
    for engine in (other, third):
        finds(engine, tokens)
        assert check(engine, tokens) == PROMPT
    also.close()
    wait_for("it is gone", lambda: not peers_of(third))
    other.clear(stores=False)
    assert check(other, tokens) == PROMPT


HALF = replace(LAYOUT, tp_size=2, tp_rank=1)


def test_each_rank_has_a_port_of_its_own(controller: Controller, instance: Open) -> None:
    half = Identity(model="test", layout=HALF)
    with pytest.raises(ConfigError, match="p2p_init_ports has 1 ports, and there is a rank 1"):
        instance("one", identity=half)
    one, other = (instance(name, identity=half, p2p_init_ports=[1, 0]) for name in ("one", "other"))
    tokens = prompt(PROMPT)
    one.store(tokens, expected(tokens, half))
    meets(other, "one/1")
    finds(other, tokens)
    assert check(other, tokens) == PROMPT


@pytest.mark.parametrize("layout", [LAYOUT, HALF], ids=["alone", "second of two ranks"])
def test_cache_servers_read_each_others_memory(
    controller: Controller, tmp_path: Path, layout: KVLayout
) -> None:
    """Both from a file, as `kvferry server --config` has it; each has the chunks of all ranks."""
    identity = Identity(model="test", layout=layout)
    tokens = prompt(PROMPT)
    with ExitStack() as stack:
        clients = []
        for name in ("one", "other"):
            directory = tmp_path / name
            directory.mkdir()
            settings = sharing(controller, name, chunk_size=CHUNK)
            file = directory / "example.yaml"
            file.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
            server = CacheServerProcess(directory, "--config", str(file)).start()
            stack.callback(server.stop)
            client = stack.enter_context(Client(identity, server.endpoint, timeout_s=20.0))
            assert client.wait(20)
            clients.append(client)
        one, other = clients
        one.store(tokens, expected(tokens, identity))
        other.contains(tokens)  # its identity is known from now on
        finds(other, tokens)
        with other.retrieve(tokens) as hit:
            assert hit.tokens == PROMPT
            for page, chunk in zip(hit.pages, expected(tokens, identity), strict=True):
                assert bytes(page) == chunk.tobytes()
            assert hit.tiers["peer one"] == PROMPT


def test_instances_that_start_before_their_controller_find_each_other() -> None:
    ports = {"pull": free_port(), "reply": free_port(), "heartbeat": free_port()}
    with ExitStack() as stack:
        urls: dict[str, Any] = {
            f"controller_{name}_url": f"localhost:{ports[name]}" for name in ("pull", "reply")
        }
        with within(10):  # nobody waits for a controller
            one, other = (
                stack.enter_context(
                    open_engine(
                        enable_p2p=True,
                        p2p_host="localhost",
                        p2p_init_ports=0,
                        enable_controller=True,
                        lmcache_instance_id=name,
                        **urls,
                    )
                )
                for name in ("one", "other")
            )
        tokens = prompt(PROMPT)
        one.store(tokens, expected(tokens))
        assert check(other, tokens) == 0
        stack.enter_context(running_controller(monitor_ports=ports))
        meets(other, "one")
        finds(other, tokens)
        assert check(other, tokens) == PROMPT


def test_a_reader_that_vanishes_leaves_nothing_held(controller: Controller, instance: Open) -> None:
    identity = Identity(model="large", layout=replace(LAYOUT, layers=4096))  # 2 MiB a chunk
    one = instance("one", identity=identity, max_local_cpu_size=pages_gb(16, identity.layout))
    tokens = prompt(16 * CHUNK)
    one.store(tokens, expected(tokens, identity))
    wait_for("it registers", lambda: controller.members.living())
    [member] = controller.members.living()
    host, _, port = member.facts.address.rpartition(":")
    path = str(node_path(host, int(port)))
    prefix = space(identity).prefix
    wanted = [(prefix + key).encode() for key in read_prompt(tokens, CHUNK, b"").keys(0, 16)]
    gets = b"".join(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key) for key in wanted)
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as reader:
            reader.settimeout(10)
            reader.connect(path)
            reader.sendall(gets)
            assert reader.recv(100)  # it is being sent, and nobody reads on
            assert one.memory.cache.stats()["leases"] > 0
        wait_for("it is let go", lambda: one.memory.cache.stats()["leases"] == 0)
    assert one.memory.cache.clear() == 16
    one.store(tokens, expected(tokens, identity))  # all pages are there to be used
    assert one.memory.cache.stats()["resident"] == 16
