"""The plan of a chaos run follows from its seed, and covers what it should."""

from __future__ import annotations

from itertools import islice

from chaos.calls import CALL_BYTES_MAX, VERBS, Shape, calls
from chaos.schedule import schedule
from support.stamps import KIB, MIB

LANES = [Shape((KIB, 8 * MIB, 8 * MIB)), Shape((64 * KIB,) * 8, cancels=True)]
SERVER, WAY = ["kill", "stop", "maxmemory"], ["latency", "reset"]


def test_calls_follow_from_seed_and_thread() -> None:
    first = list(islice(calls(7, 0, LANES), 300))
    assert first == list(islice(calls(7, 0, LANES), 300))
    assert first != list(islice(calls(7, 1, LANES), 300))
    assert first != list(islice(calls(8, 0, LANES), 300))


def test_calls_are_of_every_kind_and_within_limits() -> None:
    some = list(islice(calls(7, 0, LANES), 1000))
    assert {call.verb for call in some} == set(VERBS)
    assert {call.lane for call in some} == {0, 1}
    assert any(call.prefix for call in some)
    assert any(call.timeout_s for call in some)
    assert all(LANES[call.lane].cancels for call in some if call.cancel_after_s is not None)
    assert any(call.cancel_after_s for call in some)
    for call in some:
        assert call.keys
        assert len(set(call.keys)) == len(call.keys)
        if call.verb in ("get", "set"):
            assert sum(LANES[call.lane].sizes[key] for key in call.keys) <= CALL_BYTES_MAX


def test_the_schedule_follows_from_the_seed() -> None:
    first = list(islice(schedule(7, SERVER, WAY), 50))
    assert first == list(islice(schedule(7, SERVER, WAY), 50))
    assert first != list(islice(schedule(8, SERVER, WAY), 50))


def test_every_trouble_comes_soon() -> None:
    for seed in range(20):
        blows = list(islice(schedule(seed, SERVER, WAY), 20))
        assert {name for blow in blows for name in blow.troubles} == {*SERVER, *WAY}
        assert any(len(blow.troubles) == 2 for blow in blows)
        assert any(blow.peace_s for blow in blows)


def test_a_run_without_a_way_has_troubles_of_servers_alone() -> None:
    names = {name for blow in islice(schedule(1, SERVER, []), 50) for name in blow.troubles}
    assert names == set(SERVER)
