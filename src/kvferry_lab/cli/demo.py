"""`kvferry demo`: the whole idea in one command, on any machine, without a server or a GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from kvferry_lab.cli.options import option, options_of
from kvferry_lab.output import progress

if TYPE_CHECKING:
    from kvferry_lab.demo.run import DemoResult, DemoSettings

__all__ = ["demo"]


@dataclass(frozen=True, kw_only=True)
class _Demo:
    """What to run."""

    store: str = option("embedded", "The URL of a server, or `embedded`.", metavar="URL")
    tokens: int | None = option(None, "Tokens of the prompt.", least=2)
    chunk_tokens: int | None = option(None, "Tokens per chunk.", least=1)
    seed: int = option(0, "Seed of the random weights.", least=0)
    small: bool = option(False, "Use a smaller model and prompt.")
    as_json: bool = option(False, "One JSON object on standard output.", "--json")


@click.command(
    epilog="Example: kvferry demo --tokens 6000.  Exit codes: 0 the tokens are the same and "
    "loading beat computing; 1 not so, or something failed: the reason is on standard error; "
    "2 usage; 130 interrupted."
)
@options_of(_Demo)
def demo(ctx: click.Context, /, o: _Demo) -> None:
    """Show KV surviving its process: the same tokens, far sooner.

    A small transformer reads the project's own documents. Process 1 computes their KV and stores
    it; process 2 loads it and writes on, and also computes everything itself, to compare.
    """
    try:
        from kvferry_lab.demo.run import run_demo
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise click.ClickException(
            "the demo needs NumPy: run `pip install 'kvferry[numpy,embedded]'`"
        ) from None
    with progress(lambda text: click.echo(text, err=True)) as say:
        result = run_demo(_settings(o), say)
    if o.as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        _print(result)
    for failure in result.failures:
        click.echo(f"kvferry: {failure}", err=True)
    ctx.exit(1 if result.failures else 0)


def _settings(o: _Demo) -> DemoSettings:
    from kvferry_lab.demo.run import SMALL, DemoSettings

    settings = replace(SMALL if o.small else DemoSettings(), store=o.store, seed=o.seed)
    if o.tokens is not None:
        settings = replace(settings, tokens=o.tokens)
    if o.chunk_tokens is not None:
        settings = replace(settings, model=replace(settings.model, page_tokens=o.chunk_tokens))
    return settings


def _print(result: DemoResult) -> None:
    from kvferry.cli.table import console, facts, number, table
    from kvferry_lab.demo.clients import socket_gain

    out = console()
    out.print(facts(_setting_facts(result)), "")
    out.print(facts(_run_facts(result)), "")
    rows = [(c.client, number(c.set_gb_per_s), number(c.get_gb_per_s)) for c in result.clients]
    out.print(table(["", "SET GB/s", "GET GB/s"], rows), "")
    for client in result.clients:
        if client.note:
            out.print(f"{client.client}: {client.note}.")
    if (gain := socket_gain(result.clients)) is not None:
        out.print(f"Unix socket: SET {gain[0]:.2f} x, GET {gain[1]:.2f} x the best over TCP.")
    out.print(
        "Best of 3 rounds over the same chunks on the same server; all bytes verified. redis-py: "
        "one call per key, and GET ends with new bytes objects instead of in place."
    )


def _setting_facts(result: DemoResult) -> list[tuple[str, str]]:
    from kvferry_lab.output import machine_line

    model = result.settings.model
    kv_per_token_kib = model.page_bytes / model.page_tokens / 1024
    return [
        (
            "model",
            f"a transformer in NumPy: {result.parameters / 1e6:.1f} M random weights "
            f"(seed {result.settings.seed}), {model.layers} layers, {model.heads} query and "
            f"{model.kv_heads} KV heads, {model.kv_dtype} KV of {kv_per_token_kib:g} KiB per token",
        ),
        ("machine", machine_line(result.machine)),
        ("server", result.server),
        (
            "prompt",
            f"{result.settings.tokens:,} tokens from {_some(result.sources)}: {result.chunks} full "
            f"chunks of {model.page_bytes / 1e6:.2f} MB, {result.stored_bytes / 1e6:.1f} MB of KV",
        ),
    ]


def _run_facts(result: DemoResult) -> list[tuple[str, str]]:
    r = result.reader
    return [
        (
            "process 1",
            f"computed in {_time(result.prefill_s)}, stored in {_time(result.store_s)} "
            f"({result.store_gb_per_s:.2f} GB/s)",
        ),
        (
            "process 2",
            f"found in {_time(r.lookup_s)}, loaded in {_time(r.load_s)} "
            f"({result.load_gb_per_s:.2f} GB/s)",
        ),
        (
            "first token",
            f"{_time(r.ttft_without_cache_s)} without the cache, "
            f"{_time(r.ttft_with_cache_s)} with it: {result.speedup:.1f} times sooner",
        ),
        ("same tokens", _same(result)),
    ]


def _same(result: DemoResult) -> str:
    if not result.same_tokens:
        return "no"
    if result.reader.logits_equal:
        return f"yes ({len(result.tokens)} of {len(result.tokens)}; logits equal to the bit)"
    return f"yes ({len(result.tokens)} of {len(result.tokens)}; logits differ in their last bits)"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    return f"{seconds * 1e3:.{0 if seconds >= 0.01 else 1}f} ms"


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and others"
