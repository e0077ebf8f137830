"""The half of a connector in a worker: bytes go where they should, or are reported missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from kvferry.chunks.prompt import Prompt
from kvferry.integrations.vllm.connector.counts import COUNTS
from kvferry.integrations.vllm.connector.interfaces import Work
from kvferry.integrations.vllm.connector.step_times import HostSteps
from support import clock
from support.vllm_worker import (
    BLOCKS,
    CHUNK,
    HASHES,
    LAYER_BYTES,
    LAYERS,
    LAYOUT,
    Cache,
    half_of,
    load,
    opened_cache,
    plain,
    reported,
    save,
    step,
    stored,
    wait_for,
)


@pytest.fixture
def cache() -> Iterator[Cache]:
    with opened_cache() as made:
        yield made


def test_while_nothing_is_taken_nothing_is_copied(cache: Cache) -> None:
    copier = plain()
    half = half_of(cache, copier)
    cache.available = False
    gathered: list[Any] = []
    copier.gather = copier.gather_layer = lambda *call, **_: gathered.append(call)  # type: ignore
    step(half, Work(saves=[save(0, [1, 2, 3, 4])]), copier.layer_names)
    assert gathered == []
    assert half.counts.read()["shed_chunks"] == 2
    half.close()


@pytest.mark.parametrize("which", ["end", "layers", "some layers"])
def test_what_is_saved_comes_back_into_other_blocks(cache: Cache, which: str) -> None:
    copier = plain()
    half = half_of(cache, copier)
    names = {"end": (), "layers": copier.layer_names, "some layers": copier.layer_names[1:]}
    step(half, Work(saves=[save(0, [3, 9, 4, 1, 7, 7])]), names[which])
    for block in (3, 9, 4, 1, 7):  # they are somebody else's now
        copier.fill(block, 200)
    stored(cache, 3)
    step(half, Work(loads=[load(0, [20, 21, 22, 23, 24, 25])]))
    assert reported(half) == ({"l"}, set())
    for block, source in zip(range(20, 26), (3, 9, 4, 1, 7, 7), strict=True):
        expected = b"".join(bytes([(source + i) % 256]) * LAYER_BYTES for i in range(LAYERS))
        assert copier.content(block) == expected
    half.close()
    assert copier.closed


def test_blocks_that_are_not_wanted_are_not_touched(cache: Cache) -> None:
    copier = plain()
    half = half_of(cache, copier)
    step(half, Work(saves=[save(0, [0, 1, 2, 3, 4, 5])]))
    stored(cache, 3)
    before = [copier.content(block) for block in range(BLOCKS)]
    step(half, Work(loads=[load(1, [-1, 41, 42, -1])]))
    assert reported(half) == ({"l"}, set())
    after = [copier.content(block) for block in range(BLOCKS)]
    assert after[41:43] == before[3:5]
    assert after[:41] + after[43:] == before[:41] + before[43:]


def test_later_chunks_are_saved_behind_their_prefix(cache: Cache) -> None:
    copier = plain()
    half = half_of(cache, copier)
    step(half, Work(saves=[save(0, [0, 1])]))
    step(half, Work(saves=[save(1, [2, 3, 4, 5])]))
    stored(cache, 3)
    step(half, Work(loads=[load(0, [50, 51, 52, 53, 54, 55])]))
    assert reported(half) == ({"l"}, set())
    assert [copier.content(50 + i) for i in range(6)] == [copier.content(i) for i in range(6)]


@pytest.mark.parametrize("there", [0, 1, 2])
def test_blocks_of_chunks_that_did_not_come_are_reported_with_the_load(
    cache: Cache, there: int
) -> None:
    copier = plain()
    half = half_of(cache, copier)
    if there:
        step(half, Work(saves=[save(0, list(range(2 * there)))]))
        stored(cache, there)
    step(half, Work(loads=[load(0, [20, 21, 22, 23, 24, 25])]))
    names: set[str] = set()
    failed: set[int] = set()

    def ended() -> bool:
        names.update(half.finished())
        failed.update(half.failed_blocks())
        assert bool(names) or not failed  # never before the load is reported
        return bool(names)

    wait_for(ended)
    assert failed == set(range(20 + 2 * there, 26))
    assert half.finished() == set()
    assert half.failed_blocks() == set()


@pytest.mark.parametrize("trouble", ["lease", "error", "bug"])
def test_whatever_goes_wrong_the_load_ends_and_all_its_blocks_are_bad(
    cache: Cache, trouble: str
) -> None:
    from kvferry.base.errors import ClosedError

    copier = plain()
    half = half_of(cache, copier)
    step(half, Work(saves=[save(0, [0, 1, 2, 3])]))
    stored(cache, 2)
    cache.lose_lease = trouble == "lease"
    cache.breaks = {"error": ClosedError("x"), "bug": RuntimeError("x")}.get(trouble)
    step(half, Work(loads=[load(0, [20, 21, -1, 23])]))
    assert reported(half) == ({"l"}, {20, 21, 23})


def test_the_limit_of_a_load_counts_from_when_it_begins(cache: Cache) -> None:
    """Of a burst, most wait for others, and may load all the same."""
    half = half_of(cache, plain(), load_timeout_s=0.2, load_threads=1)
    step(half, Work(saves=[save(0, [0, 1])]))
    stored(cache, 1)
    cache.go.clear()
    step(half, Work(loads=[load(0, [10 + 2 * i, 11 + 2 * i], f"r{i}") for i in range(3)]))
    wait_for(lambda: cache.limits)
    threading.Event().wait(0.3)  # longer than the limit, for those that have not begun
    cache.go.set()
    seen: set[str] = set()
    failed: set[int] = set()

    def all_seen() -> bool:
        seen.update(half.finished())
        failed.update(half.failed_blocks())
        return len(seen) == 3

    wait_for(all_seen)
    assert not failed
    assert cache.limits == [0.2] * 3
    half.close()


def test_a_load_says_what_of_the_prompt_it_is_and_what_is_ahead_of_it(cache: Cache) -> None:
    half = half_of(cache, plain())
    job = load(1, [20, 21])
    facts = {"tokens": 45, "start_tokens": 8, "computed_tokens": 12, "queued": (100, 10_000)}
    job.prompt = replace(job.prompt, **facts)
    step(half, Work(loads=[job]))
    reported(half)
    (prompt,) = cache.prompts
    assert (prompt.tokens, prompt.start_tokens, prompt.computed_tokens) == (45, 8, 12)
    assert prompt.queued == (100, 10_000)
    assert prompt.queued_at > 0
    half.close()


def test_what_steps_take_is_told_by_their_totals_without_our_copying(cache: Cache) -> None:
    now = [0.0]
    half = half_of(cache, plain(), steps=HostSteps(lambda: now[0]))
    work = Work(saves=[save(0, [0, 1])], computes=True, new_tokens=24, pairs=576, decodes=2)
    half.begin_step(work)
    now[0] += 0.5
    half._saver.copied_s += 0.2
    half.end_step()
    step(half, Work())  # computes nothing
    half.begin_step(Work(computes=True, decodes=3))
    now[0] += 0.125
    half.end_step()
    assert cache.steps == [(24, 576, 2, pytest.approx(0.3)), (0, 0, 3, 0.125)]
    half.close()


def test_loads_run_side_by_side_and_each_is_reported_once(cache: Cache) -> None:
    copier = plain()
    half = half_of(cache, copier)
    step(half, Work(saves=[save(0, [0, 1])]))
    stored(cache, 1)
    jobs = [load(0, [10 + 2 * i, 11 + 2 * i], f"r{i}") for i in range(12)]
    step(half, Work(loads=jobs))
    seen: list[str] = []

    def all_seen() -> bool:
        seen.extend(half.finished())
        return len(seen) >= 12

    wait_for(all_seen)
    assert sorted(seen) == sorted(job.request_id for job in jobs)
    assert half.failed_blocks() == set()


def test_a_slow_cache_delays_no_step_and_what_has_no_room_is_shed(cache: Cache) -> None:
    copier = plain()
    half = half_of(cache, copier, save_bytes_max=3 * LAYOUT.chunk_bytes)
    cache.go.clear()
    began = clock.now_s()
    step(half, Work(saves=[save(0, [0, 1, 2, 3])]))
    step(half, Work(saves=[save(2, [4, 5, 6, 7])]))
    step(half, Work(saves=[save(4, [8, 9])]))
    assert clock.now_s() - began < 5
    assert half.counts.read()["shed_chunks"] == 2
    cache.go.set()
    stored(cache, 3)
    step(half, Work(saves=[save(3, [6, 7])]))  # there is room again
    stored(cache, 4)


def test_a_save_that_breaks_is_counted_and_its_room_comes_back(cache: Cache) -> None:
    copier = plain()
    half = half_of(cache, copier, save_bytes_max=LAYOUT.chunk_bytes)
    cache.breaks = RuntimeError("x")
    step(half, Work(saves=[save(0, [0, 1])]))
    wait_for(lambda: half.counts.read().get("save_s"))
    assert half.counts.read()["shed_chunks"] == 1
    cache.breaks = None
    step(half, Work(saves=[save(0, [0, 1])]))
    stored(cache, 1)


def test_the_same_step_is_begun_once(cache: Cache) -> None:
    copier = plain()
    half = half_of(cache, copier)
    work = Work(saves=[save(0, [0, 1])])
    half.begin_step(work)
    half.begin_step(work)
    half.save_layer("model.layers.0.attn")
    half.begin_step(work)
    half.save_layer("model.layers.1.attn")
    half.save_layer("a layer that nobody knows")
    half.end_step()
    half.end_step()
    stored(cache, 1)
    wait_for(lambda: half.counts.read()["save_s"])
    assert half.counts.read()["saved_chunks"] == 1


def test_blocks_that_cannot_be_gathered_are_not_saved(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier = plain()

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("x")

    monkeypatch.setattr(copier, "gather_layer", broken)
    half = half_of(cache, copier)
    step(half, Work(saves=[save(0, [0, 1])]), copier.layer_names)
    wait_for(lambda: half.counts.read().get("save_s"))
    assert half.counts.read()["shed_chunks"] == 1
    assert cache.engine.contains(Prompt(HASHES[:16], CHUNK, CHUNK)) == 0


def test_what_was_gathered_is_saved_at_the_end(cache: Cache) -> None:
    copier = plain()
    half = half_of(cache, copier)
    for chunk in range(4):
        step(half, Work(saves=[save(chunk, [2 * chunk, 2 * chunk + 1])]))
    half.close()
    half.close()
    assert half.counts.read()["saved_chunks"] == 4
    step(half, Work(saves=[save(4, [8, 9])], loads=[load(0, [20, 21])]))  # too late, no harm
    assert reported(half) == ({"l"}, {20, 21})


def test_counts_are_taken_in_parts_that_add_up(cache: Cache) -> None:
    copier = plain()
    half = half_of(cache, copier)
    step(half, Work(saves=[save(0, [0, 1])]))
    stored(cache, 1)
    wait_for(lambda: half.counts.read().get("save_s"))
    first = half.counts.take()["counters"]
    assert first["vllm:kvferry_saved_chunks"] == {"": 1}
    assert first["vllm:kvferry_saved_bytes"] == {"": LAYOUT.chunk_bytes}
    assert "vllm:kvferry_loads" not in first
    assert "vllm:kvferry_lost_chunks" not in first  # in `stats` alone
    assert half.counts.take() == {}
    step(half, Work(loads=[load(0, [20, 21])]))
    reported(half)
    wait_for(lambda: "load_s" in half.counts.read())
    second = half.counts.take()["counters"]
    assert second["vllm:kvferry_loads"] == second["vllm:kvferry_loaded_chunks"] == {"": 1}
    assert "vllm:kvferry_saved_chunks" not in second
    assert half.counts.read()["saved_chunks"] == 1


def test_loads_that_nobody_was_told_of_are_reported_by_who_comes_after(cache: Cache) -> None:
    copier = plain()
    half = half_of(cache, copier)
    step(half, Work(saves=[save(0, [0, 1])]))
    stored(cache, 1)
    step(half, Work(loads=[load(0, [20, 21], "over")]))
    wait_for(lambda: half.counts.read()["loads"])
    cache.go.clear()
    step(half, Work(loads=[load(0, [22, -1], "running")]))
    left = half.abandon()  # other tensors have come
    with opened_cache() as other:
        heir = half_of(other, plain())
        heir.inherit(left)
        assert reported(heir, 2) == ({"over", "running"}, {20, 21, 22})
        heir.close()


@pytest.mark.parametrize(
    ("reason", "counted"),
    [
        ("not_worth_loading", "declined_chunks"),
        ("cut", "declined_chunks"),
        ("deadline", "late_chunks"),
        ("evicted", "failed_chunks"),
        ("unavailable", "failed_chunks"),
    ],
)
def test_chunks_that_did_not_come_are_counted_as_what_happened(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, reason: str, counted: str
) -> None:
    half = half_of(cache, plain())
    step(half, Work(saves=[save(0, [0, 1])]))
    stored(cache, 1)
    retrieve = cache.retrieve

    def partly(*args: Any, **limits: Any) -> Any:
        hit = retrieve(*args, **limits)
        hit.reason = reason
        return hit

    monkeypatch.setattr(cache, "retrieve", partly)
    step(half, Work(loads=[load(0, [20, 21, 22, 23, 24, 25])]))
    assert reported(half) == ({"l"}, {22, 23, 24, 25})
    counts = half.counts.read()
    names = ("loaded_chunks", "declined_chunks", "late_chunks", "failed_chunks")
    assert {name: counts[name] for name in names} == {
        **dict.fromkeys(names, 0),
        "loaded_chunks": 1,
        counted: 2,
    }


def test_the_end_has_a_limit_and_says_what_is_lost(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvferry.integrations.vllm.connector.worker._CLOSE_S", 0.2)
    half = half_of(cache, plain())
    closed: list[float] = []
    monkeypatch.setattr(cache, "close", closed.append)
    cache.go.clear()  # a store that hangs
    step(half, Work(saves=[save(0, [0, 1]), save(1, [2, 3, 4, 5])]))
    began = clock.now_s()
    half.close()
    assert clock.now_s() - began < 5
    assert max(closed) <= 0.2
    assert half.counts.read()["lost_chunks"] == 3
    assert "3 chunks were not saved before the end" in caplog.text
    cache.go.set()


def test_pages_are_pinned_as_long_as_the_half_is_open(cache: Cache) -> None:
    copier = plain()
    l1 = cache.engine.memory.whole
    half = half_of(cache, copier, save_bytes_max=3 * LAYOUT.chunk_bytes, memory=[l1])
    buffers, memory = copier.pinned
    assert memory is l1
    assert buffers.nbytes >= 3 * LAYOUT.chunk_bytes
    half.close()
    assert copier.closed


def test_each_count_has_the_series_that_dashboards_know() -> None:
    shown = {count.series.removeprefix("vllm:kvferry_") for count in COUNTS if count.text}
    assert shown == {
        *("loads", "loaded_chunks", "loaded_bytes", "failed_chunks", "declined_chunks"),
        *("late_chunks", "load_seconds", "saved_chunks", "saved_bytes", "known_chunks"),
        *("shed_chunks", "save_seconds", "written_chunks", "refused_chunks"),
    }
