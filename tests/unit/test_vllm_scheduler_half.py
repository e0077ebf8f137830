"""The half of a connector beside the scheduler: which blocks are loaded and saved, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.base.errors import UsageError
from kvferry.chunks.keys import DIGEST_BYTES, chunk_hashes
from kvferry.chunks.prompt import Prompt
from kvferry.integrations.vllm.connector import lookup_threads as questions
from kvferry.integrations.vllm.connector.interfaces import Work
from kvferry.integrations.vllm.connector.scheduler import SchedulerHalf
from support import clock
from support.vllm_shapes import EngineRequest, PrefillStats, SchedulerStep

BLOCK, CHUNK = 4, 8  # two blocks a chunk


class Store:
    """A finder that knows hashes, and can be made to wait."""

    def __init__(self) -> None:
        self.known: set[bytes] = set()
        self.go = threading.Event()
        self.go.set()
        self.asked = 0
        self.broken = False
        self.at_once = False
        self.shared = bytes(8)
        self.renewals: list[tuple[bytes, bytes]] = []
        self.prompts: list[Prompt] = []
        self.takes_s = 0.0
        self.clock_s = 0.0  # of a clock on which nothing else takes time

    def has(self, tokens: list[int], chunks: int | None = None) -> None:
        self.known.update(chunk_hashes(tokens, CHUNK)[:chunks])

    def find(self, prompt: Prompt) -> int:
        self.asked += 1
        self.prompts.append(prompt)
        threading.Event().wait(self.takes_s)
        self.clock_s += self.takes_s
        assert self.go.wait(60)
        if self.broken:
            raise RuntimeError("not the engine's problem")
        count = 0
        while count < prompt.chunks and prompt.digest(count) in self.known:
            count += 1
        return count

    def now(self, prompt: Prompt) -> int | None:
        if self.broken and self.at_once:
            raise RuntimeError("not the engine's problem")
        return self.find(prompt) if self.at_once else None

    def renewed(self, ended: bytes, own: bytes) -> None:
        self.renewals.append((ended, own))

    def close(self) -> None:
        self.go.set()


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.go.set()


def half_of(store: Store, **settings: Any) -> SchedulerHalf:
    settings = {"chunk_size": CHUNK, "block_size": BLOCK, "limit_s": 60.0, **settings}
    return SchedulerHalf(store, **settings)


def tokens(count: int, seed: int = 1) -> list[int]:
    return [(seed * 7919 + i * i) % 32_000 for i in range(count)]


def answer(half: SchedulerHalf, request: EngineRequest, computed: int = 0) -> int:
    """Ask until there is an answer, one step each time."""
    until = clock.now_s() + 10
    while clock.now_s() < until:
        found = half.matched(request, computed)
        if found is not None:
            return found
        half.work(SchedulerStep())
    raise AssertionError("no answer")


def hashes(request: EngineRequest, first: int, end: int) -> bytes:
    return b"".join(chunk_hashes(request.all_token_ids, CHUNK)[first:end])


# --- What can be loaded ---


@pytest.mark.parametrize(
    ("prompt", "stored", "local", "expected"),
    [
        (30, 0, 0, 0),
        (30, 2, 0, 16),
        (30, 3, 0, 24),
        (30, 3, 4, 20),  # a block of the first chunk is there already
        (30, 3, 24, 0),
        (30, 2, 16, 0),
        (24, 3, 0, 24),  # all of it is stored: vLLM computes the last token again
        (24, 2, 0, 16),
        (24, 3, 16, 8),
        (25, 3, 0, 24),
        (24, 3, 20, 0),  # for the last block alone nothing is loaded
        (7, 0, 0, 0),  # shorter than a chunk
        (30, 3, 6, 0),  # the engine has a part of a block, whose rest nobody would load
        (30, 3, 23, 0),
    ],
)
def test_whole_blocks_are_counted(
    store: Store, prompt: int, stored: int, local: int, expected: int
) -> None:
    request = EngineRequest("a", tokens(prompt))
    store.has(request.all_token_ids, stored)
    assert answer(half_of(store), request, local) == expected


def test_the_wait_of_each_request_is_told_once_with_its_first_token(store: Store) -> None:
    half = half_of(store)
    late, early = EngineRequest("a", tokens(30)), EngineRequest("b", tokens(30, 2))
    store.has(late.all_token_ids, 2)
    for request in (late, early):
        answer(half, request)
        half.allocated(request, range(8), 16 if request is late else 0)
    half.loaded({"a", "somebody else"})
    assert half.work(SchedulerStep()).first_tokens == []
    late.num_output_tokens = early.num_output_tokens = 1
    half.finished("a")
    half.finished("b")
    half.finished("b")
    told = half.work(SchedulerStep()).first_tokens
    assert len(told) == 2
    assert all(0 <= waited_s <= ttft_s for waited_s, ttft_s in told)
    assert half.work(SchedulerStep()).first_tokens == []


def test_what_is_known_at_once_needs_no_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    store.has(request.all_token_ids, 2)
    store.at_once = True
    monkeypatch.setattr(half._questions, "_threads", None)
    assert half.matched(request, 0) == 16
    store.broken = True
    assert half.matched(EngineRequest("b", tokens(30)), 0) == 0


def test_while_nobody_knows_the_answer_is_none_and_nothing_changes(store: Store) -> None:
    store.go.clear()
    half, request = half_of(store), EngineRequest("a", tokens(30))
    store.has(request.all_token_ids)
    assert [half.matched(request, 0) for _ in range(20)] == [None] * 20
    assert half.work(SchedulerStep()) == Work()
    assert half.work(SchedulerStep().new("x", [1], 0, 4)) == Work(
        given=[1], computes=True, new_tokens=4, pairs=16
    )
    store.go.set()
    assert answer(half, request) == 24
    assert answer(half, request) == 24
    assert store.asked == 1


def test_asking_takes_a_moment_for_all_requests_of_a_step_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_MOMENT_S", 0.1)
    store.go.clear()
    half = half_of(store, limit_s=60.0)
    requests = [EngineRequest(f"r{i}", tokens(30, i)) for i in range(100)]
    began = clock.now_s()
    assert [half.matched(request, 0) for request in requests] == [None] * 100
    assert clock.now_s() - began < 5.0  # 100 moments are 10 s


def test_many_requests_ask_at_once_and_the_limit_of_each_begins_with_its_question(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_THREADS", 1)
    monkeypatch.setattr(questions, "time", SimpleNamespace(monotonic=lambda: store.clock_s))
    half = half_of(store, limit_s=0.4)
    requests = [EngineRequest(f"r{i}", tokens(30, i)) for i in range(6)]
    for request in requests:
        store.has(request.all_token_ids)
    store.takes_s = 0.15  # six of them, one after the other, take more than the limit
    assert [half.matched(request, 0) for request in requests] == [None] * 6
    assert [answer(half, request) for request in requests] == [24] * 6
    half.close()


def test_a_question_says_what_the_engine_has_and_what_it_computes_before(store: Store) -> None:
    half = half_of(store)
    running, cached, asking = (EngineRequest(n, tokens(30, i)) for i, n in enumerate("abc"))
    store.has(cached.all_token_ids)
    assert answer(half, running) == 0
    step = SchedulerStep().new("a", [1, 2, 3], 0, 12)
    work = half.work(step)
    assert (work.new_tokens, work.pairs, work.decodes) == (12, 144, 0)
    assert answer(half, cached) == 24
    half.allocated(cached, range(10), 24)
    (job,) = half.work(SchedulerStep()).loads
    assert (job.prompt.tokens, job.prompt.start_tokens, job.prompt.computed_tokens) == (30, 0, 0)
    assert job.prompt.queued == (18, 30**2 - 12**2)
    assert half.matched(asking, 4) in (None, 0)
    assert answer(half, asking, 4) == 0
    last = store.prompts[-1]
    assert (last.computed_tokens, last.tokens) == (4, 30)
    assert last.queued == (18 + 6, 30**2 - 12**2 + 30**2 - 24**2), "what is loaded is not computed"
    done = half.work(SchedulerStep().again("a", 12, 18, [4]))
    assert (done.new_tokens, done.pairs) == (18, 30**2 - 12**2)
    goes_on = half.work(SchedulerStep().again("a", 30, 1))
    assert (goes_on.new_tokens, goes_on.pairs, goes_on.decodes) == (0, 61, 1)


def test_what_is_ahead_is_added_up_in_order_for_many_at_once(store: Store) -> None:
    half = half_of(store)
    requests = [EngineRequest(f"r{i}", tokens(30, i)) for i in range(50)]
    for request in requests:
        half.matched(request, 0)
    until = clock.now_s() + 10
    while len(store.prompts) < 50:
        assert clock.now_s() < until
        threading.Event().wait(0.01)
    assert sorted(prompt.queued for prompt in store.prompts) == [
        (30 * n, 900 * n) for n in range(50)
    ]
    half.finished("r0")
    store.prompts.clear()
    again = EngineRequest("again", tokens(30, 99))
    answer(half, again)
    assert store.prompts[-1].queued == (30 * 49, 900 * 49)
    half.close()


def test_after_the_limit_the_answer_is_nothing(store: Store) -> None:
    store.go.clear()
    half, request = half_of(store, limit_s=0.02), EngineRequest("a", tokens(30))
    store.has(request.all_token_ids)
    assert answer(half, request) == 0


def test_a_look_up_that_breaks_costs_the_hit_and_nothing_else(store: Store) -> None:
    store.broken = True
    assert answer(half_of(store), EngineRequest("a", tokens(30))) == 0


@pytest.mark.parametrize("settings", [{"loads": False}, {"limit_s": 0.0}])
def test_who_does_not_load_is_told_nothing(store: Store, settings: dict[str, Any]) -> None:
    store.go.clear() if "limit_s" in settings else None
    request = EngineRequest("a", tokens(30))
    store.has(request.all_token_ids)
    assert answer(half_of(store, **settings), request) == 0


def test_a_request_that_wants_every_token_computed_is_left_alone(store: Store) -> None:
    request = EngineRequest("a", tokens(30), skip_reading_prefix_cache=True)
    store.has(request.all_token_ids)
    assert answer(half_of(store), request) == 0
    assert store.asked == 0


def test_tokens_that_cannot_be_hashed_make_a_request_uncached(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", [-1] * 30)
    assert answer(half, request) == 0
    half.allocated(request, [1, 2, 3, 4, 5, 6, 7, 8], 0)
    assert half.work(SchedulerStep().new("a", list(range(8)), 0, 30)).saves == []


# --- Loads ---


def test_a_load_names_chunks_and_the_blocks_that_are_wanted(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    store.has(request.all_token_ids)
    assert answer(half, request, 4) == 20
    half.allocated(request, [10, 11, 12, 13, 14, 15, 16, 17], 20)
    (load,) = half.work(SchedulerStep()).loads
    assert load.request_id == "a"
    assert load.prompt.hashes == hashes(request, 0, 3)
    assert load.block_ids == [-1, 11, 12, 13, 14, 15]  # the first one is the engine's own
    assert half.work(SchedulerStep()).loads == []


def test_chunks_that_the_engine_has_itself_are_not_loaded(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(48))
    store.has(request.all_token_ids)
    assert answer(half, request, 20) == 28
    half.allocated(request, list(range(100, 112)), 28)
    (load,) = half.work(SchedulerStep()).loads
    assert load.prompt.hashes == hashes(request, 2, 6)
    assert load.block_ids == [-1, 105, 106, 107, 108, 109, 110, 111]


def test_a_second_call_after_the_load_starts_no_other(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    store.has(request.all_token_ids)
    assert answer(half, request) == 24
    half.allocated(request, list(range(8)), 24)
    half.allocated(request, list(range(8)), 0)
    assert len(half.work(SchedulerStep()).loads) == 1


def test_a_prompt_that_was_loaded_whole_did_not_fail(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(24))
    store.has(request.all_token_ids)
    assert answer(half, request) == 24
    half.allocated(request, list(range(6)), 24)
    half.work(SchedulerStep())
    # vLLM computes the last token once more, to have something to say.
    assert half.work(SchedulerStep().new("a", list(range(6)), 23, 1)).saves == []
    assert half.counts["failed_loads"] == 0


def test_what_failed_to_load_is_computed_and_saved_anew(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    store.has(request.all_token_ids)
    assert answer(half, request) == 24
    half.allocated(request, list(range(8)), 24)
    half.work(SchedulerStep())
    # vLLM found the third block invalid, so it goes on behind the second one.
    assert half.matched(request, 0) == 0  # and it may ask again; nothing is offered
    (save,) = half.work(SchedulerStep().new("a", list(range(8)), 8, 22)).saves
    assert (save.first_chunk, save.block_ids) == (1, [2, 3, 4, 5])
    assert half.counts["failed_loads"] == 1


@pytest.mark.parametrize("there", [0, 4, 8, 20, 24])
def test_what_did_not_come_is_not_reported_as_cached(store: Store, there: int) -> None:
    """vLLM notes what was promised; `there` is how much of it holds, as it goes on."""
    half, request = half_of(store), EngineRequest("a", tokens(30))
    store.has(request.all_token_ids)
    assert answer(half, request, 4) == 20
    noted = request.prefill_stats = PrefillStats()
    noted.set(num_prompt_tokens=30, num_local_cached_tokens=4, num_external_cached_tokens=20)
    half.allocated(request, list(range(8)), 20)
    half.work(SchedulerStep())
    half.work(SchedulerStep().new("a", list(range(8)), there, 30 - there))
    assert noted.num_cached_tokens == there
    assert noted.num_local_cached_tokens == min(4, there)
    assert noted.num_computed_tokens == 30 - there


def test_a_load_of_which_nothing_came_does_not_go_round_in_circles(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    store.has(request.all_token_ids)
    assert answer(half, request) == 24
    half.allocated(request, list(range(8)), 24)
    half.work(SchedulerStep())
    asked = store.asked
    assert half.matched(request, 0) == 0
    assert store.asked == asked
    (save,) = half.work(SchedulerStep().new("a", list(range(20, 28)), 0, 30)).saves
    assert (save.first_chunk, save.block_ids) == (0, [20, 21, 22, 23, 24, 25])


# --- Saves ---


def test_chunks_are_saved_when_they_are_full_each_once(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    assert answer(half, request) == 0
    half.allocated(request, list(range(8)), 0)
    saves = half.work(SchedulerStep().new("a", [0, 1, 2], 0, 12)).saves
    saves += half.work(SchedulerStep().again("a", 12, 3, [3])).saves
    saves += half.work(SchedulerStep().again("a", 15, 15, [4, 5, 6, 7])).saves
    assert [(save.first_chunk, save.block_ids) for save in saves] == [
        (0, [0, 1]),
        (1, [2, 3, 4, 5]),
    ]
    assert [save.prompt.hashes for save in saves] == [hashes(request, 0, 1), hashes(request, 0, 3)]


def test_what_the_store_has_is_not_saved_again(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(40))
    store.has(request.all_token_ids, 3)
    assert answer(half, request) == 24
    half.allocated(request, list(range(10)), 24)
    half.work(SchedulerStep())
    (save,) = half.work(SchedulerStep().new("a", list(range(10)), 24, 16)).saves
    assert (save.first_chunk, save.block_ids) == (3, [6, 7, 8, 9])


def test_what_only_the_engine_has_is_saved_for_others(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    assert answer(half, request, 16) == 0
    half.allocated(request, list(range(8)), 0)
    (save,) = half.work(SchedulerStep().new("a", list(range(8)), 16, 14)).saves
    assert (save.first_chunk, save.block_ids) == (0, [0, 1, 2, 3, 4, 5])


def test_without_an_answer_what_the_engine_has_is_left_alone(store: Store) -> None:
    store.go.clear()
    half, request = half_of(store, limit_s=0.01), EngineRequest("a", tokens(30))
    assert answer(half, request, 16) == 0
    half.allocated(request, list(range(8)), 0)
    (save,) = half.work(SchedulerStep().new("a", list(range(8)), 16, 14)).saves
    assert (save.first_chunk, save.block_ids) == (2, [4, 5])


def test_generated_tokens_are_saved_when_they_are_known(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(14))
    assert answer(half, request) == 0
    half.allocated(request, [0, 1, 2, 3], 0)
    half.work(SchedulerStep().new("a", [0, 1, 2, 3], 0, 14))
    request.all_token_ids.append(5)  # its KV is computed in the step after
    assert half.work(SchedulerStep().again("a", 14, 1)).saves == []
    # The engine is a step ahead: it computes the KV of a token that nobody knows yet.
    assert half.work(SchedulerStep().again("a", 15, 1)).saves == []
    request.all_token_ids.append(6)
    (save,) = half.work(SchedulerStep().again("a", 16, 1)).saves
    assert (save.first_chunk, save.block_ids) == (1, [2, 3])
    assert save.prompt.hashes == hashes(request, 0, 2)


def test_drafts_that_may_be_rejected_are_not_saved(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(14))
    assert answer(half, request) == 0
    half.allocated(request, [0, 1, 2, 3, 4], 0)
    half.work(SchedulerStep().new("a", [0, 1, 2, 3, 4], 0, 14))
    request.all_token_ids.append(5)
    assert half.work(SchedulerStep().again("a", 14, 4)).saves == []  # one token and three drafts


def test_generated_tokens_can_be_left_out(store: Store) -> None:
    half, request = half_of(store, save_generated=False), EngineRequest("a", tokens(14))
    assert answer(half, request) == 0
    half.allocated(request, [0, 1, 2, 3], 0)
    assert len(half.work(SchedulerStep().new("a", [0, 1, 2, 3], 0, 14)).saves) == 1
    request.all_token_ids += [5, 6, 7]
    assert half.work(SchedulerStep().again("a", 14, 3)).saves == []


def test_a_preempted_request_saves_nothing_twice_and_may_load_what_it_saved(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    assert answer(half, request) == 0
    half.allocated(request, list(range(8)), 0)
    (save,) = half.work(SchedulerStep().new("a", list(range(8)), 0, 24)).saves
    assert save.block_ids == [0, 1, 2, 3, 4, 5]
    store.has(request.all_token_ids, 3)
    request.num_preemptions = 1
    assert answer(half, request) == 24
    half.allocated(request, list(range(50, 58)), 24)
    (load,) = half.work(SchedulerStep()).loads
    assert load.block_ids == [50, 51, 52, 53, 54, 55]
    request.all_token_ids += [1, 2]
    step = SchedulerStep().again("a", 24, 8, list(range(50, 58)), resumed=True)
    (save,) = half.work(step).saves
    assert (save.first_chunk, save.block_ids) == (3, [56, 57])


def test_who_does_not_save_has_nothing_to_save(store: Store) -> None:
    half, request = half_of(store, saves=False), EngineRequest("a", tokens(30))
    assert answer(half, request) == 0
    half.allocated(request, list(range(8)), 0)
    assert half.work(SchedulerStep().new("a", list(range(8)), 0, 30)).saves == []


def test_a_step_names_every_block_that_somebody_was_given(store: Store) -> None:
    half = half_of(store)
    a, b = EngineRequest("a", tokens(30)), EngineRequest("b", tokens(30, 2))
    store.has(b.all_token_ids)
    for request, found in ((a, 0), (b, 24)):
        assert answer(half, request) == found
    half.allocated(a, list(range(8)), 0)
    half.allocated(b, list(range(20, 28)), 24)
    work = half.work(SchedulerStep().new("a", [0, 1, 2], 0, 12))
    assert set(work.given) - {-1} == {0, 1, 2, 20, 21, 22, 23, 24, 25}


# --- The end ---


def test_a_request_that_ends_is_forgotten_wherever_it_was(store: Store) -> None:
    store.go.clear()
    half, request = half_of(store), EngineRequest("a", tokens(30))
    assert half.matched(request, 0) is None
    half.finished("a")
    half.finished("a")
    store.go.set()
    again = EngineRequest("a", tokens(30, 9))  # another request, of the same name
    store.has(again.all_token_ids)
    assert answer(half, again) == 24
    half.allocated(again, list(range(8)), 24)
    half.finished("a")  # while it loads: the load is the workers' and is reported by them
    (load,) = half.work(SchedulerStep()).loads
    assert load.prompt.hashes == hashes(again, 0, 3)
    assert half.work(SchedulerStep().again("a", 24, 6)).saves == []


def test_requests_that_were_never_seen_do_no_harm(store: Store) -> None:
    half = half_of(store)
    assert half.work(SchedulerStep().new("x", [1, 2], 0, 8).again("y", 8, 1)).saves == []


def test_a_cleared_engine_finds_nothing_of_before_and_waits_for_nobody(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    store.has(request.all_token_ids)
    assert half.clear()
    assert answer(half, request) == 0
    (renewed,) = store.renewals
    assert renewed[0] == bytes(8)
    assert renewed[1] != bytes(8)
    half.close()
    assert half.matched(EngineRequest("b", tokens(30)), 0) == 0


def test_a_request_that_straddles_a_clear_stores_nothing(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    assert answer(half, request) == 0
    half.allocated(request, list(range(8)), 0)
    assert half.work(SchedulerStep().new("a", list(range(8)), 0, 8)).saves
    assert half.clear()
    assert not half.work(SchedulerStep().again("a", 8, 22)).saves
    later = EngineRequest("b", tokens(30))
    assert answer(half, later) == 0
    half.allocated(later, list(range(8, 16)), 0)
    (save,) = half.work(SchedulerStep().new("b", list(range(8, 16)), 0, 30)).saves
    assert save.prompt.generation
    assert save.prompt.hashes != b"".join(chunk_hashes(later.all_token_ids, CHUNK))


def test_a_request_that_waits_belongs_to_what_comes_behind_a_clear(store: Store) -> None:
    """Nothing of it is computed: what was found for it before is of the old weights."""
    half, request = half_of(store), EngineRequest("a", tokens(30))
    store.has(request.all_token_ids)
    assert answer(half, request) == 24
    assert half.clear()
    assert answer(half, request) == 0


def test_what_was_preempted_is_computed_anew_and_stored(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    assert answer(half, request) == 0
    half.allocated(request, list(range(8)), 0)
    half.work(SchedulerStep().new("a", list(range(8)), 0, 30))
    assert half.clear()
    request.num_preemptions += 1
    assert answer(half, request) == 0
    half.allocated(request, list(range(8)), 0)
    (save,) = half.work(SchedulerStep().new("a", list(range(8)), 0, 30)).saves
    assert save.prompt.generation


def test_a_generation_that_an_answer_tells_of_is_asked_for_at_once(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    find = store.find

    def tells(prompt: Prompt) -> int:
        store.shared = b"everyone"
        if prompt.generation[8:] != store.shared:
            return 0
        return prompt.chunks

    store.find = tells  # type: ignore[method-assign]
    assert answer(half, request) == 24
    store.find = find  # type: ignore[method-assign]


def test_engines_with_the_same_name_of_weights_make_the_same_hashes(store: Store) -> None:
    made = []
    for version in ("step-2", "step-2", "step-3"):
        half, request = half_of(store, weights_version=version), EngineRequest("a", tokens(30))
        assert answer(half, request) == 0
        half.allocated(request, list(range(8)), 0)
        made += half.work(SchedulerStep().new("a", list(range(8)), 0, 30)).saves
    assert made[0].prompt.hashes == made[1].prompt.hashes != made[2].prompt.hashes


def test_a_token_that_completes_no_chunk_asks_for_no_generation(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    assert answer(half, request) == 0
    half.allocated(request, list(range(9)), 0)
    half.work(SchedulerStep().new("a", list(range(9)), 0, 30))
    store.shared = None  # type: ignore[assignment]  # whoever reads it fails
    assert half.work(SchedulerStep().again("a", 30, 1)).saves == []


def test_a_chunk_is_made_of_whole_blocks(store: Store) -> None:
    with pytest.raises(UsageError, match="no multiple of 4"):
        SchedulerHalf(store, chunk_size=6, block_size=4, limit_s=1.0)


def test_hashes_are_those_that_anybody_can_make_of_the_tokens(store: Store) -> None:
    half, request = half_of(store), EngineRequest("a", tokens(30))
    assert answer(half, request) == 0
    half.allocated(request, list(range(8)), 0)
    (save,) = half.work(SchedulerStep().new("a", list(range(8)), 0, 30)).saves
    assert len(save.prompt.hashes) == 3 * DIGEST_BYTES
    assert save.prompt.hashes == b"".join(chunk_hashes(request.all_token_ids, CHUNK))
