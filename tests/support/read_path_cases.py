"""Cases for `support.read_path`: those of a table that people read, and any number of random ones.

The table is that of decision 0012: how quick loading is beside computing, how far away the store
is, and what it does wrong. Its times are parts of the time of computing a prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from kvferry.client.batch import Status
from support.read_path import Case, Change, Replay, Request, Store
from support.scripted_store import Flowing

T = TypeVar("T")
MIB = 1 << 20
ASKS, READS, SEES = (
    ("asks first", ()),
    ("reads at once", (("pages_on_demand", True),)),
    ("has a view", (("sees", True),)),
)
How = tuple[str, tuple[tuple[str, Any], ...]]


# --- The table ---


def table() -> Iterator[tuple[str, Case]]:
    """Each line's name, and what happens."""
    for how in (ASKS, READS, SEES):
        for rtt_ms in (0.2, 10.0, 100.0):
            for percent in (10, 30, 60, 100, 130, 170, 300, 2000):
                name = f"{how[0]}, {rtt_ms:g} ms, {percent} %"
                yield name, _in_turn(percent, rtt_ms, how)
    for how in (READS, SEES):
        for compute_s, chunk_bytes in ((0.013, 10 << 10), (0.24, 384 << 10), (4.0, MIB)):
            for percent in (60, 300):
                name = f"{how[0]}, {percent} %, computing {compute_s:g} s"
                case = _in_turn(percent, 1.0, how, compute_s=compute_s, chunk_bytes=chunk_bytes)
                yield name, case
    for how in (READS, SEES):
        for name, change in _wrong(1.0):
            yield f"{how[0]}, {name}", _in_turn(500, 1.0, how, change=change)
    yield (
        "a view, in lumps and side by side, 30 %",
        _in_turn(30, 0.2, ("", (("sees", True), ("together", True), ("lump_bytes", 256 << 10)))),
    )
    grows = Flowing.growing(500 / 100 * 24 * MIB, 0.03, 8)
    yield "TCP begins slowly at 30 ms, 500 %", _in_turn(500, 30.0, READS, flowing=grows)
    for name, has in (("half and all", (12, 24)), ("all and all", (24, 24)), ("12, 18", (12, 18))):
        one, two = (_store(500, 1.0, READS, has=(n,)) for n in has)
        requests = tuple(Request(number, 24) for number in range(4))
        yield f"two stores: {name}", Case((one, two), requests)
    slow, quick = _store(30, 1.0, ASKS), _store(500, 1.0, ASKS)
    requests = tuple(Request(number, 24) for number in range(5))
    yield "two stores: the first one slow", Case((slow, quick), requests)
    for queued in (1, 3):
        requests = tuple(Request(number, 24, queued=queued) for number in range(4))
        yield f"60 %, {queued} queued", Case((_store(60, 1.0, READS),), requests)
    for percent in (60, 130, 600):
        first = tuple(Request(number, 24) for number in range(3))
        burst = tuple(
            Request(3 + n, 24, queued=n, joins=n > 0, looks=bool(n % 2)) for n in range(8)
        )
        store = _store(percent / 2, 1.0, READS)  # of chunks half as large
        yield f"eight at once, {percent} %", Case((store,), first + burst, chunk_bytes=MIB // 2)


def row(name: str, happened: Replay) -> str:
    """A line of the table: what requests took, what was there, and why it was no more."""
    seen = [
        f"{told.ttft_s / told.compute_s:.3f}{_short(told.held, told.chunks, told.reason)}"
        for told in happened.told
    ]
    return f"{name}: {' '.join(seen)}"


def _short(held: int, chunks: int, reason: str) -> str:
    if held == chunks:
        return ""
    word = {"not_worth_loading": "no", "never_stored": "lacks"}.get(reason, reason)
    return f"({word} {held})" if held else f"({word})"


def _in_turn(
    percent: float,
    rtt_ms: float,
    how: How,
    *,
    compute_s: float = 1.0,
    chunk_bytes: int = MIB,
    flowing: Flowing | None = None,
    change: Sequence[tuple[int, str, Any]] = (),
) -> Case:
    """Requests one after the other at a store that gives so much of what would break even."""
    count = 8 if change else 5
    changes = tuple(Change(4 * compute_s * at, 0, what, value) for at, what, value in change)
    # Room between them, so that all of one are behind a change, or before it.
    requests = [Request(0, 24)]
    for number in range(1, count):
        requests.append(Request(number, 24, gap_s=4 * compute_s, joins=True))
    bytes_s = percent / 100 * 24 * chunk_bytes / compute_s
    store = Store(flowing or Flowing.steady(bytes_s), rtt_ms / 1e3, (24,), how=how[1])
    how_much = {"compute_s": compute_s, "chunk_bytes": chunk_bytes, "pages": 48}
    return Case((store,), tuple(requests), changes, **how_much)  # type: ignore[arg-type]


def _store(percent: float, rtt_ms: float, how: How, has: tuple[int, ...] = (24,)) -> Store:
    bytes_s = percent / 100 * 24 * MIB
    return Store(Flowing.steady(bytes_s), rtt_ms / 1e3, has, how=how[1])


def _wrong(compute_s: float) -> Iterator[tuple[str, list[tuple[int, str, Any]]]]:
    """What goes wrong before the fourth request, and is well again before the sixth."""
    steady = Flowing.steady(120 * MIB)
    wrong: tuple[tuple[str, str, Any, Any], ...] = (
        ("silent", "answer_s", float("inf"), 0.0),
        ("answers after 0.2", "answer_s", 0.2 * compute_s, 0.0),
        ("sends nothing", "hangs", True, False),
        ("100 ms away", "rtt_s", 0.1, 0.001),
        ("away", "available", False, True),
        ("takes no more", "refuses", True, False),
        ("a sixth as fast", "flowing", Flowing.steady(0.8 * 24 * MIB), steady),
        ("says nothing of keys", "fails", Status.UNAVAILABLE, None),
    )
    for name, what, value, well in wrong:
        yield name, [(3, what, value), (5, what, well)]
    stops = Flowing(((0.0, 120 * MIB), (0.05, 0.0), (0.6, 120 * MIB)))
    yield "stops midway", [(3, "flowing", stops), (5, "flowing", steady)]


# --- Random ones ---


class Dice:
    """Choices that are the same everywhere, by one number."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(f"a request for a prefix, {number}")

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def below(self, count: int) -> int:
        return int(self._random.random() * count)

    def of(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def between(self, least: float, most: float) -> float:
        """By its magnitude."""
        return float(least * (most / least) ** self._random.random())

    def among(self, choices: Sequence[tuple[float, Callable[[], T]]]) -> T:
        """One of these, each with its weight."""
        at = self._random.random() * sum(weight for weight, _ in choices)
        for weight, make in choices:
            at -= weight
            if at < 0:
                return make()
        return choices[-1][1]()


def random_case(number: int) -> Case:
    """The same one for the same number."""
    dice = Dice(number)
    chunks = dice.of((1, 2, 4, 8, 12, 16, 24, 24, 24, 40))
    bursts = dice.chance(0.25)
    chunk_bytes = dice.of((64 << 10, 320 << 10, 320 << 10, 512 << 10, MIB, 2 * MIB))
    if bursts:
        chunk_bytes = min(chunk_bytes, MIB)
    compute_s = dice.between(0.02, 3.0)
    stores = tuple(
        _random_store(dice, chunks, chunk_bytes, compute_s)
        for _ in range(dice.of((1, 1, 1, 1, 1, 1, 1, 2, 2, 3)))
    )
    is_small = chunks <= 8 and chunk_bytes <= 320 << 10
    requests = _random_requests(dice, chunks, compute_s, bursts=bursts, is_small=is_small)
    span_s = compute_s * (1 if bursts else len(requests))
    changes = tuple(
        change
        for _ in range(dice.of((0, 0, 0, 1, 1, 2)))
        for change in _random_change(dice, stores, compute_s, span_s, chunks * chunk_bytes)
    )
    room = 2 * chunks if not bursts else len(requests) * chunks
    return Case(
        stores,
        requests,
        changes,
        compute_s=0.0 if dice.chance(0.05) else compute_s,
        linear=dice.of((1.0, 0.7, 0.3)),
        fixed_s=compute_s * dice.of((0.0, 0.0, 0.02)),
        chunks=chunks,
        chunk_tokens=dice.of((16, 128, 256)),
        chunk_bytes=chunk_bytes,
        lookup_s=dice.between(0.01, 0.3) if dice.chance(0.15) else None,
        pages=room if dice.chance(0.85) else 1 + dice.below(2 * chunks),
    )


def _random_store(dice: Dice, chunks: int, chunk_bytes: int, compute_s: float) -> Store:
    how_much = dice.between(0.4, 4.0) if dice.chance(0.6) else dice.between(0.08, 30.0)
    bytes_s = how_much * chunks * chunk_bytes / compute_s
    rtt_s = dice.of((0.0002, 0.002, 0.01, 0.03, 0.1)) * dice.between(0.7, 1.4)
    has = tuple(
        dice.among(
            [
                (7.0, lambda: chunks),
                (1.2, lambda: 0),
                (1.8, lambda: dice.below(chunks + 1)),
            ]
        )
        for _ in range(4)
    )
    how = [
        ("sees", dice.chance(0.3)),
        ("pages_on_demand", dice.chance(0.5)),
        ("together", dice.chance(0.3)),
        ("lump_bytes", dice.of((1, 1, 64 << 10, 256 << 10))),
        ("drops", dice.chance(0.5)),
    ]
    lets_go = dice.chance(0.55)
    release_s = dice.of((0.0, 0.005, 0.03, 0.2)) if lets_go else float("inf")
    bad = dice.of((Status.CORRUPT, Status.MISS, Status.SIZE_MISMATCH, Status.SERVER_ERROR))
    return Store(
        _random_flowing(dice, bytes_s, rtt_s, chunks * chunk_bytes),
        rtt_s,
        has,
        lacks=frozenset({dice.below(chunks)}) if dice.chance(0.06) else frozenset(),
        bad=((dice.below(chunks), bad),) if dice.chance(0.06) else (),
        lets_go=lets_go,
        contact_s=dice.between(0.01, 0.3) if dice.chance(0.05) else 0.0,
        how=(*how, ("release_s", release_s)),
    )


def _random_flowing(dice: Dice, bytes_s: float, rtt_s: float, size_bytes: int) -> Flowing:
    """Of so many bytes a second, where nothing is in the way."""
    at_s = dice.between(0.05, 1.0) * size_bytes / bytes_s

    def lasts() -> float:
        return at_s + dice.between(0.1, 3.0) * size_bytes / bytes_s

    return dice.among(
        [
            (5.0, lambda: Flowing.steady(bytes_s)),
            (2.0, lambda: Flowing.growing(bytes_s, rtt_s, dice.of((1, 4, 8)))),
            (1.0, lambda: Flowing(((0.0, bytes_s), (at_s, 0.0), (lasts(), bytes_s)))),
            (1.0, lambda: Flowing(((0.0, bytes_s), (at_s, bytes_s * dice.between(0.03, 0.6))))),
            (0.7, lambda: Flowing(((0.0, bytes_s * dice.between(0.1, 0.8)), (at_s, bytes_s)))),
            (0.5, lambda: Flowing(((0.0, bytes_s), (at_s, 0.0)))),
        ]
    )


def _random_change(
    dice: Dice, stores: Sequence[Store], compute_s: float, span_s: float, size_bytes: int
) -> Sequence[Change]:
    """Something goes wrong at a store, and well again."""
    number = dice.below(len(stores))
    store = stores[number]
    begins_s = dice.between(0.02, 1.0) * span_s
    ends_s = begins_s + dice.between(0.1, 2.0) * span_s
    slower = Flowing.steady(dice.between(0.08, 10.0) * size_bytes / compute_s)
    sees = dict(store.how)["sees"]
    what, value, well = dice.of(
        (
            ("answer_s", float("inf"), 0.0),
            ("answer_s", dice.between(0.02, 1.0) * compute_s, 0.0),
            ("hangs", True, False),
            ("rtt_s", dice.between(0.001, 0.3), store.rtt_s),
            ("flowing", slower, store.flowing),
            ("available", False, True),
            ("refuses", True, False),
            ("fails", dice.of((Status.UNAVAILABLE, Status.SERVER_ERROR)), None),
            ("sees", not sees, sees),
        )
    )
    changes = [Change(begins_s, number, what, value), Change(ends_s, number, what, well)]
    if dice.chance(0.3):
        changes.append(Change(ends_s, number, "reset"))
    return changes


def _random_requests(
    dice: Dice, chunks: int, compute_s: float, *, bursts: bool, is_small: bool
) -> tuple[Request, ...]:
    count = dice.of((2, 3, 4, 5, 8)) if bursts else 1 + dice.below(4)
    requests = []
    for number in range(count):
        looks = dice.chance(0.35)
        gap_s = dice.of((0.0, 0.01, 0.1, 1.0)) * compute_s * dice.between(0.5, 2.0)
        if not bursts and dice.chance(0.1):  # what was learnt is old
            gap_s = dice.between(30.0, 300.0)
        document = dice.below(max(1, number)) if dice.chance(0.2) else number
        requests.append(
            Request(
                document,
                chunks if dice.chance(0.8) else 1 + dice.below(chunks),
                gap_s=gap_s,
                joins=number > 0 and (bursts or dice.chance(0.15)),
                looks=looks,
                retrieves=not looks or dice.chance(0.8),
                into=is_small and not looks and dice.chance(0.3),
                pause_s=dice.between(0.001, 0.3) * compute_s if dice.chance(0.5) else 0.0,
                touch=dice.chance(0.8),
                lookup_s=dice.between(0.005, 0.3) if looks and dice.chance(0.2) else None,
                limit_s=dice.between(0.05, 1.5) * compute_s if dice.chance(0.12) else 8.0,
                queued=float(number if bursts else dice.of((0, 0, 0, 0, 1, 3))),
                queued_ago_s=dice.between(0.01, 1.0) * compute_s if dice.chance(0.2) else 0.0,
                computed=dice.below(chunks) if dice.chance(0.05) else 0,
                clears=dice.chance(0.8),
            )
        )
    return tuple(requests)
