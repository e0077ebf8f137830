"""What `kvferry roi` takes: its options, and which of them go together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kvferry.cli.numbers import Number
from kvferry_lab.cli.outputs import DRAWING, OutputFile

__all__ = ["check_options", "roi_options"]

_FILE = click.Path(dir_okay=False, path_type=Path)
_ABOVE_0 = Number(0, min_open=True)
_ENGINES = ("preset", "gpu", "prefill_tokens_s", "calibration", "server")
_HITS = ("hit_rate", "rounds", "traces", "replay")
# Options that mean nothing without another, and those that a replay answers by itself.
_NEEDS = {
    **dict.fromkeys(("policy", "capacity", "limit"), "traces"),
    **dict.fromkeys(("server_model", "probe_tokens", "save_calibration"), "server"),
    "utilisation": "gpu",
}
_LIST = "kvferry roi --list has the names of --preset, --gpu and --model"
_REPLAYED = ("prompt_tokens", "keep_hours", "working_set_gb")


def _words(kind: Any, text: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "help": text, **more}


_OPTIONS: dict[str, dict[str, Any]] = {
    "--model": {
        "metavar": "NAME|FILE",
        "help": "A name of --list, a config.json, or its directory.",
    },
    "--kv-value-bytes": _words(click.IntRange(1, 4), "Bytes of one number of KV, e.g. 1 for fp8."),
    "--cut-windows": {"is_flag": True, "help": "Sliding layers keep no more than their window."},
    "--gpu": {"metavar": "NAME", "help": "A name of --list; it reaches half of its peak."},
    "--gpus": _words(click.IntRange(1), "How many GPUs share the model.  [default: 1]"),
    "--utilisation": _words(
        Number(0, 1, min_open=True), "The part of its peak that a GPU reaches."
    ),
    "--prefill-tokens-s": _words(_ABOVE_0, "What the engine was measured to prefill."),
    "--calibration": _words(_FILE, "A file that --save-calibration wrote.", metavar="FILE"),
    "--server": {"metavar": "URL", "help": "Measure the engine at this URL, by OpenAI's API."},
    "--server-model": {"metavar": "NAME", "help": "Its name there.  [default: the first]"},
    "--probe-tokens": {
        "default": "256,1024,4096",
        "show_default": True,
        "help": "Tokens of the prompts that --server is asked.",
    },
    "--save-calibration": _words(_FILE, "Write there what --server measured.", metavar="FILE"),
    "--preset": {"metavar": "NAME", "help": "Assume what a published calculator does."},
    "--store-gbps": _words(_ABOVE_0, "Bandwidth of the store in 10^9 bytes/s.  [default: 2]"),
    "--store-ms": _words(Number(0), "Milliseconds that any load takes.  [default: 1]"),
    "--store-file": _words(
        _FILE, "Read both from JSON of doctor, or what tune wrote.", metavar="FILE"
    ),
    "--prompt-tokens": _words(
        click.IntRange(2, 1 << 27),
        "Tokens of one request's prompt.",
        default=8192,
        show_default=True,
    ),
    "--chunk-tokens": _words(
        click.IntRange(1), "Tokens of a chunk; full ones are kept.  [default: 256, or the file's]"
    ),
    "--hit-rate": _words(Number(0, 1), "Part of the requests that hit.  [default: 0.5]"),
    "--rounds": _words(click.IntRange(1), "N rounds that are alike hit (N-1)/N of the time."),
    "--replay": _words(_FILE, "Take hits from JSON of kvferry trace replay.", metavar="FILE"),
    "--requests-a-day": _words(
        _ABOVE_0, "Requests of all engines in a day.", default=100_000, show_default=True
    ),
    "--keep-hours": _words(_ABOVE_0, "How long the store keeps what misses store.", default=1.0),
    "--working-set-gb": _words(_ABOVE_0, "GB of KV in the store, instead of --keep-hours."),
    "--gpu-price": _words(Number(0), "Price of a GPU for an hour.  [default: 2]"),
    "--ram-price": _words(Number(0), "Price of a GB of memory for a month.", default=5.0),
    "--shard-gb": _words(
        _ABOVE_0, "GB of memory of one store server.", default=64.0, show_default=True
    ),
    "--shard-gbps": _words(_ABOVE_0, "Bandwidth of one store server.  [default: the store's]"),
    "--policy": {
        "metavar": "LIST",
        "help": "Policies to replay --trace with: LRU,ARC.  [default: all]",
    },
    "--capacity": {"metavar": "LIST", "help": "Sizes to replay --trace with: chunks, or 64GB,90%."},
    "--limit": _words(click.IntRange(1), "Replay so many requests of --trace at most."),
    "--json": {"is_flag": True, "help": "One JSON object on standard output."},
    "--plot": _words(
        OutputFile(*DRAWING, path_type=Path), "Draw the answer: PNG or SVG.", metavar="FILE"
    ),
    "--page": _words(
        OutputFile(path_type=Path), "Write a page with sliders: HTML.", metavar="FILE"
    ),
    "--list": {"is_flag": True, "help": "Print the models, GPUs and presets that have names."},
    "--validate": {"is_flag": True, "help": "Recompute published figures instead."},
}
_NAMES = {"--json": "as_json", "--list": "listed", "--plot": "plot_file", "--page": "page_file"}


def roi_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Declare all of them; a handler gets them by name."""
    for option, more in reversed(_OPTIONS.items()):
        name = _NAMES.get(option, option[2:].replace("-", "_"))
        shown = {"show_default": True, **more} if more.get("default") is not None else more
        command = click.option(option, name, **shown)(command)
    text = "Recorded requests; more than once for more."
    trace = click.option("--trace", "traces", multiple=True, type=_FILE, metavar="FILE", help=text)
    return trace(command)


def check_options(ctx: click.Context, o: dict[str, Any]) -> None:
    """One engine, at most one rate of hits, and nothing without effect.

    Raises:
        click.UsageError: Something does not fit.
    """
    _one_of(o, "engine", _ENGINES)
    _one_of(o, "rate of hits", _HITS, needed=False)
    _fitting(ctx, o)


def _one_of(o: dict[str, Any], what: str, names: Sequence[str], needed: bool = True) -> None:
    given = [name for name in names if o[name] not in (None, ())]
    if len(given) > 1 or (needed and not given):
        text = f"name one {what} of {', '.join(map(_option, given or names))}"
        raise click.UsageError(text if given else f"{text}; {_LIST}")


def _fitting(ctx: click.Context, o: dict[str, Any]) -> None:
    """Nothing that was given is without effect."""
    typed = {name for name in o if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    for name, needed in _NEEDS.items():
        if name in typed and not o[needed]:
            raise click.UsageError(f"{_option(name)} is for {_option(needed)}")
    for given in ("traces", "replay"):
        wrong = [name for name in _REPLAYED if name in typed and o[given]]
        if wrong:
            raise click.UsageError(f"{_option(given)} says it already: no {_option(wrong[0])}")
    if o["replay"] and o["chunk_tokens"]:
        raise click.UsageError("--replay says it already: no --chunk-tokens")


def _option(name: str) -> str:
    return "--trace" if name == "traces" else "--" + name.replace("_", "-")
