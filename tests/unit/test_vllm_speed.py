"""What vLLM's steps take, by whatever device, and what a model may take before any was seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.integrations.vllm.connector.step_times import CudaSteps, HostSteps
from kvferry.integrations.vllm.device_speed import device_name, device_ops_s, guess


class Event:
    """An event of a device that is as far as `done` says."""

    device_s = 0.0
    done = 0.0

    def record(self) -> None:
        Event.device_s += 0.25
        self.at = Event.device_s

    def query(self) -> bool:
        return Event.done >= self.at

    def elapsed_time(self, other: Event) -> float:
        assert self.query()
        assert other.query(), "it would have to be waited for"
        return 1e3 * (other.at - self.at)


@pytest.fixture(autouse=True)
def _reset() -> None:
    Event.device_s = Event.done = 0.0


def test_steps_of_a_device_are_told_when_it_has_done_them_and_nobody_waits() -> None:
    made: list[Event] = []

    def event() -> Event:
        made.append(Event())
        return made[-1]

    steps = CudaSteps(event)
    for n in range(3):
        steps.begin()
        steps.end((n, 0, 0), 9.0)
    assert list(steps.taken()) == []
    Event.done = 1.0  # the first two of them
    assert list(steps.taken()) == [((0, 0, 0), 0.25), ((1, 0, 0), 0.25)]
    Event.done = 9.0
    assert list(steps.taken()) == [((2, 0, 0), 0.25)]
    for n in range(200):
        steps.begin()
        steps.end((n, 0, 0), 0.0)
        if n > 100:
            Event.done = Event.device_s
            list(steps.taken())
    assert len(made) <= 80, "events are used again, and only so many are outstanding"


def test_a_step_without_a_beginning_says_nothing() -> None:
    host, cuda = HostSteps(), CudaSteps(Event)
    for steps in (host, cuda):
        steps.end((5, 5, 0), 0.0)
        assert list(steps.taken()) == []


def config(**fields: Any) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(**fields)),
        parallel_config=SimpleNamespace(tensor_parallel_size=2),
    )


LLAMA_8B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def test_a_guess_is_of_the_order_of_what_is_published() -> None:
    made = guess(config(**LLAMA_8B), device_ops_s("NVIDIA H100 80GB HBM3", 0))
    assert made is not None
    per_token_s = 2 * made[1]  # two ranks share it
    assert 20e-6 < per_token_s < 60e-6, "an H100 takes about 45 us for a token of 8 B"
    fewer = guess(config(**LLAMA_8B, num_experts_per_tok=2, moe_intermediate_size=1024), 1e12)
    dense = guess(config(**LLAMA_8B), 1e12)
    assert fewer is not None
    assert dense is not None
    assert fewer[1] < 0.5 * dense[1]
    assert guess(config(), 1e12) is None


def test_a_device_has_a_name_and_a_speed() -> None:
    cpu = SimpleNamespace(type="cpu")
    assert device_name(cpu, 2) != device_name(cpu, 4)
    assert device_ops_s("", 4) == pytest.approx(4 * device_ops_s("", 1))
    assert 1e9 < device_ops_s("", 1) < 1e12
    assert device_ops_s("NVIDIA H200", 0) > device_ops_s("NVIDIA H20", 0) > 1e12
    assert device_ops_s("NVIDIA B200", 0) > device_ops_s("something new", 0) > 1e13
