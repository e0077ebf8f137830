"""The read path of a cache on a clock that goes from event to event, and all that it decides.

A `Case` says what stores have, how they answer and flow, what changes meanwhile, and what requests
come. `replay` has them done by a `Retriever` as a cache does it, in steps, and tells line by line
what was asked and read when, what was withdrawn, what came of each request, what it was predicted
to take, what the account was charged, and what was learnt of the stores.

Only what is below `kvferry.cache` and public is used: `Retriever`, `Tier`, `Memory`, `PrefillModel`
and `Prompt`. So the inside can be changed, and what it decides be compared with before.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

from kvferry import _native
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.retriever import Gathered, Retriever
from kvferry.cache.memory import Memory
from kvferry.cache.steps import Steps, Wait
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt, read_prompt
from kvferry.client.batch import Status
from support.scripted_store import Flowing, ScriptedStore
from support.timed_store import FakeClock

# Modules with threads of their own, which may live longer than a test.
APART = {"kvferry.cache.store.process_breaks"}
BEGINS_AT = 1000.0
# Nothing is waited for so long behind the last request.
ENDS_S = 20.0


@dataclass(frozen=True)
class Change:
    """At this moment, counted from the beginning, a store is different."""

    at_s: float
    store: int
    what: str  # an attribute of `ScriptedStore`, or "reset"
    value: Any = None


@dataclass(frozen=True)
class Store:
    """A store; see `ScriptedStore`.

    Attributes:
        has: How many leading chunks of each document it has.
        lacks: Chunks that it has not, whatever is behind them.
        bad: Chunks that come to something else when they are read.
        contact_s: For how long it is waited for to be reached at all.
    """

    flowing: Flowing
    rtt_s: float
    has: tuple[int, ...]
    lacks: frozenset[int] = frozenset()
    bad: tuple[tuple[int, Status], ...] = ()
    lets_go: bool = True
    contact_s: float = 0.0
    how: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Request:
    """A request for the first chunks of a document.

    Attributes:
        gap_s: How long after the one before it.
        joins: That one came; else it is computed.
        looks, retrieves: What is called; `into` buffers of the caller.
        pause_s: Between both.
        touch: Of the lookup.
        lookup_s, limit_s: Limits of the question, and of all.
        queued: How many prompts like it are computed first, of which some time has passed.
        computed: Leading chunks that the engine has itself.
        clears: Memory is empty when it comes, if nobody else is at work.
    """

    document: int
    chunks: int
    gap_s: float = 0.0
    joins: bool = False
    looks: bool = False
    retrieves: bool = True
    into: bool = False
    pause_s: float = 0.0
    touch: bool = True
    lookup_s: float | None = None
    limit_s: float = 30.0
    queued: float = 0.0
    queued_ago_s: float = 0.0
    computed: int = 0
    clears: bool = True


@dataclass(frozen=True)
class Case:
    """What happens.

    Attributes:
        compute_s: Of a prompt of `chunks` chunks, of which `linear` in proportion to its tokens; 0:
            nobody knows.
        lookup_s: The limit of a cache for questions.
        pages: Of memory.
    """

    stores: tuple[Store, ...]
    requests: tuple[Request, ...]
    changes: tuple[Change, ...] = ()
    compute_s: float = 1.0
    linear: float = 0.7
    fixed_s: float = 0.0
    chunks: int = 24
    chunk_tokens: int = 128
    chunk_bytes: int = 1 << 20
    lookup_s: float | None = None
    pages: int = 400

    @property
    def tokens(self) -> int:
        """Of a prompt of `chunks` chunks, some behind the last full one included."""
        return self.chunks * self.chunk_tokens + self.chunk_tokens // 3

    @cached_property
    def prefill(self) -> PrefillModel:
        if not self.compute_s:
            return PrefillModel()
        c, d = self.linear / self.tokens, (1 - self.linear) / self.tokens**2
        return PrefillModel(self.fixed_s, c * self.compute_s, d * self.compute_s, fixed=True)


@dataclass
class Told:
    """What came of a request, as parts of the time of computing it."""

    name: str
    chunks: int
    held: int = 0
    ttft_s: float = 0.0
    compute_s: float = 0.0
    reason: str = ""


@dataclass(eq=False)
class _Task:
    """Steps that go on."""

    steps: Steps[Any]
    over: Callable[[Any], object]
    wait: Wait | None = None
    until: float = 0.0
    waits: int = 0
    asked_s: float = 0.0


class _Pause:
    """What a request waits for that does something else."""

    done = False

    def wait(self, timeout_s: float) -> None:
        return None


@dataclass
class Replay:
    """A case that happens."""

    case: Case
    clock: FakeClock
    lines: list[str] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        case, clock = self.case, self.clock
        clock.now = BEGINS_AT
        pool = _native.PagePool(case.chunk_bytes, case.pages, hugetlb=False, prefault=False)
        index = _native.ChunkCache(case.pages, "LRU", pool=pool)
        self.memory = Memory(pool, index, case.chunk_bytes)
        self.stores = [self._store(number, store) for number, store in enumerate(case.stores)]
        self.tiers = [
            Tier(made.name, made, case.chunk_bytes, lets_go=store.lets_go)  # type: ignore[arg-type]
            for made, store in zip(self.stores, case.stores, strict=True)
        ]
        for tier, store in zip(self.tiers, case.stores, strict=True):
            tier.contact_until = clock.now + store.contact_s if store.contact_s else 0.0
        self._later: list[Steps[object]] = []
        self.retriever = Retriever(
            self.memory,
            [SimpleNamespace(tier=tier) for tier in self.tiers],  # type: ignore[misc]
            case.prefill,
            lambda: case.lookup_s,
            1,
            self._later.append,
        )
        self._watch_account()
        self._tasks: list[_Task] = []
        self._active = 0

    def run(self) -> None:
        """All of it."""
        changes = sorted(self.case.changes, key=lambda change: change.at_s)
        requests, arrival, number = list(self.case.requests), self.clock.now, 0
        arrival += requests[0].gap_s
        joined = True  # whether the next one waits for no other
        ends_at = math.inf
        while requests or self._tasks:
            now = self.clock.now
            while changes and BEGINS_AT + changes[0].at_s <= now:
                self._change(changes.pop(0))
            while requests and joined and arrival <= now:
                self._arrive(requests.pop(0), number)
                number += 1
                if requests:
                    joined, arrival = requests[0].joins, now + requests[0].gap_s
            self._go_on()
            if requests and not joined and not self._active:
                joined = True
                arrival = max(now, self._free_at) + requests[0].gap_s
            if not requests and not self._active:
                ends_at = min(ends_at, now + ENDS_S)
            moments = [self._next(task) for task in self._tasks]
            moments += [BEGINS_AT + change.at_s for change in changes[:1]]
            moments += [arrival] if requests and joined else []
            self.clock.now = max(now, min(moments, default=ends_at))
            if self.clock.now >= ends_at:
                break
        for task in self._tasks:
            self.say("in the background is left")
            task.steps.close()
        self.say(f"{self.retriever.pending.sweep()} jobs have not ended")

    def say(self, what: str) -> None:
        self.lines.append(f"{1e3 * (self.clock.now - BEGINS_AT):.4f} {what}")

    # --- Requests ---

    def _arrive(self, request: Request, number: int) -> None:
        case, now = self.case, self.clock.now
        if request.clears and not self._active:
            self.memory.cache.clear()
        name = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[number]
        tokens = request.chunks * case.chunk_tokens + case.chunk_tokens // 3
        ids: Any = array("I", [request.document]) * tokens
        prompt = read_prompt(ids, case.chunk_tokens, b"")
        queued = int(request.queued * tokens), int(request.queued * tokens**2)
        prompt = Prompt(
            prompt.hashes,
            tokens,
            case.chunk_tokens,
            queued=queued,
            queued_at=now - request.queued_ago_s if request.queued_ago_s else 0.0,
            computed_tokens=request.computed * case.chunk_tokens,
        )
        for made, store in zip(self.stores, case.stores, strict=True):
            has = store.has[request.document % len(store.has)]
            chunks = set(range(min(has, request.chunks))) - store.lacks
            name_of = f"{'abcdefghij'[request.document % 10]}"
            made.has(prompt, chunks, name_of)
            for chunk, status in store.bad:
                made.has(prompt, chunks & {chunk}, name_of, status)
        _, rest = prompt.behind_computed()
        compute_s = case.prefill.predict_s(tokens, prompt.computed_tokens)
        told = Told(name, rest.chunks, compute_s=compute_s)
        self.told.append(told)
        self._active += 1
        self.say(f"{name} comes: {request.chunks} chunks, {1e3 * compute_s:.4f} ms to compute")
        self._begin(self._life(request, rest, told), partial(self._over, told, rest, now))

    def _life(self, request: Request, prompt: Prompt, told: Told) -> Steps[None]:
        """What an engine does for it."""
        retriever, deadline = self.retriever, self.clock.now + request.limit_s
        if request.looks:
            how = {"touch": request.touch, "begin": request.retrieves}
            found = yield from retriever.looking(prompt, request.lookup_s, deadline, **how)
            told.reason = found.reason
            self.say(
                f"{told.name} finds {found.tokens} tokens worth {found.worth_tokens}, "
                f"{found.arriving_tokens} arriving, {dict(found.tiers)} {found.reason!r}"
            )
            if not request.retrieves or not found.worth_tokens:
                return
            if request.pause_s:
                yield Wait(_Pause(), request.pause_s)
        here = self.memory.ready(prompt)[0]
        if request.looks and here == prompt.chunks:
            gathered = Gathered(here, bytearray(), reason="never_stored")
            retriever.credit(prompt, gathered)
        else:
            size = self.case.chunk_bytes
            into = [bytearray(size) for _ in range(prompt.chunks)] if request.into else None
            gathered = yield from retriever.gathering(prompt, deadline, into)
        told.reason = gathered.reason
        self._gathered(told, gathered)

    def _gathered(self, told: Told, gathered: Gathered) -> None:
        waited = ", waited for others" if gathered.waited else ""
        self.say(
            f"{told.name} gathered {gathered.memory_chunks} here and {gathered.chunks}, "
            f"{gathered.reason!r}{waited}, {sum(gathered.copied)} copied: asking "
            f"{_ms(gathered.lookup_s)}, loading {_ms(gathered.load_s)}"
        )
        for loaded in gathered.loads:
            self.say(f"{told.name} loaded to {loaded.end} in {_ms(loaded.took_s)} {loaded.reason}")
        plan = gathered.plan
        if plan is not None:
            chosen = plan.decision
            offers = [
                f"{offer.store} to {offer.end_token} in {_ms(offer.load_s)}"
                for offer in plan.offers
            ]
            self.say(
                f"{told.name} chose {chosen.tokens} ({chosen.reason}) of {offers}: load "
                f"{_ms(chosen.load_s)}, then compute {_ms(chosen.prefill_s)}, all "
                f"{_ms(chosen.recompute_s)}"
            )

    def _over(self, told: Told, prompt: Prompt, came_at: float, _: object) -> None:
        self._active -= 1
        told.held = self.memory.ready(prompt)[0]
        rest_s = self.case.prefill.predict_s(prompt.tokens, prompt.position(told.held))
        told.ttft_s = self.clock.now - came_at + rest_s
        self._free_at = max(self.clock.now + rest_s, came_at + 1e-3)
        self.say(f"{told.name} has {told.held} of {prompt.chunks}, first token {_ms(told.ttft_s)}")
        for tier in self.tiers:
            figures = tier.figures()
            self.say(
                f"{tier.name} is thought to take {_ms(figures['fixed_s'])} and give "
                f"{figures['bandwidth_bytes_s']:.6g} B/s, {figures['samples']} samples, "
                f"has {tier.odds:.6f}, predicts {_ms(tier.predict_s(8))}, "
                f"{figures['drained_chunks']} drained"
                f"{', measured' if tier.measured else ''}{', silent' if tier.silent else ''}"
            )

    # --- The clock ---

    _free_at = BEGINS_AT

    def _begin(self, steps: Steps[Any], over: Callable[[Any], object]) -> None:
        self._tasks.append(_Task(steps, over))

    def _go_on(self) -> None:
        """Do all that can be done at this moment."""
        moved = True
        while moved:
            moved = False
            while self._later:
                self._begin(self._later.pop(0), self._background_over)
            for task in list(self._tasks):
                moved |= self._advance(task)

    def _advance(self, task: _Task) -> bool:
        """Whether it went on."""
        began = task.waits
        try:
            if task.wait is None:
                self._waits(task, next(task.steps))
            assert task.wait is not None
            while task.wait.of.done or self.clock.now >= task.until:
                self._waits(task, task.steps.send(task.wait.of.wait(0.0)))
        except StopIteration as end:
            self._tasks.remove(task)
            self.say(f"over after {task.waits} waits, {_ms(task.asked_s)} at most")
            task.over(end.value)
            return True
        return task.waits > began

    def _waits(self, task: _Task, wait: Wait) -> None:
        task.wait, task.until = wait, self.clock.now + wait.timeout_s
        task.waits += 1
        task.asked_s += wait.timeout_s

    def _next(self, task: _Task) -> float:
        """When it can go on by itself."""
        assert task.wait is not None
        return min(task.until, getattr(task.wait.of, "ends_at", math.inf))

    def _background_over(self, _: object) -> None:
        self.say("in the background is over")

    # --- Stores ---

    def _store(self, number: int, store: Store) -> ScriptedStore:
        name = ("one", "two", "three")[number]
        how = (store.flowing, store.rtt_s, self.say)
        made = ScriptedStore(self.clock, name, self.case.chunk_bytes, *how)
        for what, value in store.how:
            setattr(made, what, value)
        return made

    def _change(self, change: Change) -> None:
        self.say(f"{self.stores[change.store].name}: {change.what} {change.value}")
        if change.what == "reset":
            self.stores[change.store].reset()
        else:
            setattr(self.stores[change.store], change.what, change.value)

    def _watch_account(self) -> None:
        account: Any = self.retriever.account
        opens, closes = account.open, account.close

        def opened(base_s: float) -> Any:
            found = opens(base_s)
            allowed_s, lent_s = found
            self.say(f"account: {_ms(allowed_s)} for {_ms(base_s)}, {_ms(lent_s)} lent")
            return found

        def closed(base_s: float, regret_s: float, lent_s: float) -> None:
            self.say(f"account: {_ms(regret_s)} of {_ms(base_s)} lost, {_ms(lent_s)} back")
            closes(base_s, regret_s, lent_s)

        account.open, account.close = opened, closed


class _Told(logging.Handler):
    """What people are told, among all else that happens."""

    def __init__(self, happens: Replay) -> None:
        super().__init__(logging.INFO)
        self._happens = happens

    def emit(self, record: logging.LogRecord) -> None:
        self._happens.say(f"{record.levelname}: {record.getMessage()}")


def replay(case: Case, clock: FakeClock) -> Replay:
    """Have a case happen; the modules of the cache ask this clock, see `on_clock`."""
    happens, log = Replay(case, clock), logging.getLogger("kvferry.cache")
    told, level = _Told(happens), log.level
    log.addHandler(told)
    log.setLevel(logging.INFO)
    try:
        happens.run()
    finally:
        log.removeHandler(told)
        log.setLevel(level)
    return happens


@contextmanager
def on_clock() -> Iterator[FakeClock]:
    """All modules of the cache that ask what time it is ask this clock."""
    clock = FakeClock()
    asking = [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("kvferry.cache") and name not in APART
        if getattr(module, "time", None) is time
    ]
    for module in asking:
        vars(module)["time"] = clock.module
    log = logging.getLogger("kvferry.cache")
    propagate, log.propagate = log.propagate, False
    try:
        yield clock
    finally:
        log.propagate = propagate
        for module in asking:
            vars(module)["time"] = time


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{1e3 * seconds:.4f} ms"
