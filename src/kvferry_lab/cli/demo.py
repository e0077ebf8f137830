"""`kvferry demo`: the whole idea in one command, on any machine, without a server or a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kvferry_lab.demo.run import DemoResult, DemoSettings

__all__ = ["demo"]


@click.command(
    epilog="Example: kvferry demo --tokens 6000.  Exit codes: 0 the tokens are the same and "
    "loading beat computing; 1 not so, or something failed: the reason is on standard error; "
    "2 usage; 130 interrupted."
)
@click.option(
    "--store", default="embedded", metavar="URL", help="The URL of a server, or `embedded`."
)
@click.option("--tokens", type=click.IntRange(2), help="Tokens of the prompt.")
@click.option("--chunk-tokens", type=click.IntRange(1), help="Tokens per chunk.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the random weights.")
@click.option("--small", is_flag=True, help="Use a smaller model and prompt.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.pass_context
def demo(
    ctx: click.Context,
    store: str,
    tokens: int | None,
    chunk_tokens: int | None,
    seed: int,
    small: bool,
    as_json: bool,
) -> None:
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
    with _progress() as progress:
        result = run_demo(_settings(store, tokens, chunk_tokens, seed, small), progress)
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        _print(result)
    for failure in result.failures:
        click.echo(f"kvferry: {failure}", err=True)
    ctx.exit(1 if result.failures else 0)


def _settings(
    store: str, tokens: int | None, chunk_tokens: int | None, seed: int, small: bool
) -> DemoSettings:
    from kvferry_lab.demo.run import SMALL, DemoSettings

    settings = replace(SMALL if small else DemoSettings(), store=store, seed=seed)
    if tokens is not None:
        settings = replace(settings, tokens=tokens)
    if chunk_tokens is not None:
        settings = replace(settings, model=replace(settings.model, page_tokens=chunk_tokens))
    return settings


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """The current step on standard error: a spinner on a terminal, else one line per step."""
    from kvferry.cli.table import console

    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda text: click.echo(text, err=True)
        return
    with err.status("starting") as status:
        yield status.update


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
