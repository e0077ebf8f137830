"""Figures of the latency lab from answers and commands whose times are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvferry.base.errors import UsageError
from kvferry_lab.latency.cell_figures import LatencyRow, published, read_rows, row_of, slopes
from kvferry_lab.latency.experiment import (
    CellRun,
    LatencyCell,
    LatencyPlan,
    SentCommand,
    read_commands,
    sequential_waits,
)
from kvferry_lab.latency.report import LatencyReport, markdown, table_lines
from kvferry_lab.openai_client import Answer, TokenUsage
from kvferry_lab.roi.validate import DELAYS


def answer(ttft_s: float, last_s: float, tokens: int, seconds: float) -> Answer:
    usage = TokenUsage(prompt_tokens=100, output_tokens=tokens, cached_tokens=50)
    return Answer(0.0, "x", ttft_s, last_s, seconds, tokens, usage)


def run(answers: list[Answer], waits: list[int | None]) -> CellRun:
    cell = LatencyCell("ours", "hit", 100, 1, 10.0)
    return CellRun(
        cell=cell,
        answers=answers,
        waits=waits,
        seconds=10.0,
        cache_wait_s=0.25,
        up_bytes=300,
        down_bytes=3000,
    )


def test_a_row_by_hand() -> None:
    """Tokens come every 0.1 s behind the first one, which took 1 s, 2 s and 4 s."""
    fine = [answer(1.0, 1.9, 10, 2.0), answer(2.0, 2.4, 5, 2.5), answer(4.0, 4.3, 4, 5.0)]
    failed = Answer(0.0, error="no", status=503)
    row = row_of(run([*fine, failed], [1, 2, None, None]))
    assert (row.requests, row.failed) == (4, 1)
    assert row.ttft_min_s == 1.0
    assert row.ttft_p50_s == 2.0
    assert row.ttft_p99_s == pytest.approx(2.0 + 0.98 * 2.0)
    assert row.e2e_p50_s == 2.5
    # With the first token: 1.9 / 10, 2.4 / 5, 4.3 / 4. Without: 0.9 / 9, 0.4 / 4, 0.3 / 3.
    assert row.inter_token_s == pytest.approx((0.19 + 0.48 + 1.075) / 3)
    assert row.inter_token_after_first_s == pytest.approx(0.1)
    assert row.tokens_s_mean == pytest.approx((5.0 + 2.0 + 0.8) / 3)
    assert row.tokens_s_overall == pytest.approx(1.9)
    assert row.completed_per_min == pytest.approx(18.0)
    assert row.waits == 1.5
    assert row.hit_share == 0.5
    assert (row.up_bytes, row.down_bytes) == (75.0, 750.0)


def test_one_token_has_no_gap_and_no_answer_no_figure() -> None:
    assert row_of(run([answer(1.0, 1.0, 1, 1.0)], [0])).inter_token_after_first_s is None
    none = row_of(run([Answer(0.0, error="no")], [None]))
    assert (none.ttft_p50_s, none.inter_token_s, none.waits, none.hit_share) == (None,) * 4


def test_waits_are_counted_by_what_may_depend_on_an_answer() -> None:
    def waits(*commands: tuple[float, str, str], first_token_s: float = 10.0) -> int | None:
        return sequential_waits([SentCommand(*one) for one in commands], 0.0, first_token_s, 1.0)

    assert waits() == 0
    assert waits((0.1, "EXISTS", "a"), (0.5, "EXISTS", "b"), (1.0, "GET", "c")) == 1
    assert waits((0.1, "EXISTS", "a"), (1.1, "EXISTS", "b"), (2.2, "GET", "b")) == 3
    # Before it was sent, after its first token, and what the first token did not wait for.
    assert waits((-0.1, "GET", "a"), (11.0, "GET", "b"), (9.5, "GET", "c")) == 0
    # A cache looks again before it writes.
    assert waits((0.1, "TOUCH", "a"), (5.0, "TOUCH", "a")) == 1
    assert sequential_waits([SentCommand(0.1, "GET", "a")], 0.0, 1.0, 0.0) is None


def test_writes_a_view_looks_for_clears_and_half_a_line_are_no_waits(tmp_path: Path) -> None:
    log = tmp_path / "link.log"
    log.write_text(
        "3000000000 1 GET late\n"
        "1000000000 2 CLIENT TRACKING\n"
        "1000000000 2 EXISTS of-the-view\n"
        "1000000000 1 SET written\n"
        "1000000000 1 GET kvf:00:generation\n"
        "2000000000 1 exists early\n"
        "2000000000 1 PING \n"
        "40000000"
    )
    assert read_commands(log) == [
        SentCommand(2.0, "EXISTS", "early"),
        SentCommand(3.0, "GET", "late"),
    ]


def test_a_slope_is_of_near_distances_alone() -> None:
    def row(rtt_ms: float, least_s: float, median_s: float) -> LatencyRow:
        return LatencyRow(rtt_ms=rtt_ms, ttft_min_s=least_s, ttft_p50_s=median_s, waits=1.0)

    rows = [row(0, 0.1, 0.2), row(50, 0.15, 0.275), row(1000, 9.0, 9.0)]
    (found,) = slopes(rows)
    assert (found.least, found.median) == pytest.approx((1.0, 1.5))
    assert found.waits == 1.0
    assert slopes(rows[1:]) == []


def test_the_published_rows_are_those_that_are_known_elsewhere() -> None:
    rows = published()
    known = [(row.rtt_ms, row.ttft_min_s, row.ttft_p50_s, row.e2e_p50_s) for row in rows]
    assert known == [
        (rtt, *(pytest.approx(ms / 1e3) for ms in times)) for rtt, *times in DELAYS.rows
    ]
    assert {row.series for row in rows} == {("published", "miss", 128, 1)}


def test_the_table_has_the_published_columns_in_their_order() -> None:
    head, line, first, *_, last = table_lines(published())
    assert head == (
        "| RTT (ms) | TTFT p50 (s) | E2E p50 (s) | Throughput Mean (tok/s) "
        "| Overall Output Throughput (tok/s) | Inter-token Mean (s) | Completed per Min |"
    )
    assert line == "|---:|---:|---:|---:|---:|---:|---:|"
    assert first == "| 0 | 0.0133 | 0.2570 | 270.75 | 229.76 | 0.00471 | 189.99 |"
    assert last == "| 1000 | 2.3079 | 2.5736 | 30.34 | 22.92 | 0.04890 | 19.00 |"


def test_a_run_is_a_baseline_of_another_one_and_keeps_no_key(tmp_path: Path) -> None:
    report = LatencyReport(
        plan=LatencyPlan(key="sk-secret", rtt_ms=(0, 10)),
        rows=[replace(row, client="ours") for row in published()[:2]],
        command="kvferry lab latency",
        machine="a machine",
        link="tun, 1.00 GB/s without a distance",
        store="valkey 9",
    )
    report.write(tmp_path)
    assert read_rows(tmp_path / "latency.json") == report.rows
    assert len((tmp_path / "latency.csv").read_text().splitlines()) == 3
    page = markdown(report)
    assert 'link["link: tun, 1.00 GB/s without a distance<br/>RTT 0, 10 ms, half each way"]' in page
    assert all("sk-secret" not in file.read_text() for file in tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "[]", '{"rows": [{"ttft_p50_s": 1}]}', '{"rows": 1}'])
def test_a_file_without_rows_is_said_to_be_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="no rows of kvferry lab latency"):
        read_rows(file)
    with pytest.raises(UsageError, match="No such file"):
        read_rows(tmp_path / "none.json")
