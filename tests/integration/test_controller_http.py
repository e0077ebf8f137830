"""The controller's HTTP over real sockets, with real reporters behind it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvferry.http.listener import HttpListener
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.app import make_app
from support.holdings import CHUNK, IDENTITY, FakeCache, controller, hashes, reporting, tokens
from support.stamps import until
from support.views import ask, assert_whole

LIMIT_S = 30.0
TOKEN = "t0ken-t0ken-t0ken"


@contextmanager
def served(of: Controller) -> Iterator[str]:
    listener = HttpListener(make_app(of), "127.0.0.1", 0, "choose another --port")
    listener.start()
    try:
        yield listener.url
    finally:
        listener.stop()


class Cluster:
    """Two instances: "one" holds 4 chunks of a prompt and "two" 7."""

    def __init__(self, ctl: Controller, url: str, one: FakeCache, two: FakeCache) -> None:
        self.ctl, self.url, self.one, self.two = ctl, url, one, two

    def get(self, path: str) -> Any:
        status, body = ask(self.url + path)
        assert status == 200, body
        return body

    def post(self, path: str, expected: int = 200, **body: Any) -> Any:
        status, answer = ask(self.url + path, "POST", body)
        assert status == expected, answer
        if expected != 200:
            assert answer["error"]["text"]
            return answer["error"]["code"]
        return answer

    def holds(self, **expected: int) -> None:
        until(lambda: self.prefix() == expected, LIMIT_S)

    def prefix(self) -> dict[str, int]:
        found = self.post("/v1/lookup", tokens=tokens(9))["instances"]
        return {one["instance"]: one["chunks"] for one in found}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    one, two = FakeCache(), FakeCache()
    one.add(hashes(4))
    two.add(hashes(7))
    with (
        controller() as ctl,
        reporting(one, ctl, "one"),
        reporting(two, ctl, "two", address="127.0.0.1:7002"),
        served(ctl) as url,
    ):
        found = Cluster(ctl, url, one, two)
        found.holds(one=4, two=7)
        until(lambda: all(row["synced"] for row in found.get("/v1/nodes")["nodes"]), LIMIT_S)
        yield found


# --- What is where ---


def test_lookup_orders_instances_by_held_prefix(cluster: Cluster) -> None:
    by_tokens = cluster.post("/v1/lookup", tokens=[*tokens(9), 1, 2, 3])
    assert by_tokens["chunks"] == 9
    first, second = by_tokens["instances"]
    assert first == {
        "instance": "two",
        "model": "tiny",
        "chunk_size": CHUNK,
        "state": "alive",
        "addresses": {"0": "127.0.0.1:7002"},
        "ranks": {"0": 7},
        "chunks": 7,
        "tokens": 7 * CHUNK,
    }
    assert (second["instance"], second["tokens"]) == ("one", 4 * CHUNK)
    digests = [hashes(9)[i : i + 16].hex() for i in range(0, 144, 16)]
    assert cluster.post("/v1/lookup", hashes=digests) == by_tokens
    assert cluster.get(f"/v1/lookup?hashes={','.join(digests)}") == by_tokens
    text = ",".join(map(str, tokens(9)))
    assert cluster.get(f"/v1/lookup?tokens={text}&limit=1")["instances"] == [first]
    for whose in ("tiny", IDENTITY.digest.hex()[:6]):
        assert cluster.post("/v1/lookup", tokens=tokens(9), identity=whose) == by_tokens
    # Another tenant's salt makes other hashes.
    assert cluster.post("/v1/lookup", tokens=tokens(9), salt="ab")["instances"] == []


def test_an_instance_of_several_ranks_holds_what_all_of_them_hold() -> None:
    ranks = [FakeCache(), FakeCache()]
    ranks[0].add(hashes(6))
    ranks[1].add(hashes(3))
    with (
        controller() as ctl,
        reporting(ranks[0], ctl, "one", rank=0),
        reporting(ranks[1], ctl, "one", rank=1),
        served(ctl) as url,
    ):
        found = Cluster(ctl, url, *ranks)
        found.holds(one=3)
        (row,) = found.post("/v1/lookup", tokens=tokens(9))["instances"]
        assert row["ranks"] == {"0": 6, "1": 3}
        ranks[1].remove(hashes(3))
        found.holds()  # a rank without its part: nothing can be had


def test_explain_says_who_holds_each_chunk_or_why_nobody(cluster: Cluster) -> None:
    cluster.two.remove(hashes(7)[5 * 16 : 6 * 16])
    cluster.holds(one=4, two=5)
    found = cluster.post("/v1/explain", tokens=tokens(8))["chunks"]
    assert [len(one["holders"]) for one in found] == [2, 2, 2, 2, 1, 0, 1, 0]
    assert found[4]["prefix_of"] == ["two/0"]
    assert found[5]["why"] == "no instance holds it"
    assert found[6]["holders"] == ["two/0"]
    assert "before it" in found[6]["why"]


def test_prefixes_that_are_asked_for_most_come_first(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.post("/v1/lookup", tokens=tokens(5, seed=8))
    rows = cluster.get("/v1/prefixes")["prefixes"]
    counts = {row["root"]: row for row in rows}
    mine, other = counts[hashes(1).hex()], counts[hashes(1, seed=8).hex()]
    assert (mine["chunks"], mine["tokens"], mine["holders"]) == (7, 7 * CHUNK, ["two/0"])
    assert (other["lookups"], other["holders"]) == (3, [])
    assert rows[0]["lookups"] >= rows[-1]["lookups"]


def test_nodes_and_cluster_say_who_lives(cluster: Cluster) -> None:
    rows = {row["instance"]: row for row in cluster.get("/v1/nodes")["nodes"]}
    assert rows["two"]["chunks"] == 7
    assert rows["two"]["used_bytes"] == 7 * 4096
    assert rows["two"]["state"] == "alive"
    assert rows["two"]["synced"] is True
    assert cluster.get("/v1/nodes/two")["nodes"][0]["incarnation"] == rows["two"]["incarnation"]
    assert ask(f"{cluster.url}/v1/nodes/nobody")[0] == 404
    assert ask(f"{cluster.url}/v1/nodes/nobody?id=two")[0] == 404  # the path says who
    whole = cluster.get("/v1/cluster")
    assert (whole["instances"], whole["entries"], whole["alarms"]) == (2, 11, [])
    assert whole["identities"][0]["instances"] == 2


def test_metrics_and_description(cluster: Cluster) -> None:
    text = cluster.get("/metrics")
    assert 'kvferry_controller_members{state="alive"} 2.0' in text
    assert 'kvferry_controller_chunks{member="two/0"} 7.0' in text
    document = cluster.get("/openapi.json")
    assert_whole(document)
    described = document["paths"]
    assert cluster.get("/health") == {"alive": True}
    assert "/v1/lookup" in cluster.get("/docs")
    for path, operations in described.items():  # nothing is described that is not there
        for method in operations:
            url = cluster.url + path.replace("{id}", "two")
            if path != "/v1/events":
                assert ask(url, method.upper(), {} if method == "post" else None)[0] != 405, path


def test_events_are_a_stream_that_goes_on_where_it_ended(cluster: Cluster) -> None:
    def read(last: str) -> tuple[list[dict[str, Any]], http.client.HTTPConnection]:
        host = cluster.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=LIMIT_S)
        connection.request("GET", "/v1/events", headers={"Last-Event-ID": last})
        answer = connection.getresponse()
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        found: list[dict[str, Any]] = []

        def collect() -> None:
            try:
                for line in answer:
                    if line.startswith(b"data: "):
                        found.append(json.loads(line[6:]))
            except (OSError, ValueError, AttributeError):
                pass  # closed

        threading.Thread(target=collect, daemon=True).start()
        return found, connection

    all_of_them, first = read("0")
    until(lambda: [e["type"] for e in all_of_them].count("synced") == 2, LIMIT_S)
    assert [e["type"] for e in all_of_them].count("join") == 2
    last = all_of_them[-1]["id"]
    rest, second = read(str(last))
    three = FakeCache()
    with reporting(three, cluster.ctl, "three"):
        until(lambda: any(e.get("instance") == "three" for e in rest), LIMIT_S)
    assert all(event["id"] > last for event in rest)
    for connection in (first, second):
        assert connection.sock is not None
        connection.sock.close()
        connection.close()


# --- What is to be done ---


def test_move_copies_first_and_deletes_then(cluster: Cluster) -> None:
    job = cluster.post(
        "/v1/jobs", action="move", instance="two", to="one", tokens=tokens(7), wait=True
    )
    assert (job["state"], job["chunks"]) == ("done", 7)
    cluster.holds(one=7)
    (command,) = cluster.one.obeyed
    assert (command.action, command.source) == ("prefetch", "127.0.0.1:7002")
    assert cluster.get(f"/v1/jobs/{job['id']}")["state"] == "done"
    assert cluster.get("/v1/jobs")["jobs"][0]["id"] == job["id"]


def test_pins_are_set_and_undone(cluster: Cluster) -> None:
    pin = cluster.post("/v1/pins", instance="two", tokens=tokens(7), wait=True)
    assert (pin["state"], pin["chunks"]) == ("done", 7)
    assert cluster.get("/v1/pins")["pins"] == [pin]
    status, job = ask(f"{cluster.url}/v1/pins/{pin['id']}", "DELETE")
    assert status == 200
    until(lambda: cluster.get(f"/v1/jobs/{job['id']}")["state"] == "done", LIMIT_S)
    assert [one.action for one in cluster.two.obeyed] == ["pin", "unpin"]
    assert cluster.get("/v1/pins")["pins"] == []
    assert ask(f"{cluster.url}/v1/pins/{pin['id']}", "DELETE")[0] == 404


def test_what_an_instance_does_not_do_is_said_and_not_done(cluster: Cluster) -> None:
    cluster.one.actions = ()
    three = FakeCache()
    three.actions = ("clear",)
    with reporting(three, cluster.ctl, "three", address=""):
        until(lambda: len(cluster.ctl.members.living()) == 3, LIMIT_S)
        pin = {"action": "pin", "instance": "three", "tokens": tokens(2)}
        assert cluster.post("/v1/jobs", 501, **pin) == "unsupported"
        move = {"action": "move", "instance": "three", "to": "two", "tokens": tokens(2)}
        assert cluster.post("/v1/jobs", 501, **move) == "unsupported"
        assert cluster.post("/v1/jobs", 501, action="compress", instance="two") == "unsupported"
        assert cluster.post("/v1/jobs", 404, action="clear", instance="nobody") == "instance"
    assert cluster.two.obeyed == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/lookup", {}),
        ("/v1/lookup", {"tokens": [1], "hashes": []}),
        ("/v1/lookup", {"tokens": [-1] * CHUNK}),
        ("/v1/lookup", {"tokens": "x"}),
        ("/v1/lookup", {"hashes": ["zz"]}),
        ("/v1/lookup", {"hashes": ["abcd"]}),
        ("/v1/lookup", {"hashes": [1]}),
        ("/v1/lookup", {"tokens": [1], "salt": "x"}),
        ("/v1/lookup", {"tokens": [1], "limit": 0}),
        ("/v1/lookup", {"tokens": [1], "limit": True}),
        ("/v1/lookup", {"tokens": [1], "tenant": "x"}),
        ("/v1/jobs", {"action": "dance", "instance": "one"}),
        ("/v1/jobs", {"action": "pin", "instance": "one", "tokens": [1]}),
        ("/v1/jobs", {"action": "pin"}),
        ("/query_instance", {}),
        ("/move", {"old_position": ["one"], "new_position": ["two", "LocalCPUBackend"]}),
    ],
)
def test_a_request_that_cannot_be_right_says_why(
    cluster: Cluster, path: str, body: dict[str, Any]
) -> None:
    cluster.post(path, 400, **body)


def test_a_token_is_asked_of_everybody_but_health() -> None:
    with controller(http_token=TOKEN) as ctl, served(ctl) as url:
        assert ask(f"{url}/health")[0] == 200
        for path in ("/v1/cluster", "/metrics", "/openapi.json", "/v1/events"):
            assert ask(url + path)[0] == 401
        assert ask(f"{url}/v1/cluster", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(f"{url}/v1/cluster", Authorization="Bearer other")[0] == 401


# --- As LMCache's ---


def test_the_familiar_routes_answer_as_the_guide_has_them(cluster: Cluster) -> None:
    found = cluster.post("/lookup", tokens=tokens(9))
    assert found["layout_info"] == {
        "two": ["LocalCPUBackend", 7 * CHUNK],
        "one": ["LocalCPUBackend", 4 * CHUNK],
    }
    assert found["event_id"]
    assert cluster.post("/query_instance", ip="127.0.0.1", event_id="e1")["event_id"] == "e1"
    assert cluster.post("/query_instance", ip="127.0.0.1")["res"] in ("one", "two")
    (info,) = cluster.post("/query_worker_info", instance_id="two", worker_ids=[0])["worker_infos"]
    assert (info["ip"], info["port"], info["worker_id"]) == ("127.0.0.1", 7002, 0)
    health = cluster.post("/health", instance_id="two")
    assert (health["error_code"], health["error_codes"]) == (0, {"0": 0})
    assert cluster.post("/health", instance_id="nobody")["error_code"] == -1
    stats = cluster.get("/controller/key-stats")
    assert (stats["total_key_count"], stats["total_worker_count"]) == (11, 2)
    assert cluster.get("/controller/workers")["total_count"] == 2
    one = cluster.get("/controller/workers?instance_id=two&worker_id=0")
    assert (one["instance_id"], one["key_count"]) == ("two", 7)
    assert ask(f"{cluster.url}/controller/workers?instance_id=two&worker_id=5")[0] == 404


def test_the_familiar_actions_are_done(cluster: Cluster) -> None:
    at: dict[str, Any] = {"location": "LocalCPUBackend"}
    pin = cluster.post("/pin", instance_id="two", tokens=tokens(7), **at)
    assert pin["num_tokens"] == 7 * CHUNK
    assert cluster.post("/check_finish", event_id=pin["event_id"]) == {"status": "success"}
    moved = cluster.post(
        "/move",
        old_position=["two", "LocalCPUBackend"],
        new_position=["one", "LocalCPUBackend"],
        tokens=tokens(7),
        copy=True,
    )
    assert moved["num_tokens"] == 7 * CHUNK
    cluster.holds(one=7, two=7)
    cleared = cluster.post("/clear", instance_id="two", **at)
    assert cleared["num_tokens"] == 7 * CHUNK
    cluster.holds(one=7)
    for path in ("/compress", "/decompress"):
        assert cluster.post(path, 501, instance_id="one", method="x", **at) == "unsupported"
    assert cluster.post("/clear", 501, instance_id="one", location="LocalDiskBackend")
    assert cluster.post("/check_finish", 404, event_id="none") == "job"
