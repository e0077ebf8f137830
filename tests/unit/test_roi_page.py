"""The page of `kvferry roi`: its arithmetic is Python's, run by node, and it needs nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from kvferry_lab.roi import answer as answers
from kvferry_lab.roi import arithmetic, money
from kvferry_lab.roi.answer import RoiQuestion, answer
from kvferry_lab.roi.arithmetic import Case, Kv
from kvferry_lab.roi.models import find_model
from kvferry_lab.roi.money import Day, Prices
from kvferry_lab.roi.rates import of_preset, roofline
from kvferry_lab.roi.report import question_data, write_page
from support.roi import round_case

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node")
JS = Path(answers.__file__).with_name("arithmetic.js")
DAY = Day(requests=1e5, prompt_tokens=8192, hit_rate=2 / 3, stored_bytes=5e11)


def questions() -> list[RoiQuestion]:
    model = find_model("llama-3.1-8b")
    large, mixed = find_model("llama-3.1-70b"), find_model("gpt-oss-120b")
    cases = [
        round_case(),
        round_case(bytes_s=1e8),
        round_case(fixed_s=100.0),
        round_case(d=0, bytes_s=0.5e9),
        round_case(fixed_s=0, bytes_s=1e12, gpus=8),
        round_case(miss_s=0.02),
        Case(kv=Kv.of(model), prefill=roofline(model, "h100"), store=round_case().store),
        Case(kv=Kv.of(large), prefill=of_preset("tensormesh-70b"), store=round_case().store),
        Case(
            kv=Kv.of(mixed, cut_windows=True),
            prefill=roofline(mixed, "h200"),
            store=round_case().store,
        ),
    ]
    first = RoiQuestion(
        model=model, case=cases[0], day=DAY, prices=Prices(), shard_bytes=6e10, shard_bytes_s=2e9
    )
    days = [DAY, replace(DAY, prompt_tokens=100), replace(DAY, prompt_tokens=131_072, hit_rate=0)]
    return [replace(first, case=case, day=day) for case in cases for day in days]


def node(script: str, text: str = "") -> str:
    assert NODE is not None
    done = subprocess.run(
        [NODE, "-"], input=script + text, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def alike(one: Any, other: Any, where: str = "") -> None:
    if isinstance(one, dict):
        for name, value in one.items():
            alike(value, other[name], f"{where}.{name}")
    elif one is None:
        assert other is None, where
    else:
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12), where


@needs_node
def test_the_page_calculates_what_python_calculates() -> None:
    asked = questions()
    # What is infinite becomes null in JSON, on both sides.
    data = json.dumps([question_data(question) for question in asked])
    told = json.loads(node(JS.read_text(), f"\nconsole.log(JSON.stringify({data}.map(answer)))"))
    assert len(told) == len(asked) == 27
    for question, found in zip(asked, told, strict=True):
        alike(found, answer(question).to_dict())


def test_constants_are_the_same() -> None:
    found = dict(re.findall(r"^const (\w+) = ([\d* ]+);", JS.read_text(), re.MULTILINE))
    assert eval(found["TOKENS_MAX"]) == arithmetic.TOKENS_MAX
    assert int(found["DAY_S"]) == money.DAY_S
    assert int(found["MONTH_DAYS"]) == money.MONTH_DAYS
    assert f"const BILLED = {money.BILLED};" in JS.read_text()


@pytest.fixture
def page(tmp_path: Path) -> str:
    model = replace(find_model("llama-3.1-8b"), name="</script><b>&model")
    question = replace(questions()[0], model=model)
    store = replace(question.case.store, source="</script><script>alert(1)</script>")
    question = replace(question, case=replace(question.case, store=store))
    write_page(tmp_path / "page.html", question, "kvferry roi --model '<b>'")
    return (tmp_path / "page.html").read_text()


def test_the_page_needs_no_network_and_is_no_way_in(page: str) -> None:
    assert not re.search(r"(src|href)\s*=|url\(|@import|fetch\(|XMLHttp|https?:", page)
    assert page.count("<script>") == page.count("</script>") == 1
    assert "&lt;/script&gt;&lt;b&gt;&amp;model" in page
    assert not re.search(r"/\*[A-Z]+\*/|<!--[A-Z]+-->", page), "a mark is left"


# The few parts of a browser that bind() touches.
_BROWSER = """
class Element {
  constructor() { this.kept = []; this.heard = {}; this.attributes = {}; }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener(name, what) { this.heard[name] = what; }
  append(...more) { this.kept.push(...more); }
}
const elements = { rows: new Element(), drawing: new Element(), sliders: new Element() };
const document = {
  getElementById: (id) => elements[id],
  createElement: () => new Element(),
};
"""


@needs_node
def test_a_slider_that_moves_changes_what_the_page_says(page: str) -> None:
    script = page.partition("<script>")[2].partition("</script>")[0].replace('"use strict";', "")
    told = json.loads(
        node(
            _BROWSER + script,
            """
const before = elements.rows.innerHTML, drawn = elements.drawing.innerHTML;
const rowOf = (name) => elements.sliders.kept.find((row) => row.kept[0].textContent === name);
const [, slider, typed] = rowOf("store, GB/s").kept;
slider.value = 0;
slider.heard.input();
const slow = elements.rows.innerHTML, shown = typed.value, redrawn = elements.drawing.innerHTML;
typed.value = "2";
typed.heard.change();
console.log(JSON.stringify({ before, slow, shown, after: elements.rows.innerHTML,
  sliders: elements.sliders.kept.length, redrawn: drawn !== redrawn, drawn }));
""",
        )
    )
    assert told["sliders"] == 13
    assert "pays" in told["before"]
    assert "does not pay: computing is sooner" in told["slow"]
    assert told["shown"] == 0.05
    assert told["after"] == told["before"]
    assert told["redrawn"]
    assert "NaN" not in told["before"] + told["slow"] + told["drawn"]
    assert told["drawn"].count("<polyline") == 2


@needs_node
def test_every_slider_keeps_what_it_is_given(page: str) -> None:
    script = (
        page.partition("<script>")[2].partition("function bind(")[0].replace('"use strict";', "")
    )
    question = json.dumps(question_data(questions()[0]))
    told = json.loads(
        node(
            script,
            f"""
const q = {question};
const bad = SLIDERS.filter(([, , path, scale, least, most]) => {{
  const value = get(q, path) / scale;
  const there = fromStep(toStep(value, least, most), least, most);
  put(q, path, get(q, path));
  return !(value >= least && value <= most && Math.abs(there - value) <= 0.02 * value + 1e-9);
}});
console.log(JSON.stringify([bad, q]));
""",
        )
    )
    assert told[0] == []
    assert told[1]["case"] == json.loads(json.dumps(asdict(questions()[0].case)))
