"""What an engine has learnt of its speed is in its store for the next one on such a device."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from kvferry import TieredCache
from kvferry.base.errors import UnavailableError
from kvferry.cache.store.store_tiers import space_of
from kvferry.connectors.memory import MemoryConnector
from support.engines import IDENTITY, pages_gb
from support.stamps import until


class Store(MemoryConnector):
    """A store that keeps notes as long as the test does."""

    kept: dict[str, str]
    away = False

    def note(self, name: str, text: str) -> None:
        self.kept[name] = text

    def notes(self) -> Mapping[str, str]:
        if self.away:
            raise UnavailableError("away")
        return self.kept


def opened(kept: dict[str, str], *, away: bool = False) -> TieredCache:
    store = Store(space_of(IDENTITY), capacity_bytes=1 << 20)
    store.kept, store.away = kept, away
    return TieredCache(IDENTITY, connectors={"store": store}, max_local_cpu_size=pages_gb(4))


def teach(engine: TieredCache) -> None:
    for n in range(40):
        tokens = (32, 512, 2048)[n % 3]
        engine.observe_step(tokens, tokens**2, 0, 0.01 + 2e-4 * tokens + 1e-8 * tokens**2)


def test_the_next_engine_on_such_a_device_begins_with_what_was_learnt() -> None:
    kept: dict[str, str] = {}
    with opened(kept) as engine:
        engine.learning.know_device("quick x 2")
        teach(engine)
        expected = engine.prefill.predict_s(4096)
    assert list(kept) == ["quick x 2"]
    with opened(kept) as engine:
        engine.learning.know_device("quick x 2")
        until(lambda: engine.prefill.known, 10)
        assert engine.prefill.samples == 0
        assert engine.prefill.predict_s(4096) == pytest.approx(expected, rel=0.01)
    with opened(kept) as engine:
        engine.learning.know_device("another")
        engine.learning.close(5)
        assert not engine.prefill.known


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"prefill": [1]}', '{"prefill": [0, -1, 0, 0]}', "null"]
)
def test_a_note_that_cannot_be_is_none(text: str) -> None:
    with opened({"d": text}) as engine:
        engine.learning.know_device("d")
        engine.learning.close(5)
        assert not engine.prefill.known


def test_what_few_steps_taught_is_not_kept_and_a_store_that_is_away_is_no_trouble() -> None:
    kept: dict[str, str] = {}
    with opened(kept, away=True) as engine:
        engine.learning.know_device("d")
        engine.observe_step(512, 512**2, 0, 0.1)
    assert not kept


def test_what_is_kept_is_plain() -> None:
    kept: dict[str, str] = {}
    with opened(kept) as engine:
        engine.learning.know_device("d")
        teach(engine)
    note = json.loads(kept["d"])
    assert len(note["prefill"]) == 4
    assert note["steps"] == 40
