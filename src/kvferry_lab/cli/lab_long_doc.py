"""`kvferry lab long-doc-qa`: the long-document benchmark against any OpenAI-compatible server."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click

from kvferry.base.errors import UsageError
from kvferry_lab.cli.options import option, options_of, typed, under
from kvferry_lab.long_doc.run import PRESETS, LongDocPlan

__all__ = ["long_doc_qa"]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Which server is asked, for which part of the plan, and where figures go."""

    hit_miss_ratio: str | None = option(
        None, "Make M of H + M repeated prompts new ones.", metavar="H:M"
    )
    preset: Literal["published"] | None = option(
        None, "Take 40 documents of 40,000 tokens, answers of 100, 3 rounds."
    )
    scale: float = option(
        1.0, "Part of the documents to ask for; their length stays.", above=0, most=1
    )
    corpus: Path | None = option(None, "Words of documents; default: the word hi.")
    host: str = option("localhost", "The server.")
    port: int = option(8000, "Its port.", least=1, most=65535)
    base_url: str | None = option(None, "Instead of both, e.g. http://host:8000/v1.")
    model: str | None = option(
        None, "Its name there.  [default: the first one that the server has]"
    )
    timeout_s: float = option(600.0, "Most seconds of an answer.", above=0)
    chunk_tokens: int = option(256, "Tokens of a chunk there.", least=1)
    capacity_tokens: int | None = option(
        None,
        "What the server's cache holds, to tell what no policy could keep.  [default: that of "
        "serve-demo]",
        least=1,
    )
    expected_ttft_gain: float | None = option(None, "Fail if warm-up over query is below.")
    expected_latency_gain: float | None = option(None, "The same for the time of a prompt.")
    expected_latency: float | None = option(None, "Fail if the query round takes more seconds.")
    output: Path | None = option(None, "Write the answers there.")
    results_dir: Path = option(Path(), "The folder of CSV files and plots.")
    visualize: bool = option(False, "Draw both rounds.")
    as_json: bool = option(False, "One JSON object on standard output.", "--json")


@click.command(
    "long-doc-qa",
    epilog="Exit codes: 0 done, 1 a request failed or an expectation was missed, 2 usage.  "
    "Example: kvferry lab long-doc-qa --preset published --scale 0.1 --port 8000 --completions",
)
@options_of(LongDocPlan, _Run)
def long_doc_qa(ctx: click.Context, /, plan: LongDocPlan, o: _Run) -> None:
    """Ask for long documents once, then again and again, and say what the cache made of it.

    Writes warmup_round.csv and query_round.csv, a line for each request.
    """
    from kvferry.cli.table import console
    from kvferry_lab.drawing import check_plot
    from kvferry_lab.long_doc import report
    from kvferry_lab.long_doc.run import run_long_doc
    from kvferry_lab.openai_client import OpenAIClient, capacity_tokens
    from kvferry_lab.output import command_line

    if o.visualize:
        check_plot()
    plan = _whole(ctx, plan, o)
    base_url = o.base_url or f"http://{o.host}:{o.port}/v1"
    client = OpenAIClient(base_url, limit_s=o.timeout_s)
    model = o.model or client.model()
    run = run_long_doc(plan, client, model, lambda text: click.echo(text, err=True))
    capacity = o.capacity_tokens or capacity_tokens(base_url)
    loss = report.hit_loss(run.records, o.chunk_tokens, capacity)
    report.write_tables(run, o.results_dir)
    if o.output is not None:
        texts = [f"\nResponse of request {r.prompt_id}: {r.text}\n" for r in run.records]
        o.output.write_text("".join(texts))
    if o.visualize:
        report.plot_rounds(run, o.results_dir, command_line())
    if o.as_json:
        click.echo(json.dumps(report.as_json(run, loss)))
    else:
        click.echo("\n".join(report.result_lines(run)))
        console().print("", report.round_table(run), "")
        click.echo("\n".join(report.loss_lines(run, loss)))
    expected = (o.expected_ttft_gain, o.expected_latency_gain, o.expected_latency)
    missed = report.missed_expectations(run, *expected)
    failed = [record for record in run.records if not record.successful]
    if failed:
        missed.append(f"{len(failed)} requests failed; the first: {failed[0].error}")
    for text in missed:
        click.echo(f"kvferry: {text}", err=True)
    ctx.exit(1 if missed else 0)


def _whole(ctx: click.Context, plan: LongDocPlan, o: _Run) -> LongDocPlan:
    """The given options over the preset's over the defaults."""
    plan = under(ctx, plan, PRESETS[o.preset] if o.preset else {})
    chosen: dict[str, Any] = {"num_documents": max(1, round(plan.num_documents * o.scale))}
    if plan.rounds is not None and not typed(ctx, "repeat_mode"):
        chosen["repeat_mode"] = "tile"
    if o.hit_miss_ratio:
        hit, _, miss = o.hit_miss_ratio.partition(":")
        if not (hit.isdecimal() and miss.isdecimal() and int(hit) + int(miss)):
            raise UsageError("--hit-miss-ratio is two numbers, e.g. 3:1")
        chosen["hit_miss_ratio"] = (int(hit), int(miss))
    if o.corpus is not None:
        try:
            chosen["words"] = o.corpus.read_text(errors="replace").split()
        except OSError as error:
            raise UsageError(f"--corpus {o.corpus}: {error.strerror}") from None
        if not chosen["words"]:
            raise UsageError(f"--corpus {o.corpus} has no words")
    return replace(plan, **chosen)
