"""The long-document workload without a server: orders, what was lost, what is printed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvferry.base.errors import UsageError
from kvferry_lab.long_doc.report import (
    best_hits,
    hit_loss,
    loss_lines,
    missed_expectations,
    result_lines,
)
from kvferry_lab.long_doc.run import LongDocPlan, LongDocRun, Record, mean_ttft


def record(document: int, number: int = 0, **more: Any) -> Record:
    found = {
        "prompt_id": 0,
        "document": document,
        "round": number,
        "request_start": 0.0,
        "ttft": 2.0,
        "request_end": 3.0,
        "successful": True,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 5,
        "error": "",
        "text": "",
    }
    return Record(**{**found, **more})


def plan(**more: Any) -> LongDocPlan:
    return LongDocPlan(num_documents=3, **more)


def test_orders_of_the_query_round() -> None:
    assert plan(repeat_mode="tile").query_rounds == [[0, 1, 2, 0, 1, 2]]
    assert plan(repeat_mode="interleave").query_rounds == [[0, 0, 1, 1, 2, 2]]
    assert plan(repeat_mode="tile", rounds=3).query_rounds == [[0, 1, 2], [0, 1, 2]]
    shuffled = plan(repeat_mode="random", shuffle_seed=1)
    assert shuffled.query_rounds == shuffled.query_rounds
    assert Counter(shuffled.query_rounds[0]) == {0: 2, 1: 2, 2: 2}
    with pytest.raises(UsageError, match="tile or random"):
        plan(repeat_mode="interleave", rounds=2)


def test_of_three_to_one_every_fourth_prompt_is_new() -> None:
    (documents,) = plan(repeat_mode="tile", repeat_count=3, hit_miss_ratio=(3, 1)).query_rounds
    assert [document < 0 for document in documents] == [False, False, False, True] * 2 + [False]
    assert len({document for document in documents if document < 0}) == 2


def test_the_best_that_a_cache_could_have_kept() -> None:
    rounds = [(document, 10) for _ in range(3) for document in range(4)]
    assert best_hits(rounds, 40) == 80
    assert best_hits(rounds, 0) == 0
    # One round brings at most what is kept, and what is brought in passing has to leave again.
    assert best_hits(rounds, 36) == pytest.approx(2 * 36 - 4, abs=4)
    assert best_hits([(0, 10), (0, 12)], 100) == 10


def test_every_token_is_hit_or_lost_for_one_reason() -> None:
    records = [record(document, number) for number in range(3) for document in range(4)]
    hits = [record(r.document, r.round, cached_tokens=80 if r.round == 2 else 0) for r in records]
    loss = hit_loss(hits, 16, None)
    assert loss is not None
    assert (loss.asked, loss.new, loss.partial, loss.hit) == (1200, 400, 8 * 4, 320)
    assert (loss.capacity, loss.order) == (None, 1200 - 400 - 32 - 320)
    assert loss.possible == pytest.approx(2 / 3)
    tight = hit_loss(hits, 16, 320)
    assert tight is not None
    assert tight.capacity is not None
    assert tight.capacity > 0
    assert tight.new + tight.partial + tight.capacity + tight.order + tight.hit == tight.asked
    roomy = hit_loss(hits, 16, 10_000)
    assert roomy is not None
    assert (roomy.capacity, roomy.order) == (0, loss.order)


def test_what_was_cached_before_the_run_is_a_hit_and_no_time_is_compared() -> None:
    records = [record(0, 0, cached_tokens=96), record(0, 1, cached_tokens=97)]
    loss = hit_loss(records, 16, 1000)
    assert loss is not None
    assert (loss.new, loss.partial, loss.capacity, loss.order, loss.hit) == (4, 3, 0, 0, 193)
    run = LongDocRun(plan=plan(rounds=2), model="m", records=records, round_s=[1.0, 1.0])
    assert "before the first round" in loss_lines(run, loss)[-1]


def test_a_server_that_does_not_say_what_it_had_is_not_guessed_at() -> None:
    assert hit_loss([record(0, cached_tokens=None)], 16, None) is None
    run = LongDocRun(plan=plan(), model="m", records=[record(0)], round_s=[1.0, 1.0])
    assert "does not say" in loss_lines(run, None)[0]


def test_the_known_lines_and_a_failed_request_is_in_no_mean() -> None:
    failed = record(1, 1, successful=False, ttft=-1.0, error="no")
    records = [record(0), record(1), record(0, 1, ttft=0.5), failed]
    run = LongDocRun(plan=plan(rounds=2), model="m", records=records, round_s=[4.0, 1.0])
    assert result_lines(run) == [
        "=== BENCHMARK RESULTS ===",
        "Warmup round mean TTFT: 2.000s",
        "Warmup round time: 4.000s",
        "Warmup round prompt count: 2",
        "Warmup round successful prompt count: 2",
        "Query round mean TTFT: 0.500s",
        "Query round time: 1.000s",
        "Query round prompt count: 2",
        "Query round successful prompt count: 1",
    ]
    assert mean_ttft([failed]) == 0.0
    assert missed_expectations(run, 4.0, 4.0, 1.0) == []
    assert len(missed_expectations(run, 4.1, 4.1, 0.9)) == 3
    assert "0.25 of the first round" in "\n".join(loss_lines(run, hit_loss(records, 16, None)))
