"""How long the tier waits for its store: as long as that pays, and by rule where it was told."""

from __future__ import annotations

import pytest

from kvferry.cache.cost.prefill import PrefillModel
from kvferry.integrations.vllm.tier.tier_cost import Patience

CHUNK_TOKENS, CHUNK_BYTES = 256, 32 << 20
PREFILL = PrefillModel(0.0, 1e-3, 0.0, fixed=True)  # 0.256 s a chunk


def knowing() -> Patience:
    return Patience(CHUNK_TOKENS, CHUNK_BYTES, PREFILL)


def test_a_store_far_away_is_waited_for_where_that_pays() -> None:
    made, now = knowing(), 0.0
    for n in range(20):
        assert made.answered(16, 16, 0.1, now + n)
        made.loaded(16 * CHUNK_BYTES, 0.1 + 16 * CHUNK_BYTES / 2e9, now + n)
    assert made.question_s(16, 20.0) > 0.12, "4 s are saved"
    assert made.question_s(1, 20.0) < 0.26


def test_a_store_that_is_slower_than_computing_is_not_loaded_from() -> None:
    made = knowing()
    for n in range(6):
        made.loaded(16 * CHUNK_BYTES, 16 * CHUNK_BYTES / 20e6, n)
    assert not made.answered(16, 16, 0.001, 6.0)
    assert made.question_s(16, 6.0) == 0.0


def test_misses_far_away_are_waited_for_less_and_less() -> None:
    made, waited_s = knowing(), 0.0
    for n in range(200):
        limit_s = made.question_s(4, n)
        if limit_s:
            waited_s += min(limit_s, 0.3)
        made.answered(4, 0, 0.3, n) if limit_s > 0.3 else made.unanswered(4, min(limit_s, 0.3))
    assert waited_s <= 0.07 * 200 * 1.024


def test_loads_may_get_nothing_for_as_long_as_their_store_mostly_takes() -> None:
    made = knowing()
    near = made.stalled_s(1, 0.0)
    for n in range(10):
        made.loaded(CHUNK_BYTES, 2.0, n)
    assert near < 0.2
    assert made.stalled_s(1, 10.0) > 2.0
    assert made.stalled_s(100, 10.0) > 6.0


def test_limits_of_the_user_hold_and_without_knowledge_they_are_fixed() -> None:
    told = Patience(CHUNK_TOKENS, CHUNK_BYTES, PREFILL, lookup_s=0.007, stall_s=0.3)
    assert (told.question_s(100, 0.0), told.stalled_s(100, 0.0)) == (0.007, 0.3)
    assert told.answered(4, 4, 9.0, 0.0)
    nothing = Patience()
    assert nothing.question_s(1, 0.0) == pytest.approx(0.04)
    assert nothing.stalled_s(1, 0.0) == pytest.approx(0.5)
    assert nothing.answered(4, 4, 9.0, 0.0)


def test_a_store_that_moved_away_gets_longer_the_next_time() -> None:
    made = knowing()
    compute_s = PREFILL.predict_s(16 * CHUNK_TOKENS)
    assert made.stalled_s(16, 0.0, begun=False) == pytest.approx(0.5 * compute_s)
    assert made.stalled_s(16, 0.0) == pytest.approx(0.25 * compute_s)
    made.nothing_came(3.0, 0.0)
    assert made.stalled_s(16, 0.0) > 4 * 3.0


def test_what_nobody_was_asked_says_nothing_about_how_far_a_store_is() -> None:
    made = knowing()
    made.answered(16, 16, 0.2, 0.0)
    before = made.stalled_s(1, 0.0)
    for _ in range(10):
        assert made.answered(16, 16, 0.0, 0.0)
    assert made.stalled_s(1, 0.0) == before
