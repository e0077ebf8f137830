"""A chunk that does not come ends the prefix, whatever of the chunks behind it has come."""

from __future__ import annotations

import pytest

from kvferry.client.batch import Status
from support.read_path import Case, Request, Store, on_clock, replay
from support.scripted_store import Flowing


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.UNAVAILABLE, Status.CORRUPT])
def test_what_comes_behind_a_chunk_that_failed_is_no_part_of_the_prefix(status: Status) -> None:
    """Behind one that met its store's time limit, chunks counted as loaded, and as the prefix."""
    how = (("release_s", 0.01),)  # the second part comes while it is withdrawn
    store = Store(Flowing.steady(1e9), 0.001, (8,), bad=((0, status),), how=how)
    with on_clock() as clock:
        happened = replay(Case((store,), (Request(0, 8),), chunks=8), clock)
    (gathered,) = [line for line in happened.lines if "gathered" in line]
    (loaded,) = [line for line in happened.lines if "loaded to" in line]
    assert "gathered 0 here and {'one': 0}" in gathered
    assert "loaded to 0 in" in loaded
