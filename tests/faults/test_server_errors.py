"""What a server may answer that is no value: refusals, other types, words between the replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from support.resp import bulk
from support.scripted import (
    ATTRIBUTE,
    HANDSHAKE,
    PUSH,
    Close,
    Command,
    Handler,
    MiniStore,
    Pieces,
    ScriptedServer,
    answer,
    loading,
    max_clients,
    noauth,
    noproto,
    oom,
    readonly,
    resp2_only,
    silent,
    streamed,
    surrounded,
    truncated,
    unknown_type,
    wrongpass,
)
from support.servers import TestServer
from support.stamps import KIB, MIB, check, fetch, poisoned, stamped, store, until, within

Connect = Callable[..., Any]
Start = Callable[..., TestServer]

KINDS = ["valkey", "redis7"]
SIZE = 4 * KIB
VALUE = stamped("k", 1, SIZE)


# Refusals.


@pytest.mark.parametrize(
    ("handler", "code"),
    [(loading(), "LOADING"), (readonly(), "READONLY"), (noauth(), "NOAUTH")],
    ids=["loading", "readonly", "noauth"],
)
def test_server_that_cannot_serve_is_unavailable(
    handler: Handler, code: str, connect: Connect
) -> None:
    with ScriptedServer(handler, MiniStore()) as server:
        client = connect(server)
        with within(2):
            result = store(client, {f"k{index}": SIZE for index in range(20)})
        assert set(result) == {Status.UNAVAILABLE}
        assert code in str(result.error)


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("LOADING what TLS: or NOAUTH mean", errors.UnavailableError),
        ("READONLY not WRONGPASS", errors.UnavailableError),
        ("CLUSTERDOWN the server ended TLS", errors.UnavailableError),
        ("NOAUTH Authentication required.", errors.AuthError),
        ("WRONGPASS invalid username-password pair", errors.AuthError),
        ("NOPERM this user has no permissions", errors.ServerError),
        ("ERR not about NOAUTH", errors.ServerError),
    ],
)
def test_kind_of_an_error_is_not_read_out_of_its_text(
    text: str, raised: type[errors.KVFerryError], connect: Connect
) -> None:
    def refuse(command: Command) -> bytes | None:
        return f"-{text}\r\n".encode() if command.name == b"EXISTS" else None

    with ScriptedServer(refuse, MiniStore()) as server:
        client = connect(server)
        with within(3), pytest.raises(errors.KVFerryError) as caught:
            client.exists("k")
        assert type(caught.value) is raised
        with within(3), pytest.raises(errors.KVFerryError) as caught:
            client.batch_exists(["k", "l"]).raise_for_errors()
        assert type(caught.value) is raised


def test_loading_ends(connect: Connect) -> None:
    refused = answer(b"-LOADING the dataset\r\n", b"EXISTS", times=3)  # whoever else may PING
    with ScriptedServer(refused, MiniStore()) as server:
        client = connect(server)
        seen = [client.batch_exists([f"k{index}"])[0] for index in range(4)]
        assert seen == [Status.UNAVAILABLE] * 3 + [Status.MISS]


def test_readonly_replica_serves_reads_and_is_left_for_writes(connect: Connect) -> None:
    store_ = MiniStore({b"k": VALUE})
    with ScriptedServer(readonly(), store_) as server:
        client = connect(server)
        for _ in range(3):
            assert fetch(client, {"k": SIZE}).result.ok
            assert store(client, {"k": SIZE}, 2)[0] is Status.UNAVAILABLE
        assert store_.data == {b"k": VALUE}
        # READONLY may mean that a failover has passed this connection by: each is left.
        assert server.connections >= 3


@pytest.mark.parametrize("kind", KINDS)
def test_real_replica_is_read_only(start: Start, kind: str, connect: Connect) -> None:
    server = start(kind)
    client = connect(server)
    assert store(client, {"k": SIZE}).ok
    server.cli("REPLICAOF", "127.0.0.1", "1")  # nobody there: it keeps what it has
    assert store(client, {"k": SIZE}, 2)[0] is Status.UNAVAILABLE
    until(lambda: fetch(client, {"k": SIZE}).result.ok, 5)
    server.cli("REPLICAOF", "NO", "ONE")
    until(lambda: store(client, {"k": SIZE}, 3).ok, 5)
    assert fetch(client, {"k": SIZE}, {3}).result.ok


def test_oom_in_the_middle_of_a_batch(connect: Connect) -> None:
    store_ = MiniStore()
    with ScriptedServer(oom(after=5, times=3), store_) as server:
        client = connect(server)
        sizes = {f"k{index}": SIZE for index in range(20)}
        result = store(client, sizes)
        assert result.count(Status.OK) == 17
        assert result.count(Status.SERVER_ERROR) == 3
        assert "OOM" in str(result.error)
        read = fetch(client, sizes)
        for status, read_status in zip(result, read.result, strict=True):
            assert read_status is (Status.OK if status is Status.OK else Status.MISS)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_credentials_are_told_at_once(
    start: Start, kind: str, connect: Connect, protocol: int
) -> None:
    server = start(kind, password="right-password")
    for given in ({"password": "wrong"}, {}, {"username": "nobody", "password": "wrong"}):
        client = connect(server, protocol=protocol, **given)
        with within(2), pytest.raises(errors.AuthError):
            client.get("k", poisoned(SIZE))
        with within(0.2):
            result = client.batch_get(["k"] * 50, [poisoned(SIZE) for _ in range(50)])
        assert set(result) == {Status.UNAVAILABLE}
        assert "WRONGPASS" in str(result.error) or "NOAUTH" in str(result.error)


def test_credentials_that_become_right(connect: Connect, start: Start) -> None:
    server = start("valkey", users=["user alice on >old ~* +@all"])
    client = connect(server, username="alice", password="new", reconnect_max_s=0.2)
    with pytest.raises(errors.AuthError):
        client.get("k", poisoned(SIZE))
    server.cli("ACL", "SETUSER", "alice", ">new")
    until(lambda: store(client, {"k": SIZE}).ok, 5)
    assert fetch(client, {"k": SIZE}).result.ok


def test_user_that_is_deleted_is_refused(connect: Connect, start: Start) -> None:
    """The server closes its connections; no new one is let in."""
    server = start("valkey", users=["user alice on >secret ~* +@all"])
    client = connect(server, username="alice", password="secret")
    assert store(client, {"k": SIZE}).ok
    server.cli("ACL", "DELUSER", "alice")
    until(lambda: fetch(client, {"k": SIZE}).result[0] is Status.UNAVAILABLE, 4)
    # What was lost says so first; whoever dials again is told why not.
    until(lambda: "WRONGPASS" in str(client.batch_exists(["k"]).error), 4)
    assert fetch(client, {"k": SIZE}).result[0] is Status.UNAVAILABLE


def test_scripted_wrong_password(connect: Connect) -> None:
    with ScriptedServer(wrongpass(), MiniStore()) as server:
        client = connect(server, password="p", protocol=2)
        with within(2), pytest.raises(errors.AuthError):
            client.set("k", VALUE)
        assert b"SET" not in server.names()


def test_full_server_says_so(connect: Connect) -> None:
    with ScriptedServer(MiniStore(), greeting=max_clients()) as server:
        for protocol in (2, 3):
            client = connect(server, protocol=protocol)
            with within(3), pytest.raises(errors.UnavailableError):
                client.get("k", poisoned(SIZE))
            assert "max number of clients" in str(client.batch_exists(["k"]).error)


@pytest.mark.ways("tcp", soak=("tls", "unix"))
@pytest.mark.parametrize("kind", KINDS)
def test_few_client_slots_are_enough(start: Start, kind: str, connect: Connect) -> None:
    """A server with room for some of our connections serves us through those."""
    server = start(kind, "--maxclients", "4")
    client = connect(server, reconnect_max_s=0.2)
    sizes = {f"k{index}": 256 * KIB for index in range(40)}
    until(lambda: store(client, sizes).ok, 5)
    until(lambda: fetch(client, sizes).result.ok, 5)
    assert client.batch_delete(list(sizes)).count(Status.OK) == 40


# Replies that are not what they should be.


@pytest.mark.ways("tcp", soak=("tls",))
@pytest.mark.parametrize(
    "handler",
    [
        unknown_type(),
        streamed(VALUE),
        truncated(VALUE, keep=SIZE - 1),
        answer(bulk(VALUE)[:-2] + b"XX", b"GET"),
        answer(b"$99999999999\r\n", b"GET"),
        answer(b"$-2\r\n", b"GET"),
        answer(b"$4096 \r\n" + VALUE + b"\r\n", b"GET"),
        answer(b"$4096\n" + VALUE + b"\r\n", b"GET"),
        answer(b"+" + b"x" * 100_000 + b"\r\n", b"GET"),
        answer(b"*3\r\n" * 40, b"GET"),
        answer(b"\r\n", b"GET"),
        answer(b"\0" * 64, b"GET"),
        answer(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"GET"),
        answer(Close(bulk(VALUE)[:100], rst=True), b"GET"),
        answer(Close(), b"GET"),
    ],
    ids=[
        *["type", "streamed", "truncated", "trailer", "huge", "negative", "space", "bare LF"],
        *["long line", "nesting", "empty line", "zeros", "HTTP", "reset", "closed"],
    ],
)
def test_broken_reply_is_never_ok(handler: Handler, connect: Connect) -> None:
    with ScriptedServer(handler, MiniStore({b"k": VALUE, b"l": stamped("l", 1, SIZE)})) as server:
        client = connect(server)
        with within(5):
            read = fetch(client, {"k": SIZE, "l": SIZE})
        assert read.result.count(Status.OK) == 0
        assert read.result.error
        with within(2):
            assert client.exists("k")  # and the client goes on


def test_broken_reply_is_made_good_by_the_next_attempt(connect: Connect) -> None:
    once = answer(Close(bulk(VALUE)[:1000]), b"GET", times=1)
    with ScriptedServer(once, MiniStore({b"k": VALUE})) as server:
        assert fetch(connect(server), {"k": SIZE}).result.ok


@pytest.mark.parametrize(
    "reply",
    [
        b"+OK\r\n",
        b":1\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"(4096\r\n",
        b"*1\r\n" + bulk(VALUE),
        b"~1\r\n" + bulk(VALUE),
        b"%1\r\n+k\r\n" + bulk(VALUE),
        b"=4100\r\ntxt:" + VALUE + b"\r\n",
    ],
    ids=["simple", "integer", "boolean", "double", "big", "array", "set", "map", "verbatim"],
)
def test_reply_of_another_type_is_refused(reply: bytes, connect: Connect) -> None:
    with ScriptedServer(answer(reply, b"GET", times=1), MiniStore({b"k": VALUE})) as server:
        client = connect(server)
        with within(2):
            assert fetch(client, {"k": SIZE}).result[0] is Status.SERVER_ERROR
        assert fetch(client, {"k": SIZE}).result.ok


@pytest.mark.parametrize("reply", [b"+QUEUED\r\n", b"$2\r\nOK\r\n", b":1\r\n", b"$-1\r\n"])
def test_set_is_stored_only_if_the_server_says_ok(reply: bytes, connect: Connect) -> None:
    with ScriptedServer(answer(reply, b"SET"), MiniStore()) as server:
        client = connect(server)
        with within(2):
            assert store(client, {"k": SIZE})[0] is Status.SERVER_ERROR


@pytest.mark.parametrize("reply", [b"+OK\r\n", b"$1\r\n1\r\n", b"$-1\r\n", b"#t\r\n", b"*0\r\n"])
def test_count_is_an_integer(reply: bytes, connect: Connect) -> None:
    with ScriptedServer(answer(reply, b"EXISTS", b"DEL"), MiniStore()) as server:
        client = connect(server)
        with within(2):
            assert client.batch_exists(["k"])[0] is Status.SERVER_ERROR
            assert client.batch_delete(["k"])[0] is Status.SERVER_ERROR


def test_bulk_error_is_an_error(connect: Connect) -> None:
    reply = b"!21\r\nSYNTAX invalid syntax\r\n"
    with ScriptedServer(answer(reply, b"GET"), MiniStore()) as server:
        client = connect(server)
        with pytest.raises(errors.ServerError, match="invalid syntax") as caught:
            client.get("k", poisoned(SIZE))
        assert caught.value.server_code == "SYNTAX"
        assert client.exists("k") is False


def test_error_text_is_made_fit_for_a_log(connect: Connect) -> None:
    reply = b"-ERR \x1b[31m\x07" + b"long " * 1000 + b"\r\n"
    with ScriptedServer(answer(reply, b"GET"), MiniStore()) as server:
        result = connect(server).batch_get(["k"], [poisoned(SIZE)])
        assert result[0] is Status.SERVER_ERROR
        assert result.error.isprintable()
        assert len(result.error) < 1000


# Words between the replies.


@pytest.mark.ways("tcp", "tls")
@pytest.mark.parametrize("size", [SIZE, MIB])
def test_pushes_and_attributes_are_passed_over(connect: Connect, size: int) -> None:
    words = surrounded(MiniStore(), before=PUSH + ATTRIBUTE, after=PUSH * 2)
    with ScriptedServer(words) as server:
        client = connect(server)
        sizes = {f"k{index}": size for index in range(8)}
        assert store(client, sizes).ok
        for _ in range(3):
            read = fetch(client, {**sizes, "none": size})
            assert list(read.result) == [Status.OK] * 8 + [Status.MISS]
            assert client.batch_exists([*sizes, "none"]).prefix_len == 8


@pytest.mark.ways("tcp", soak=("tls",))
def test_push_with_a_large_payload_touches_no_buffer(connect: Connect) -> None:
    """A push that carries another value of the very same length."""
    decoy = stamped("other", 9, SIZE)
    push = b">2\r\n+message\r\n" + bulk(decoy)
    words = surrounded(MiniStore({b"k": VALUE}), before=push, after=push)
    with ScriptedServer(words) as server:
        client = connect(server)
        for _ in range(20):
            assert fetch(client, {"k": SIZE}).result.ok


@pytest.mark.ways("tcp", soak=("tls",))
def test_attribute_with_a_large_payload_is_not_the_value(connect: Connect) -> None:
    decoy = stamped("other", 9, SIZE)
    attribute = b"|1\r\n+decoy\r\n" + bulk(decoy)
    with ScriptedServer(surrounded(MiniStore({b"k": VALUE}), before=attribute)) as server:
        client = connect(server)
        for _ in range(20):
            assert fetch(client, {"k": SIZE, "none": SIZE}).versions == {"k": 1}


@pytest.mark.ways("tcp", "tls")
def test_replies_in_the_smallest_pieces(connect: Connect) -> None:
    store_ = MiniStore({b"k": VALUE[:600]})

    def byte_by_byte(command: Command) -> Pieces | None:
        action = store_(command)
        assert isinstance(action, bytes)
        if command.name in HANDSHAKE:
            return None
        words = PUSH + ATTRIBUTE + action + PUSH
        return Pieces(tuple(words[at : at + 1] for at in range(len(words))))

    with ScriptedServer(byte_by_byte, store_) as server:
        client = connect(server)
        for _ in range(2):
            target = poisoned(600)
            assert client.get("k", target)
            assert target == VALUE[:600]
            assert client.get("none", target) is False


@pytest.mark.ways("tcp", "tls")
def test_unasked_reply_costs_the_connection(connect: Connect) -> None:
    once = answer(b":1\r\n:1\r\n", b"EXISTS", times=1)
    with ScriptedServer(once, MiniStore()) as server:
        client = connect(server)
        assert client.exists("k") is True
        until(lambda: client.exists("k") is False, 2)
        for _ in range(5):
            assert client.exists("k") is False  # not the leftover


# Old servers.


@pytest.mark.ways("tcp", "tls")
@pytest.mark.parametrize("handler", [resp2_only(), noproto()], ids=["no HELLO", "NOPROTO"])
@pytest.mark.parametrize("password", [None, "p"])
def test_server_that_speaks_only_resp2(
    handler: Handler, password: str | None, connect: Connect
) -> None:
    with ScriptedServer(handler, MiniStore()) as server:
        client = connect(server, password=password, db=2)
        sizes = {f"k{index}": MIB for index in range(4)}
        assert store(client, sizes).ok
        read = fetch(client, {**sizes, "none": MIB})
        assert list(read.result) == [Status.OK] * 4 + [Status.MISS]
        assert {b"HELLO", b"SELECT"} <= set(server.names())
        assert (b"AUTH" in server.names()) is (password is not None)


def test_server_that_never_answers_the_greeting(connect: Connect) -> None:
    with ScriptedServer(silent(b"HELLO"), MiniStore()) as server:
        # It does not dial again before it is asked again.
        client = connect(server, connect_timeout_s=0.4, reconnect_min_s=20, reconnect_max_s=20)
        with within(2):
            result = client.batch_get(["k"], [poisoned(SIZE)])
        assert result[0] in (Status.UNAVAILABLE, Status.TIMEOUT)
        with within(0.2):
            assert client.batch_exists(["k"])[0] is Status.UNAVAILABLE


@pytest.mark.ways("tcp", "tls")
def test_server_that_sends_more_than_the_greeting(connect: Connect) -> None:
    """What follows the greeting unasked must not become the reply of the first command."""
    store_ = MiniStore({b"k": VALUE})
    decoy = bulk(stamped("other", 9, SIZE))

    def greet_and_more(command: Command) -> bytes | None:
        if command.name != b"HELLO":
            return None
        action = store_(command)
        assert isinstance(action, bytes)
        return action + decoy

    with ScriptedServer(greet_and_more, store_) as server:
        client = connect(server)
        with within(8):
            for _ in range(5):
                fetch(client, {"k": SIZE})  # whatever it says, no wrong bytes


def test_check_can_fail() -> None:
    with pytest.raises(AssertionError, match="of another key"):
        check("k", stamped("l", 1, SIZE))
    with pytest.raises(AssertionError, match="not its value"):
        check("k", VALUE[:-1] + b"x")
    with pytest.raises(AssertionError, match="never written"):
        check("k", VALUE, {2})
