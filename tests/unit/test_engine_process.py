"""The driver of engines and its other end, on a vLLM of a few lines that says what it was told."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.table import console
from kvferry_lab.engines.bench import EngineRow, Pass
from kvferry_lab.engines.engine_process import EngineError, EngineProcess
from kvferry_lab.engines.report import say_rows, write_plot
from support import clock

FAKE = """
import os, sys, time
from types import SimpleNamespace as Thing

__version__ = "9.9"
print("imported")                    # as engines do, on standard output


class SamplingParams(Thing):
    pass


class LLM:
    def __init__(self, **settings):
        if "refuse" in settings:
            raise ValueError(settings["refuse"])
        self.settings, self.seen = settings, set()
        self.llm_engine = self
        self.engine_core = Thing(shutdown=lambda: print("shut down"))

    def generate(self, prompts, sampling, use_tqdm, lora_request):
        assert not use_tqdm and sampling.temperature == 0
        made = []
        for prompt in prompts:
            ids = prompt["prompt_token_ids"]
            if ids[0] == 666:
                os._exit(3)
            if ids[0] < 0:
                time.sleep(60)
            key = (tuple(ids), prompt.get("cache_salt"))
            tokens = [sum(ids) % 1000] * sampling.max_tokens
            made.append(Thing(
                outputs=[Thing(token_ids=tokens, finish_reason="length")],
                metrics=Thing(first_token_latency=0.5),
                num_cached_tokens=len(ids) if key in self.seen else None,
                prompt_token_ids=ids,
            ))
            self.seen.add(key)
        return made

    def reset_prefix_cache(self):
        self.seen.clear()
        return self.settings.get("forgets", True)

    def get_metrics(self):
        labels = {"model_name": "m", "engine": "0", "source": "here"}
        return [Thing(name="a", labels=labels, value=3), Thing(name="h", labels={}, sum=1.5)]


def settings_of(llm, name):
    return llm.settings[name]
"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., EngineProcess]]:
    (tmp_path / "vllm.py").write_text(FAKE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with ExitStack() as stack:

        def opened(limit_s: float = 60, **settings: Any) -> EngineProcess:
            made = EngineProcess(sys.executable, settings, environment, limit_s=limit_s)
            return stack.enter_context(made)

        yield opened


def test_requests_and_answers(engine: Callable[..., EngineProcess]) -> None:
    one = engine(model="m")
    assert one.version == "9.9"
    first = one.generate([[1, 2, 3], [4, 5]], 2)
    assert first.tokens == [[6, 6], [9, 9]]
    assert first.cached == [0, 0]
    assert [output.prompt for output in first.outputs] == [3, 2]
    assert first.outputs[0].ttft_s == 0.5
    assert one.generate([[1, 2, 3], {"ids": [4, 5], "salt": "s"}], 2).cached == [3, 0]
    one.forget()
    assert one.generate([[1, 2, 3]], 2).cached == [0]
    assert one.metrics() == {"a{source=here}": 3.0, "h": 1.5}
    assert one.call("vllm:settings_of", name="model") == "m"


def test_an_engine_in_one_process_is_told_so(engine: Callable[..., EngineProcess]) -> None:
    one = engine(model="m")
    with pytest.raises(EngineError, match="KeyError: 'distributed_executor_backend'"):
        one.call("vllm:settings_of", name="distributed_executor_backend")


def test_what_fails_says_why(engine: Callable[..., EngineProcess]) -> None:
    with pytest.raises(EngineError, match="ValueError: not today"):
        engine(refuse="not today")
    one = engine(forgets=False)
    with pytest.raises(EngineError, match="prefix cache is in use"):
        one.forget()
    with pytest.raises(EngineError, match="AttributeError"):
        one.ask("dance")
    assert one.generate([[1]], 1).tokens == [[1]]  # and it lives on


def test_an_engine_that_dies_is_seen(engine: Callable[..., EngineProcess]) -> None:
    one = engine()
    with pytest.raises(EngineError, match=r"has ended, status -?\d+; its last words:[^$]*imported"):
        one.generate([[666]])
    with pytest.raises(EngineError, match="has ended"):
        one.generate([[1]])


def test_an_engine_that_hangs_is_killed(engine: Callable[..., EngineProcess]) -> None:
    one = engine()
    one.begin([[-1]])
    began = clock.now_s()
    with pytest.raises(EngineError, match="no answer within"):
        one.end(limit_s=0.2)
    assert clock.now_s() - began < 15
    with pytest.raises(ProcessLookupError):
        os.kill(one.pid, 0)


def test_closing_shuts_the_engine_down_and_keeps_its_log(
    engine: Callable[..., EngineProcess],
) -> None:
    one = engine()
    one.close()
    one.close()
    assert one.log.splitlines() == ["imported", "shut down"]


def test_figures_are_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def passes(*ttft_s: float, cached: int = 0) -> list[Pass]:
        count = len(ttft_s)
        return [Pass(list(ttft_s), [2 * s for s in ttft_s], [cached] * count, 10**6, [[1]] * count)]

    rows = [
        EngineRow("none", passes(9, 11, 10), passes(0.2), [], passes(10, 10, 10)),
        EngineRow(
            "ours",
            passes(9, 11, 10),
            passes(0.3, cached=4000),
            passes(0.35, cached=4000),
            passes(0.4, 0.6, 0.5, cached=4000),
            wrong_answers=1,
        ),
        EngineRow("broken", error="OSError: no"),
    ]
    say_rows(console(), rows)
    said = capsys.readouterr().out
    ours = next(line.split() for line in said.splitlines() if line.startswith("ours"))
    seconds = ["10.00", "0.300", "0.350", "0.500", "0.050"]
    assert ours[1:] == [*seconds, "4,000", "1.0", "1"]
    assert "broken: OSError: no" in said
    written = json.loads(json.dumps([row.to_dict() for row in rows]))
    assert written[1]["ttft_warm_s"] == 0.5
    assert written[1]["hit_tokens"] == 4000
    assert written[1]["passes"]["cold"][0]["ttft_s"] == [9, 11, 10]
    assert written[2]["ttft_cold_s"] is None
    pytest.importorskip("matplotlib")
    write_plot(str(tmp_path / "figures.svg"), rows)
    assert "</svg>" in (tmp_path / "figures.svg").read_text()


def test_an_answer_is_compared_with_one_that_computed_as_much() -> None:
    """Of two likely tokens, rounding chooses: what is right after a hit is what the engine says
    after a hit in its own cache, and only after one as long."""

    def said(*answers: tuple[int, int]) -> Pass:
        count = len(answers)
        cached, tokens = zip(*answers, strict=True)
        return Pass([1.0] * count, [1.0] * count, list(cached), 0, [[token] for token in tokens])

    cold, again = said((0, 1), (0, 1)), said((64, 2), (64, 1))
    warm = {
        (64, 2): 0,  # a hit as long
        (64, 1): 1,  # the same, and the answer of another computation
        (0, 1): 0,  # a miss
        (0, 2): 1,
        (32, 1): 0,  # part of it, for which there is nothing better to compare with
        (32, 2): 1,
        (64, 3): 1,
    }
    for answer, wrong in warm.items():
        row = EngineRow("ours", [cold], [again], [said(answer, (64, 1))])
        row.count_wrong_answers(0, cold, again)
        assert row.wrong_answers == wrong, answer
    row = EngineRow("ours", [said((0, 1), (0, 3))], [said((64, 2), (64, 2))], [])
    row.count_wrong_answers(0, cold, again)
    assert row.wrong_answers == 2
