"""Options of commands, made from dataclasses: kinds, bounds, defaults, presets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner

from kvferry_lab.cli.options import REQUIRED, option, options_of, typed, under


@dataclass(frozen=True, kw_only=True)
class Plan:
    name: str = option(REQUIRED, "Its name.")
    rounds: int = option(3, "How often.", "--rounds", "--turns", least=1, most=9)
    rate: float | None = option(None, "How fast.", above=0)
    order: Literal["up", "down"] = option("up", "Which way.")
    sizes: tuple[int, ...] = option((1, 2), "How large.", kind=int)
    files: tuple[Path, ...] = option(
        (), "Which files.", "--file", kind=click.Path(path_type=Path), multiple=True, like=""
    )
    dry: bool = option(False, "Do nothing.")
    plot: bool = option(True, "Draw.")
    hidden: str = "no option"


def run(*words: str) -> tuple[int, Any, str]:
    """The exit code, the plan and what was typed of it, and what was said."""
    seen: list[Any] = []

    @click.command()
    @options_of(Plan)
    @click.option("--more", default=7)
    def command(ctx: click.Context, /, plan: Plan, more: int) -> None:
        preset = {"rounds": 5, "order": "down"}
        seen.append((plan, typed(ctx, "rounds"), under(ctx, plan, preset), more))

    done = CliRunner().invoke(command, words)
    return done.exit_code, seen[0] if seen else None, done.output


def test_fields_become_what_was_typed_or_their_default() -> None:
    code, (plan, is_typed, _, more), _ = run("--name", "a")
    assert (code, is_typed, more) == (0, False, 7)
    assert plan == Plan(name="a")
    words = ["--name", "b", "--turns", "4", "--rate", "0.5", "--order", "down", "--sizes", "3, 4,5"]
    _, (plan, is_typed, _, _), _ = run(*words, "--file", "x", "--file", "y", "--dry", "--no-plot")
    assert is_typed
    assert plan == Plan(
        name="b", rounds=4, rate=0.5, order="down", sizes=(3, 4, 5), dry=True, plot=False,
        files=(Path("x"), Path("y")),
    )  # fmt: skip


def test_a_preset_stands_under_what_was_typed() -> None:
    _, (_, _, whole, _), _ = run("--name", "a", "--rounds", "2")
    assert (whole.rounds, whole.order, whole.name) == (2, "down", "a")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--name"),
        (("--name", "a", "--rounds", "10"), "1<=x<=9"),
        (("--name", "a", "--rate", "0"), "x>0"),
        (("--name", "a", "--rate", "nan"), "not a finite number"),
        (("--name", "a", "--order", "sideways"), "up"),
        (("--name", "a", "--sizes", "1,x"), "'1,x' is no list like 1,2,4"),
        (("--name", "a", "--hidden", "x"), "No such option"),
    ],
)
def test_what_cannot_be_is_a_usage_error(words: tuple[str, ...], said: str) -> None:
    code, plan, text = run(*words)
    assert (code, plan) == (2, None)
    assert said in text


def test_help_has_texts_and_defaults() -> None:
    _, _, text = run("--help")
    assert "--rounds, --turns INTEGER RANGE" in text
    assert "How often.  [default: 3; 1<=x<=9]" in text
    assert "Its name.  [required]" in text
    assert "--plot / --no-plot" in text
    assert "How fast.  [x>0]" in text
