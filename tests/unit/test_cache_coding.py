"""`remote_serde: auto`: the link decides, and a link that does not change is decided once."""

from __future__ import annotations

import pytest

from kvferry.cache.store.coding import Coding, coder_bytes_s

CODERS = {"split12": 4e9, "zstd": 1e9}
RATIOS = {"naive": 1.0, "split12": 0.75, "zstd": 0.65}


def told_after(links: list[float], ratios: dict[str, float] = RATIOS) -> list[str]:
    """What the connector is told, on links of these bytes per second, one after the other."""
    told: list[str] = []
    coding = Coding("store", told.append, lambda: CODERS)
    for link in links:
        # What loads look like there, written in the way that holds.
        seen = link / ratios[coding.serde]
        coding.choose(min(seen, CODERS.get(coding.serde, seen)))
    return told


def test_before_anything_was_loaded_nothing_is_encoded() -> None:
    assert told_after([0.0, 0.0]) == []


def test_the_slower_the_link_the_shorter_the_chunks() -> None:
    assert told_after([125e6] * 5) == ["zstd"]
    assert told_after([1.25e9] * 5) == ["split12"]
    assert told_after([10e9] * 5) == []


@pytest.mark.parametrize("link", [x * 1e8 / 4 for x in range(1, 320)])
def test_no_link_makes_it_go_to_and_fro(link: float) -> None:
    assert len(told_after([link] * 20)) <= 1
    # KV that hardly gets shorter, and KV that is mostly nothing.
    for shorter in (0.99, 0.3):
        ratios = {**RATIOS, "zstd": shorter, "split12": max(shorter, 0.75)}
        assert len(told_after([link] * 20, ratios)) <= 1


def test_a_link_that_changes_is_followed() -> None:
    links = [1e9, 1e9, 1e8, 1e8, 1e9, 10e9, 10e9, 1e9]
    assert told_after(links) == ["split12", "zstd", "split12", "naive", "split12"]


def test_the_speed_of_each_codec_is_measured() -> None:
    assert min(coder_bytes_s().values()) > 1e6
    assert coder_bytes_s() is coder_bytes_s(), "once"
