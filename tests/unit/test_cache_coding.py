"""`remote_serde: auto`: the link decides, and a link that does not change is decided once."""

from __future__ import annotations

import pytest

from kvferry.cache.coding import Coding, decode_bytes_s

DECODER = 4e9


def told_after(links: list[float]) -> list[str]:
    """What the connector is told, on links of these bytes per second, one after the other."""
    told: list[str] = []
    coding = Coding("store", told.append, lambda: DECODER)
    for link in links:
        # What loads look like there, written in the way that holds.
        seen = link if coding.serde == "naive" else min(link / 0.75, DECODER)
        coding.choose(seen)
    return told


def test_before_anything_was_loaded_nothing_is_encoded() -> None:
    assert told_after([0.0, 0.0]) == []


def test_slow_links_get_encoded_chunks_and_fast_ones_do_not() -> None:
    assert told_after([125e6] * 5) == ["split12"]
    assert told_after([1.25e9] * 5) == ["split12"]
    assert told_after([10e9] * 5) == []


@pytest.mark.parametrize("link", [x * 1e8 for x in range(1, 80)])
def test_no_link_makes_it_go_to_and_fro(link: float) -> None:
    assert len(told_after([link] * 20)) <= 1


def test_a_link_that_changes_is_followed() -> None:
    assert told_after([1e9, 1e9, 10e9, 10e9, 1e9]) == ["split12", "naive", "split12"]


def test_the_speed_of_a_decoder_is_measured() -> None:
    assert decode_bytes_s() > 1e6
    assert decode_bytes_s() == decode_bytes_s(), "once"
