"""llmperf's figures from answers whose times are known."""

from __future__ import annotations

import pytest

from kvferry_lab.openai_client import Answer, OpenAIClient, TokenUsage
from kvferry_lab.tokens import TokenPlan, TokenRun, individual, summary, summary_lines

PLAN = TokenPlan(model="org/My Model--1.5", mean_input_tokens=5, mean_output_tokens=7)


def answer(ttft_s: float, tokens: int = 10, events: int = 10) -> Answer:
    return Answer(
        *(0.0, "text", ttft_s, 4.0, 5.0),
        pieces=3,
        events=events,
        usage=TokenUsage(prompt_tokens=20, output_tokens=tokens),
    )


def test_quantiles_lie_between_values_and_errors_are_in_none() -> None:
    failed = Answer(0.0, error="no", status=503)
    answers = [(answer(ttft), 20) for ttft in (4.0, 1.0, 2.0, 3.0)]
    run = TokenRun(plan=PLAN, answers=[*answers, (failed, 20)], seconds=10.0, timed_out=False)
    found = summary(run, {})
    assert found["name"] == "org-My-Model-1-5_5_7_summary"
    assert found["results_ttft_s_quantiles_p25"] == pytest.approx(1.75)
    assert found["results_ttft_s_quantiles_p99"] == pytest.approx(3.97)
    assert found["results_ttft_s_stddev"] == pytest.approx(1.2909944)
    assert found["results_inter_token_latency_s_mean"] == pytest.approx(0.4)
    assert found["results_mean_output_throughput_token_per_s"] == pytest.approx(4.0)
    assert found["results_num_completed_requests_per_min"] == pytest.approx(24.0)
    assert found["results_num_requests_started"] == 5
    assert found["results_error_rate"] == pytest.approx(0.2)
    assert found["results_error_code_frequency"] == "{503: 1}"
    assert individual(run)[4]["error_code"] == 503
    assert "Error Code Frequency: {503: 1}" in list(summary_lines(run))


def test_fields_are_what_llmperf_makes_of_them() -> None:
    """As in files of its own program, asked of the same server as ours.

    It divides by the events of a stream, the first of which has the role and no token; its numbers
    of tokens are pandas' integers, which it writes as texts.
    """
    run = TokenRun(plan=PLAN, answers=[(answer(1.0, events=16), 20)], seconds=1.0, timed_out=False)
    assert individual(run)[0]["inter_token_latency_s"] == pytest.approx(4.0 / 16)
    found = summary(run, {})
    assert found["results_number_input_tokens_min"] == "20"
    assert found["results_number_output_tokens_max"] == "10"
    assert found["results_number_output_tokens_mean"] == 10.0
    assert found["results_ttft_s_min"] == 1.0


def test_one_request_has_no_deviation_and_none_has_nothing() -> None:
    one = summary(TokenRun(plan=PLAN, answers=[(answer(1.0), 20)], seconds=1, timed_out=False), {})
    assert (one["results_ttft_s_mean"], one["results_ttft_s_stddev"]) == (1.0, None)
    none = summary(TokenRun(plan=PLAN, answers=[], seconds=0.0, timed_out=True), {})
    assert (none["results_ttft_s_max"], none["results_error_rate"]) == (None, 0)


def test_a_client_does_not_show_its_key() -> None:
    assert "sk-" not in repr(OpenAIClient("http://host/v1", "sk-of-somebody"))
