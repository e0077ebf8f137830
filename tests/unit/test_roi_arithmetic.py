"""The arithmetic of `kvferry roi`, against cases worked by hand and against what must hold."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cache.cost.prefill import PrefillModel
from kvferry_lab.roi.answer import RoiQuestion, answer
from kvferry_lab.roi.arithmetic import Kv, Prefill, Store, crossover
from kvferry_lab.roi.models import find_model
from kvferry_lab.roi.money import Day, Prices, account, need_of
from support.roi import round_case

TOKENS = st.integers(1, 1 << 20)


def test_a_prompt_by_hand() -> None:
    case = round_case()
    # 10 ms + 1,001 x 100 us + 1,001^2 x 1 ns = 10 + 100.1 + 1.002001 ms
    assert case.prefill.compute_s(1001) == pytest.approx(111.102001e-3)
    # Ten full chunks, and the last token is computed in any case.
    assert case.kept_tokens(1001) == 1000
    assert case.kept_tokens(1000) == 900, "an engine computes one token at least"
    # 1,000 x 100,000 bytes are 0.1 GB: 50 ms at 2 GB/s, and 5 ms.
    assert case.store.load_s(case.kv.prompt_bytes(1000)) == pytest.approx(55e-3)
    # One token behind 1,000: 10 ms + 100 us + (1,001^2 - 1,000^2) x 1 ns = 10.102001 ms
    assert case.loaded_s(1001, 1000) == pytest.approx(65.102001e-3)
    assert case.ttft_s(1001, 1000) == pytest.approx(65.102001e-3)
    # What is saved: 1,000 x 100 us + 1,000^2 x 1 ns = 101 ms
    assert case.saved_s(1001, 1000) == pytest.approx(101e-3)
    # 0.1 GB in 101 - 5 ms
    assert case.break_even_bytes_s(1001) == pytest.approx(0.1e9 / 96e-3)


def test_the_crossover_by_hand() -> None:
    # 100 us n + 1 ns n^2 = 5 ms + 50 us n, so n^2 + 50,000 n - 5,000,000 = 0
    wanted = (-50_000 + math.sqrt(50_000**2 + 20_000_000)) / 2
    assert round_case().crossover_tokens() == pytest.approx(wanted)
    # Slower than c: 0.5 GB/s take 200 us a token; n^2 - 100,000 n - 5,000,000 = 0
    wanted = (100_000 + math.sqrt(100_000**2 + 20_000_000)) / 2
    assert round_case(bytes_s=0.5e9).crossover_tokens() == pytest.approx(wanted)
    assert round_case(bytes_s=0.5e9, d=0).crossover_tokens() == math.inf
    prefill = Prefill(a_s=30e-3, c_s_per_token=1e-4, d_s_per_token2=0)
    assert crossover(prefill, Kv(whole_bytes=1), 25e-3 - prefill.a_s, 1e9) == 0


def test_a_store_that_is_too_slow_is_not_used() -> None:
    case = round_case(bytes_s=0.1e9)
    assert not case.pays(1001, 1000)
    assert case.saved_s(1001, 1000) == 0
    assert case.ttft_s(1001, 1000) == case.prefill.compute_s(1001)
    assert round_case(fixed_s=1.0).break_even_bytes_s(1001) == math.inf
    assert case.break_even_bytes_s(100) == math.inf, "no full chunk can be loaded"


def test_a_miss_waits_for_what_the_store_needs_to_say_so() -> None:
    case = round_case(miss_s=0.05)
    assert case.ttft_s(500, 0) - case.prefill.compute_s(500) == pytest.approx(0.05)


def test_a_day_by_hand() -> None:
    case, day = (
        round_case(gpus=2),
        Day(requests=36_000, prompt_tokens=1001, hit_rate=0.5, stored_bytes=80e9),
    )
    bill = account(case, day, Prices(gpu_hour=3.0, ram_gb_month=6.0))
    # 18,000 hits of 101 ms on two GPUs: 3,636 GPU-seconds, 1.01 GPU-hours at 3.
    assert bill.gpu_money_saved == pytest.approx(3.03)
    assert bill.gpu_s_before - bill.gpu_s_after == pytest.approx(3636)
    assert bill.gpu_s_before == pytest.approx(36_000 * 2 * 111.102001e-3)
    # 80 GB are billed as 100, at 6 a month of 30 days.
    assert (bill.ram_bytes, bill.ram_money) == pytest.approx((100e9, 20.0))
    assert bill.saved_money == pytest.approx(-16.97)
    assert bill.payback_days == pytest.approx(600 / 3.03)
    # 18,000 times 0.1 GB in 86,400 s, each way.
    assert bill.read_bytes_s == bill.written_bytes_s == pytest.approx(1800e9 / 86_400)


def test_servers_by_hand() -> None:
    case = round_case()
    day = Day(requests=36_000, prompt_tokens=1001, hit_rate=0.5, stored_bytes=80e9)
    bill = account(case, day, Prices())
    # 100 GB in servers of 32 GB; break-even is 1.04 GB/s, in servers of 0.5 GB/s.
    need = need_of(case, day, bill, shard_bytes=32e9, shard_bytes_s=0.5e9)
    assert (need.for_memory, need.for_bandwidth, need.shards) == (4, 3, 4)
    assert need.memory_bytes == pytest.approx(25e9)
    never = need_of(round_case(fixed_s=1.0), day, bill, shard_bytes=1e12, shard_bytes_s=1e9)
    assert (never.for_bandwidth, never.shards) == (None, 1)


def test_layers_with_a_window() -> None:
    model = find_model("gpt-oss-120b")
    # 36 layers x 2 x 8 heads x 64 x 2 bytes; half of them look at 128 tokens.
    whole, cut = Kv.of(model), Kv.of(model, cut_windows=True)
    assert whole.prompt_bytes(1000) == 1000 * 36 * 2048
    assert cut.prompt_bytes(1000) == (1000 + 128) * 18 * 2048
    assert cut.prompt_bytes(100) == whole.prompt_bytes(100)


def test_the_form_is_the_engines() -> None:
    model = PrefillModel(a_s=0.01, c_s_per_token=1e-4, d_s_per_token2=1e-9, fixed=True)
    prefill = round_case().prefill
    for tokens, cached in ((1, 0), (5000, 0), (5000, 4999), (5000, 5000)):
        assert prefill.compute_s(tokens, cached) == pytest.approx(model.predict_s(tokens, cached))


@given(TOKENS, st.floats(1e6, 1e12), st.floats(1.001, 100))
def test_a_quicker_store_is_never_worse(tokens: int, bytes_s: float, times: float) -> None:
    slow, quick = round_case(bytes_s=bytes_s), round_case(bytes_s=bytes_s * times)
    cached = slow.kept_tokens(tokens)
    assert quick.ttft_s(tokens, cached) <= slow.ttft_s(tokens, cached)
    assert quick.crossover_tokens() <= slow.crossover_tokens()
    assert quick.saved_s(tokens, cached) >= slow.saved_s(tokens, cached)


@given(TOKENS, TOKENS)
def test_longer_prompts_take_longer_and_break_even_earlier(one: int, other: int) -> None:
    case, (short, long) = round_case(), sorted((one, other))
    assert case.prefill.compute_s(short) <= case.prefill.compute_s(long)
    assert case.miss_s(short) <= case.miss_s(long)
    kept = (case.kept_tokens(short), case.kept_tokens(long))
    if kept[0] < kept[1]:
        assert case.break_even_bytes_s(long) <= case.break_even_bytes_s(short)


@given(TOKENS, st.floats(1e7, 1e11))
def test_break_even_crossover_and_times_agree(tokens: int, bytes_s: float) -> None:
    case = round_case(bytes_s=bytes_s)
    cached = case.kept_tokens(tokens)
    assert case.pays(tokens, cached) == (bytes_s > case.break_even_bytes_s(tokens))
    assert case.ttft_s(tokens, cached) <= case.prefill.compute_s(tokens)
    if cached:  # a load is worth it from the crossover on, and the more so the longer it is
        past = cached / case.crossover_tokens()
        assert past > 0.999 if case.pays(tokens, cached) else past < 1.001


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_hits_never_cost_more(one: float, other: float) -> None:
    few, many = sorted((one, other))
    bills = [
        account(
            round_case(),
            Day(requests=1000, prompt_tokens=5000, hit_rate=rate, stored_bytes=1e9),
            Prices(),
        )
        for rate in (few, many)
    ]
    assert bills[0].saved_money <= bills[1].saved_money
    assert bills[0].gpu_s_after >= bills[1].gpu_s_after >= 0


def test_the_answer_holds_what_its_parts_say_and_no_infinity() -> None:
    case = round_case(fixed_s=100.0)
    question = RoiQuestion(
        model=find_model("llama-3.1-8b"),
        case=case,
        day=Day(requests=10, prompt_tokens=1001, hit_rate=1.0, stored_bytes=1e9),
        prices=Prices(),
        shard_bytes=1e9,
        shard_bytes_s=1e9,
    )
    found = answer(question)
    assert not found.sooner
    assert not found.earns
    assert found.at.compute_s == case.prefill.compute_s(1001)
    shown = found.to_dict()
    assert shown["at"]["break_even_bytes_s"] is None
    assert shown["bill"]["payback_days"] is None
    assert shown["need"]["shards"] == 2


def test_nothing_to_load_takes_no_time() -> None:
    assert Store(bytes_s=1e9, fixed_s=1.0).load_s(0) == 0
