"""The half of a connector in a worker beside a device, which does things behind the step."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kvferry.chunks.prompt import Prompt
from kvferry.integrations.vllm.connector.interfaces import Work
from support import clock
from support.vllm_shapes import SlowDevice
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


def test_on_a_device_a_step_does_not_wait_but_who_gets_the_blocks_does(cache: Cache) -> None:
    device = SlowDevice(BLOCKS, LAYERS, LAYER_BYTES)
    for block in range(BLOCKS):
        device.fill(block, block)
    half = half_of(cache, device)
    step(half, Work(saves=[save(0, [0, 1])]), device.layer_names[:1])
    assert device.begun.wait(10)
    half.begin_step(Work(given=[5, 6, -1]))  # nobody gets what is still read
    later = threading.Thread(target=half.begin_step, args=(Work(given=[1]),))
    later.start()
    later.join(0.05)
    assert later.is_alive()
    device.go.set()
    later.join(10)
    assert not later.is_alive()
    device.fill(0, 99)
    device.fill(1, 99)
    stored(cache, 1)
    prompt = Prompt(HASHES[:16], CHUNK, CHUNK)
    with cache.engine.retrieve(prompt) as hit:
        data = bytes(hit.pages[0])
    assert data == b"".join(
        bytes([block + layer]) * LAYER_BYTES for layer in range(LAYERS) for block in (0, 1)
    )


def test_steps_that_run_ahead_of_a_device_are_all_saved_in_the_room_of_one(cache: Cache) -> None:
    device = SlowDevice(BLOCKS, LAYERS, LAYER_BYTES)
    for block in range(BLOCKS):
        device.fill(block, block)
    half = half_of(cache, device, save_bytes_max=2 * LAYOUT.chunk_bytes)
    step(half, Work(saves=[save(0, [0, 1, 2, 3])]), device.layer_names)
    step(half, Work(saves=[save(2, [4, 5])]))
    step(half, Work(saves=[save(3, [6, 7])]))
    device.go.set()
    stored(cache, 4)
    wait_for(lambda: half.counts.read()["saved_chunks"] == 4)
    assert half.counts.read()["shed_chunks"] == 0
    with cache.engine.retrieve(Prompt(HASHES[: 4 * 16], 4 * CHUNK, CHUNK)) as hit:
        assert [bytes(page)[0] for page in hit.pages] == [0, 2, 4, 6]


def test_blocks_that_wait_for_room_behind_a_device_are_given_away_at_once(cache: Cache) -> None:
    device = SlowDevice(BLOCKS, LAYERS, LAYER_BYTES)
    device.go.set()
    half = half_of(cache, device, save_bytes_max=LAYOUT.chunk_bytes)
    cache.go.clear()  # handing over hangs
    step(half, Work(saves=[save(0, [0, 1])]))
    step(half, Work(saves=[save(1, [2, 3])]))
    began = clock.now_s()
    half.begin_step(Work(given=[3]))
    assert clock.now_s() - began < 5
    cache.go.set()
    stored(cache, 1)
    wait_for(lambda: half.counts.read()["shed_chunks"] == 1)
    assert half.counts.read()["saved_chunks"] == 1
    half.begin_step(Work())
    step(half, Work(saves=[save(1, [2, 3])]))
    stored(cache, 2)


def test_a_store_that_hangs_does_not_keep_blocks_from_those_they_are_given_to(cache: Cache) -> None:
    device = SlowDevice(BLOCKS, LAYERS, LAYER_BYTES)
    device.go.set()
    half = half_of(cache, device)
    cache.go.clear()  # handing over hangs
    step(half, Work(saves=[save(0, [0, 1])]))
    step(half, Work(saves=[save(1, [2, 3])]))
    began = clock.now_s()
    half.begin_step(Work(given=[2, 3]))
    assert clock.now_s() - began < 5
    device.fill(2, 99)
    cache.go.set()
    stored(cache, 2)
    assert half.counts.read()["shed_chunks"] == 0
    half.close()


def test_blocks_that_are_taken_away_while_they_are_gathered_are_never_stored(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvferry.integrations.vllm.connector.worker._RELEASE_BLOCKS_S", 0.05)
    device = SlowDevice(BLOCKS, LAYERS, LAYER_BYTES)
    half = half_of(cache, device)
    step(half, Work(saves=[save(0, [0, 1]), save(1, [2, 3])]))  # the second one waits for its turn
    assert device.begun.wait(10)
    assert half.release_blocks() is False  # the device does not end
    for block in range(4):
        device.fill(block, 200)  # unmapped, and mapped again
    device.go.set()
    wait_for(lambda: half.counts.read()["shed_chunks"] == 2)
    assert cache.engine.contains(Prompt(HASHES[:32], 2 * CHUNK, CHUNK)) == 0
    step(half, Work(saves=[save(0, [0, 1])]))  # awake
    stored(cache, 1)
    half.close()


def test_who_takes_blocks_away_waits_for_what_reads_them(cache: Cache) -> None:
    device = SlowDevice(BLOCKS, LAYERS, LAYER_BYTES)
    half = half_of(cache, device)
    step(half, Work(saves=[save(0, [0, 1])]))
    assert device.begun.wait(10)
    release_blocks: list[bool] = []
    taker = threading.Thread(target=lambda: release_blocks.append(half.release_blocks()))
    taker.start()
    taker.join(0.05)
    assert taker.is_alive()
    device.go.set()
    taker.join(10)
    assert release_blocks == [True]
    half.close()


def test_nothing_is_loaded_into_blocks_that_were_taken_away(cache: Cache) -> None:
    copier = plain()
    half = half_of(cache, copier)
    step(half, Work(saves=[save(0, [0, 1])]))
    stored(cache, 1)
    cache.go.clear()
    step(half, Work(loads=[load(0, [20, 21])]))
    before = copier.content(20)
    assert half.release_blocks()
    cache.go.set()
    assert reported(half) == ({"l"}, {20, 21})
    assert copier.content(20) == before
    step(half, Work(loads=[load(0, [20, 21])]))
    assert reported(half) == ({"l"}, set())
