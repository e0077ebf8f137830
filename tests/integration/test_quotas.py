"""Quotas: set at the controller, told with heartbeats, obeyed by caches that share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvferry import Identity, TieredCache
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.chunks.prompt import read_prompt
from kvferry.http.listener import HttpListener
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.app import make_app
from kvferry.sharing.controller.page import figures
from kvferry.sharing.controller.page.tables import nodes
from kvferry.sharing.membership import Quota
from support.engines import CHUNK, LAYOUT, check, expected, prompt
from support.holdings import FakeCache, controller, reporting
from support.servers import wait_for
from support.sharing import Open, instances, running_controller, sharing_of, told
from support.views import ask

SIZE = LAYOUT.chunk_bytes
OTHER = Identity(model="another", layout=LAYOUT)
TOKEN = "t0ken-t0ken-t0ken"


@pytest.fixture
def of() -> Iterator[Controller]:
    with running_controller() as controller:
        yield controller


@pytest.fixture
def opened(of: Controller) -> Iterator[Open]:
    with instances(of) as opened:
        yield opened


class Served:
    """The HTTP of a controller."""

    def __init__(self, controller: Controller, token: str = "none") -> None:
        self._listener = HttpListener(make_app(controller), "127.0.0.1", 0, "another")
        self._listener.start()
        self._token = token

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.stop()

    def ask(self, method: str, path: str = "/v1/quotas", body: Any = None) -> tuple[int, Any]:
        return ask(self._listener.url + path, method, body, authorization=f"Bearer {self._token}")

    def put(self, instance: str, bytes: int, **more: Any) -> Any:
        status, row = self.ask("PUT", body={"instance": instance, "bytes": bytes, **more})
        assert status == 200, row
        return row


@pytest.fixture
def http(of: Controller) -> Iterator[Served]:
    with Served(of) as made:
        yield made


def resident(cache: TieredCache) -> int:
    return int(cache.memory.cache.stats()["resident"])


def store(cache: TieredCache, chunks: int, seed: int = 0) -> list[int]:
    tokens = prompt(chunks * CHUNK, seed)
    cache.store(tokens, expected(tokens, cache.identity))
    return tokens


def test_an_instance_holds_no_more_than_its_quota_until_it_is_removed(
    of: Controller, opened: Open, http: Served
) -> None:
    one, other = opened("one"), opened("other")
    tokens = store(one, 40)
    store(other, 40)
    wait_for("both are known", lambda: told(of) == 80)
    row = http.put("one", 10 * SIZE + SIZE // 2)
    assert (row["instance"], row["model"], row["bytes"]) == ("one", "", 10 * SIZE + SIZE // 2)
    assert http.ask("GET")[1] == {"quotas": [row]}
    wait_for("it evicts", lambda: resident(one) == 10)
    held = one.memory.ready(read_prompt(tokens, CHUNK, b""))
    assert held == (10, 0)  # the beginning of the prompt is what stays
    store(one, 20, seed=1)
    wait_for("what came is too much", lambda: resident(one) == 10)
    wait_for("the controller is told", lambda: told(of) == 50)
    assert resident(other) == 40
    [node] = http.ask("GET", "/v1/nodes/one")[1]["nodes"]
    assert node["quota_bytes"] == {"": row["bytes"]}
    table = str(nodes(of, {}))
    assert table.count(f"all models: {figures.size(row['bytes'])}") == 1
    assert http.ask("DELETE", f"/v1/quotas/{row['id']}") == (200, row)
    assert http.ask("GET")[1] == {"quotas": []}
    wait_for("it is told", lambda: not sharing_of(one).quotas)
    store(one, 40, seed=2)
    assert resident(one) >= 40


def test_a_quota_of_a_model_leaves_others_alone(of: Controller, opened: Open, http: Served) -> None:
    one, another = opened("one"), opened("one", identity=OTHER)
    store(one, 30)
    store(another, 30)
    wait_for("it is known", lambda: told(of) == 60)
    http.put("one", 5 * SIZE, model=OTHER.model)
    wait_for("it evicts", lambda: resident(another) == 5)
    http.put("one", 20 * SIZE)
    wait_for("both together", lambda: resident(one) + resident(another) == 20)
    assert resident(another) == 5  # whoever has most gives


def test_what_is_pinned_or_lent_stays(of: Controller, opened: Open, http: Served) -> None:
    one = opened("one")
    tokens = store(one, 20)
    assert one.memory.cache.pin(b"".join(_hashes(tokens)[:8])) == 8
    wait_for("it is known", lambda: told(of) == 20)
    http.put("one", 0)
    wait_for("it evicts", lambda: resident(one) == 8)
    assert check(one, tokens) == 8 * CHUNK


def _hashes(tokens: list[int]) -> list[bytes]:
    packed = read_prompt(tokens, CHUNK, b"").hashes
    return [packed[at : at + DIGEST_BYTES] for at in range(0, len(packed), DIGEST_BYTES)]


def test_a_controller_that_begins_anew_hears_of_quotas_from_instances() -> None:
    cache = FakeCache()
    cache.limit([Quota(1000, "tiny"), Quota(2000)])
    with controller() as ctl, reporting(cache, ctl, "one"):
        wait_for("it is heard", lambda: len(ctl.quotas.all()) == 2)
        assert [one.quota for one in ctl.quotas.all()] == [Quota(2000), Quota(1000, "tiny")]
        ctl.quotas.remove(ctl.quotas.all()[0].id)
        wait_for("it is told", lambda: list(cache.quotas) == [Quota(1000, "tiny")])
        ctl.quotas.heard("one", (Quota(2000),))  # what is late brings nothing back
        assert ctl.quotas.of("one") == (Quota(1000, "tiny"),)


def test_who_has_no_token_sets_nothing() -> None:
    with controller(http_token=TOKEN) as ctl, reporting(FakeCache(), ctl, "one"):
        wait_for("it registers", lambda: ctl.members.living())
        with Served(ctl) as stranger, Served(ctl, TOKEN) as friend:
            body = {"instance": "one", "bytes": 1}
            assert stranger.ask("PUT", body=body)[0] == 401
            assert stranger.ask("GET")[0] == 401
            assert friend.ask("GET")[1] == {"quotas": []}
            row = friend.put("one", 1)
            assert stranger.ask("DELETE", f"/v1/quotas/{row['id']}")[0] == 401
            assert friend.ask("GET")[1] == {"quotas": [row]}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"instance": "nobody", "bytes": 1}, 404),
        ({"instance": "one", "bytes": -1}, 400),
        ({"instance": "one", "bytes": 1.5}, 400),
        ({"instance": "one"}, 400),
        ({"bytes": 1}, 400),
        ({"instance": "one", "bytes": 1, "salt": "x"}, 400),
        ({"instance": "one", "bytes": 1, "model": "x" * 2000}, 400),
    ],
)
def test_what_cannot_be_a_quota_is_refused(body: dict[str, Any], status: int) -> None:
    with controller() as ctl, reporting(FakeCache(), ctl, "one"), Served(ctl) as http:
        wait_for("it registers", lambda: ctl.members.living())
        assert http.ask("PUT", body=body)[0] == status
        assert http.ask("GET")[1] == {"quotas": []}
        assert http.ask("DELETE", "/v1/quotas/none")[0] == 404
