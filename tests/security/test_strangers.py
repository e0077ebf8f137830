"""Loopback is not one user: who cannot read the secret of our processes is neither answered nor
believed by instances, their nodes, their controller and the ranks of an engine.

A stranger is a process with another runtime folder, as in a container beside us, and where tests
run as root one of another user.
"""

from __future__ import annotations

import hmac
import http.client
import os
import re
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from kvferry import TieredCache
from kvferry.base.errors import ConfigError, UnavailableError, UsageError
from kvferry.base.local_secret import folder, local_secret
from kvferry.chunks.prompt import read_prompt
from kvferry.config.node import NodeSettings
from kvferry.config.tuning import NodeTuning
from kvferry.integrations.vllm.connector import ranks as ranks_module
from kvferry.integrations.vllm.connector.ranks import RankAnswers, RankFinder, address
from kvferry.rpc.local import local_url
from kvferry.sharing.controller import ports
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.ports import _UNMET_MAX
from kvferry.sharing.membership import Peer, controller_link
from kvferry.sharing.membership.controller_link import ControllerLink, InstanceProcess, RefusedError
from kvferry.sharing.membership.messages import Malformed
from kvferry.sharing.node import Node
from support.engines import CHUNK, IDENTITY, check, expected, open_engine, prompt
from support.holdings import FakeCache, controller, hashes, reporting
from support.programs import TESTS, Program
from support.proxy import FaultProxy
from support.servers import start_server
from support.sharing import (
    PROMPT,
    Open,
    finds,
    from_peers,
    instances,
    meets,
    peers_of,
    running_controller,
    sharing_of,
)
from support.stamps import until

NOBODY = 65534
GUIDE = TESTS.parent / "docs" / "guides" / "peers.md"
LIMIT_S = 30.0

# The beginning of a stranger's program; what follows runs as a user who has a folder of his own.
_STRANGER = """
import os, sys
import support.holdings, kvferry.sharing.controller.controller
import kvferry.sharing.membership.controller_link
import kvferry.integrations.vllm.connector.ranks, encodings.idna
os.environ["XDG_RUNTIME_DIR"] = sys.argv[1]
if sys.argv[2] != "0":
    os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
"""

Stranger = Callable[..., Program]


@pytest.fixture(params=["container", "user"])
def stranger(request: pytest.FixtureRequest) -> Iterator[Stranger]:
    """Starts a program of somebody else, which has said its first line: "ready"."""
    user = NOBODY if request.param == "user" else 0
    if user and os.geteuid():
        pytest.skip("only root can start a process of another user")
    home = tempfile.mkdtemp()
    if user:
        os.chown(home, user, user)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home)

        def start(code: str, *arguments: object) -> Program:
            program = stack.enter_context(Program(_STRANGER + code, home, user, *arguments))
            assert program.read_line(60) == "ready"
            return program

        yield start


# --- The controller ---


_FORGES = """
from kvferry.errors import KVFerryError
from kvferry.sharing.membership.controller_link import ControllerLink, InstanceProcess
from kvferry.sharing.membership.messages import InstanceRegistered, MemoryUsage, RegisterInstance
from support.holdings import IDENTITY
print("ready", flush=True)
for secret in ("", "guess", "0" * 64):
    try:
        link, _ = ControllerLink.open(sys.argv[3], "reply", InstanceProcess("evil", 0), secret, 10)
        link.ask(RegisterInstance(1.0, "localhost:1", (IDENTITY,), MemoryUsage()),
                 InstanceRegistered)
        print("registered", flush=True)
    except (KVFerryError, OSError) as error:
        print(error, flush=True)
"""


def test_a_stranger_is_not_registered_and_hears_what_to_set(stranger: Stranger) -> None:
    with controller() as ctl:
        program = stranger(_FORGES, f"127.0.0.1:{ctl.ports['reply']}")
        for _ in range(3):
            said = program.read_line(60)
            assert "the secret is another one" in said
            assert "p2p_secret_file" in said
        assert ctl.members.all() == []
        assert ctl.counts["refused"] == 3


def test_an_instance_of_an_older_version_is_refused_with_the_same_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a secret it proves that it knows the empty one."""

    def old(secret: str, side: str, nonces: bytes, hello: Any, at: Any) -> bytes:
        who = f"{side}\0{hello.port}\0{hello.rank}\0{hello.instance}".encode()
        text = b"kvferry membership v1\0" + nonces + hello.incarnation + who
        return hmac.digest(secret.encode(), text, "sha256")

    with controller() as ctl:
        monkeypatch.setattr(
            controller_link, "proof", old
        )  # ours alone: the controller has its own name
        where = f"127.0.0.1:{ctl.ports['reply']}"
        with pytest.raises(RefusedError, match="p2p_secret_file") as caught:
            ControllerLink.open(where, "reply", InstanceProcess("old", 0), "", 10)
        assert caught.value.code == "secret"


_SQUATS = """
from support.holdings import controller
with controller() as ctl:
    print("ready", flush=True)
    print(*ctl.ports.values(), flush=True)
    __import__("time").sleep(600)
"""


def test_a_stranger_at_the_ports_of_a_controller_is_not_believed(stranger: Stranger) -> None:
    program = stranger(_SQUATS)
    there = dict(zip(("pull", "reply", "heartbeat"), program.read_line(60).split(), strict=True))
    with reporting(FakeCache(), there) as reporter:
        until(lambda: reporter.status()["failures"] > 0, LIMIT_S)
        assert "p2p_secret_file" in reporter.status()["problem"]


def test_who_answers_in_a_controllers_place_without_the_secret_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It welcomes everybody; what it was told is of no use to it."""
    told = bytearray()
    true = controller_link.proof

    def any_proof(secret: str, side: str, nonces: bytes, hello: Any, at: Any) -> bytes:
        told.extend(hello.proof)
        return bytes(hello.proof) if side == "instance" else true("guess", side, nonces, hello, at)

    monkeypatch.setattr(ports, "proof", any_proof)
    with controller() as ctl, pytest.raises(Malformed, match="p2p_secret_file"):
        ControllerLink.open(
            f"127.0.0.1:{ctl.ports['reply']}", "reply", InstanceProcess("a", 0), "", 10
        )
    assert told
    assert local_secret().encode() not in told
    assert bytes.fromhex(local_secret()) not in told


def test_nobody_stands_between_an_instance_and_its_controller() -> None:
    """Who takes a port that instances were told, and passes all on to the controller's own."""
    with controller() as ctl, FaultProxy("127.0.0.1", ctl.ports["reply"], opaque=True) as between:
        with pytest.raises(RefusedError, match="the secret is another one"):
            ControllerLink.open(
                f"127.0.0.1:{between.port}", "reply", InstanceProcess("a", 0), "", 10
            )
        assert ctl.members.all() == []


def test_strangers_who_connect_and_say_nothing_keep_nobody_out() -> None:
    cache = FakeCache()
    cache.add(hashes(3))
    with ExitStack() as stack:
        ctl = stack.enter_context(controller(connections_max=_UNMET_MAX + 8))
        port = ctl.ports["reply"]
        for _ in range(2 * _UNMET_MAX):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        stack.enter_context(reporting(cache, ctl))
        until(lambda: len(ctl.members.lookup(hashes(3))) == 1, LIMIT_S)
        assert ctl.counts["connections"] <= _UNMET_MAX + 3


# --- The nodes ---


@pytest.fixture
def steered() -> Iterator[Controller]:
    with running_controller() as one:
        yield one


@pytest.fixture
def instance(steered: Controller) -> Iterator[Open]:
    with instances(steered) as opened:
        yield opened


def _port_of(engine: TieredCache) -> int:
    node = sharing_of(engine).node
    assert node is not None
    return node.ports[0]


def test_who_takes_the_port_of_a_node_lends_nothing_and_learns_nothing(instance: Open) -> None:
    """It has sound frames of wrong KV for all of the prompt; a peer of ours was there before."""
    reader, tokens, others = instance("reader"), prompt(PROMPT), prompt(PROMPT, 1)
    with start_server("valkey") as server:
        with open_engine(stores=[{"type": "redis", "url": server.url}]) as liar:
            liar.store(tokens, expected(others))
            assert liar.flush()
        before = server.cli("INFO", "clients", "stats")
        peer = Peer("one", 0, f"localhost:{server.port}", (IDENTITY.digest,))
        sharing_of(reader)._meet([peer])
        assert [tier.tier.name for tier in reader.tiers] == ["peer one"]
        for _ in range(3):
            assert check(reader, tokens) == 0
        assert peers_of(reader) == []
        came = re.compile(rb"total_connections_received:(\d+)")
        found, after = came.search(before), came.search(server.cli("INFO", "stats"))
        assert found is not None
        assert after is not None
        assert int(after[1]) == int(found[1]) + 1  # the one that asks


def test_who_takes_the_port_that_a_request_names_lends_nothing() -> None:
    tokens = prompt(PROMPT)
    with start_server("valkey") as server:
        with open_engine(stores=[{"type": "redis", "url": server.url}]) as liar:
            liar.store(tokens, expected(prompt(PROMPT, 1)))
            assert liar.flush()
        with open_engine(remote_kv_sources=("127.0.0.0/8",)) as engine:
            asked = replace(read_prompt(tokens, CHUNK, b""), source=("127.0.0.1", server.port))
            with engine.retrieve(asked, timeout_s=2) as hit:
                assert hit.tokens == 0


_READS = """
import socket
print("ready", flush=True)
for greeting in ("", "AUTH guess", "AUTH peer guess", "HELLO 3 AUTH peer guess"):
    with socket.create_connection(("127.0.0.1", int(sys.argv[3])), 60) as line:
        for command in (greeting, "GET " + sys.argv[4], "LEASE 1000 " + sys.argv[4], "SCAN 0"):
            line.sendall(command.encode() + b"\\r\\n")
        line.shutdown(socket.SHUT_WR)
        answers = line.makefile("rb").read().split(b"\\r\\n")
        print(sum(b"p2p_secret_file" in one for one in answers), flush=True)
        print(sum(one.startswith((b"$", b"*", b"%")) for one in answers), flush=True)
try:
    print(os.listdir(sys.argv[5]), flush=True)
except PermissionError:
    print("no entry", flush=True)
"""


def test_a_stranger_reads_nothing_from_a_node(
    instance: Open, stranger: Stranger, request: pytest.FixtureRequest
) -> None:
    one, tokens = instance("one"), prompt(PROMPT)
    one.store(tokens, expected(tokens))
    key = read_prompt(tokens, CHUNK, b"").keys(0, 1)[0]
    program = stranger(_READS, _port_of(one), f"kvf:{key}", folder())
    for greeted in (False, True, True, True):
        assert program.read_line(60) == str(3 + greeted)  # refusals
        assert program.read_line(60) == "0"  # values
    if "user" in request.node.name.partition("[")[2]:
        assert program.read_line(60) == "no entry"


def test_a_node_says_in_one_sentence_what_a_stranger_lacks(instance: Open) -> None:
    port = _port_of(instance("one"))
    strangers: list[dict[str, Any]] = [{}, {"username": "peer", "password": "x"}]
    for words in strangers:
        refused = pytest.raises(redis.AuthenticationError, match="p2p_secret_file")
        with redis.Redis(port=port, **words) as client, refused:
            client.dbsize()


def test_the_line_of_the_guide_for_redis_cli_works(
    monkeypatch: pytest.MonkeyPatch, instance: Open
) -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("there is no redis-cli")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    one, tokens = instance("one"), prompt(PROMPT)
    one.store(tokens, expected(tokens))
    [line] = re.findall(r"^redis-cli .* dbsize$", GUIDE.read_text(), re.MULTILINE)
    line = line.replace("8200", str(_port_of(one)))
    found = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert found.stdout == f"{PROMPT // CHUNK}\n", found


def test_peers_of_one_user_meet_without_configuration(instance: Open) -> None:
    one, other, tokens = instance("one"), instance("other"), prompt(PROMPT)
    one.store(tokens, expected(tokens))
    meets(other, "one")
    finds(other, tokens)
    assert check(other, tokens) == PROMPT
    assert from_peers(other) == PROMPT


def test_who_was_there_goes_on_when_the_secret_is_removed(
    steered: Controller, instance: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    one, tokens = instance("one"), prompt(PROMPT)
    one.store(tokens, expected(tokens))
    (folder() / "secret").unlink()
    other = instance("other")
    meets(other, "one")
    finds(other, tokens)
    assert check(other, tokens) == PROMPT
    assert (folder() / "secret").exists()


def test_without_a_secret_that_can_be_used_neither_controller_nor_instance_starts(
    steered: Controller, instance: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (folder() / "secret").write_text("short")
    with pytest.raises(ConfigError, match=r"other users may open it.*p2p_secret_file"):
        Controller(steered.config)
    with pytest.raises(ConfigError, match=r"other users may open it.*p2p_secret_file"):
        instance("one")
    Controller(steered.config.replace(secret="word"))
    instance("one", p2p_secret="word")  # refused by this controller, and it starts


def test_a_controller_whose_secret_cannot_be_used_any_more_says_so_to_who_asks(
    steered: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"127.0.0.1:{steered.ports['reply']}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (folder() / "secret").write_text("short")
    with pytest.raises(UnavailableError, match="p2p_secret_file"):
        ControllerLink.open(where, "reply", InstanceProcess("a", 0), "", 10)
    with pytest.raises(RefusedError, match="p2p_secret_file"):
        ControllerLink.open(where, "reply", InstanceProcess("a", 0), "word", 10)


@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
def test_a_page_in_a_browser_writes_nothing_to_a_node(method: str) -> None:
    with Node(
        NodeSettings(listen=("127.0.0.1:0",), size_gb=0.01, tuning=NodeTuning(prefault=False))
    ) as node:
        port = int(node.endpoints[0].rpartition(":")[2])
        browser = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with suppress(http.client.HTTPException, ConnectionError):
            browser.request(method, "/", body="SET evil 1\r\n" * 100)
            browser.getresponse().read()
        browser.close()
        with redis.Redis(port=port) as client:
            assert client.get("evil") is None


# --- Ranks of an engine ---

_RANK = """
from kvferry.integrations.vllm.connector.ranks import RankAnswers
class Finder:
    shared = bytes(8)
    def find(self, prompt): return 3
    now = find
answers = RankAnswers(sys.argv[3], Finder(), chunk_size=8)
print("ready", flush=True)
__import__("time").sleep(600)
"""
_ASKS = """
from kvferry.chunks.prompt import read_prompt
from kvferry.integrations.vllm.connector.ranks import RankFinder
from kvferry.rpc import local
print("ready", flush=True)
prompt = read_prompt(range(80), 8, b"")
for url in (local.local_url(sys.argv[3]), sys.argv[4]):
    local.local_url = lambda _: url
    print(RankFinder([sys.argv[3]], 5.0).find(prompt), flush=True)
    try:
        print(local.ask_local(sys.argv[3], "explain", prompt.encode(), 5.0), flush=True)
    except OSError:
        print("refused", flush=True)
"""


class _Rank:
    """One that could load three chunks."""

    shared = bytes(8)

    def find(self, prompt: Any) -> int:
        return 3

    now = find

    def renewed(self, ended: bytes, own: bytes) -> None:
        raise AssertionError("a stranger was heard")

    def close(self) -> None:
        pass


@pytest.fixture
def name() -> str:
    return address(uuid.uuid4().hex, 0)


def test_a_stranger_is_not_answered_by_a_rank(
    name: str, stranger: Stranger, request: pytest.FixtureRequest
) -> None:
    answers = RankAnswers(name, _Rank(), lambda prompt: "all that is known", chunk_size=8)
    try:
        program = stranger(_ASKS, name, local_url(name))
        assert [program.read_line(60), program.read_line(60)] == ["0", "refused"]
        if "user" in request.node.name.partition("[")[2]:  # who knows where we listen, too
            assert [program.read_line(60), program.read_line(60)] == ["0", "refused"]
    finally:
        answers.close()


def test_who_takes_the_name_of_a_rank_is_not_believed(
    name: str, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger(_RANK, name)
    monkeypatch.setattr(ranks_module, "_CHECK_S", 0.5)
    finder = RankFinder([name], 5.0)
    try:
        with pytest.raises(UsageError, match="cannot be asked"):
            finder.check()
        assert finder.find(read_prompt(range(80), 8, b"")) == 0
        assert finder.chunk_size() == 0
    finally:
        finder.close()
