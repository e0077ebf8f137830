"""One HTML page with sliders over a question; it needs no network and no other file."""

from __future__ import annotations

import html
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvferry_lab.roi.answer import RoiQuestion

__all__ = ["question_data", "write_page"]

_HERE = Path(__file__).parent


def question_data(question: RoiQuestion) -> dict[str, Any]:
    """What the arithmetic of the page takes."""
    return {
        "case": asdict(question.case),
        "day": asdict(question.day),
        "prices": asdict(question.prices),
    }


def write_page(file: Path, question: RoiQuestion, command: str) -> None:
    """Write the page."""
    title = (
        f"{question.model.name}; {question.case.prefill.source}; store: "
        f"{question.case.store.source}. Move a slider, or type."
    )
    # A name of a model may hold anything, and this is a script in a page.
    data = json.dumps(question_data(question)).replace("<", "\\u003c")
    parts = {
        "<!--TITLE-->": html.escape(title),
        "<!--COMMAND-->": html.escape(command),
        "/*ARITHMETIC*/": _read("arithmetic.js"),
        "/*PAGE*/": _read("page.js").replace('"use strict";\n', ""),
        "/*QUESTION*/": data,
    }
    text = _read("page.html")
    for mark, part in parts.items():
        before, _, after = text.partition(mark)
        text = before + part + after
    file.write_text(text, encoding="utf-8")


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
