"""`kvferry lab long-doc-qa`: the long-document benchmark against any OpenAI-compatible server."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from kvferry.base.errors import UsageError
from kvferry.cli.numbers import Number

__all__ = ["long_doc_qa"]

_WHOLE = click.IntRange(1)
_PATH = click.Path(path_type=Path)
_PLAN = (
    *("num_documents", "document_length", "output_len", "repeat_count", "repeat_mode"),
    *("shuffle_seed", "rounds", "max_inflight_requests", "sleep_time_after_warmup"),
)


@click.command(
    "long-doc-qa",
    epilog="Exit codes: 0 done, 1 a request failed or an expectation was missed, 2 usage.  "
    "Example: kvferry lab long-doc-qa --preset published --scale 0.1 --port 8000 --completions",
)
@click.option(
    "--num-documents", "--ldqa-num-documents", type=_WHOLE, help="How many.  [default: 8]"
)
@click.option(
    "--document-length",
    "--ldqa-document-length",
    type=_WHOLE,
    help="Tokens of a document.  [default: 20000]",
)
@click.option(
    "--output-len",
    "--ldqa-max-output-length",
    type=_WHOLE,
    help="Tokens of an answer.  [default: 100]",
)
@click.option(
    "--repeat-count",
    "--ldqa-query-per-document",
    type=_WHOLE,
    help="How often each is asked for after the warm-up.  [default: 2]",
)
@click.option(
    "--repeat-mode",
    "--ldqa-shuffle-policy",
    type=click.Choice(["random", "tile", "interleave"]),
    help="Their order.  [default: random; tile with --rounds]",
)
@click.option("--shuffle-seed", type=int, help="Seed of --repeat-mode random.  [default: 0]")
@click.option(
    "--rounds",
    type=click.IntRange(2),
    help="Ask in so many rounds, the warm-up included, instead of --repeat-count.",
)
@click.option(
    "--max-inflight-requests",
    "--ldqa-num-inflight-requests",
    type=_WHOLE,
    help="Requests at a time.  [default: 2]",
)
@click.option(
    "--sleep-time-after-warmup", type=Number(0), help="Seconds to wait then.  [default: 0]"
)
@click.option("--hit-miss-ratio", metavar="H:M", help="Make M of H + M repeated prompts new ones.")
@click.option(
    "--preset",
    type=click.Choice(["published"]),
    help="Take 40 documents of 40,000 tokens, answers of 100, 3 rounds.",
)
@click.option(
    "--scale",
    type=Number(0, 1, min_open=True),
    default=1.0,
    help="Part of the documents to ask for; their length stays.",
)
@click.option("--corpus", type=_PATH, help="Words of documents; default: the word hi.")
@click.option("--host", default="localhost", show_default=True, help="The server.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Its port."
)
@click.option("--base-url", help="Instead of both, e.g. http://host:8000/v1.")
@click.option("--model", help="Its name there.  [default: the first one that the server has]")
@click.option("--completions", is_flag=True, help="Use /completions, not /chat/completions.")
@click.option(
    "--timeout-s",
    type=Number(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Most seconds of an answer.",
)
@click.option(
    "--chunk-tokens", type=_WHOLE, default=256, show_default=True, help="Tokens of a chunk there."
)
@click.option(
    "--capacity-tokens",
    type=_WHOLE,
    help="What the server's cache holds, to tell what no policy could keep.  [default: that of "
    "serve-demo]",
)
@click.option("--expected-ttft-gain", type=Number(), help="Fail if warm-up over query is below.")
@click.option("--expected-latency-gain", type=Number(), help="The same for the time of a prompt.")
@click.option(
    "--expected-latency", type=Number(), help="Fail if the query round takes more seconds."
)
@click.option("--output", type=_PATH, help="Write the answers there.")
@click.option(
    "--results-dir", type=_PATH, default=Path(), help="The folder of CSV files and plots."
)
@click.option("--visualize", is_flag=True, help="Draw both rounds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.pass_context
def long_doc_qa(ctx: click.Context, /, **o: Any) -> None:
    """Ask for long documents once, then again and again, and say what the cache made of it.

    Writes warmup_round.csv and query_round.csv, a line for each request.
    """
    from kvferry.cli.table import console
    from kvferry_lab.bench.plot import check_plot
    from kvferry_lab.long_doc import report
    from kvferry_lab.long_doc.report import hit_loss
    from kvferry_lab.long_doc.run import LongDocPlan, run_long_doc
    from kvferry_lab.openai_client import OpenAIClient, capacity_tokens

    if o["visualize"]:
        check_plot()
    plan = LongDocPlan(**_plan(o))
    base_url = o["base_url"] or f"http://{o['host']}:{o['port']}/v1"
    client = OpenAIClient(base_url, limit_s=o["timeout_s"])
    model = o["model"] or client.model()
    run = run_long_doc(plan, client, model, lambda text: click.echo(text, err=True))
    capacity = o["capacity_tokens"] or capacity_tokens(base_url)
    loss = hit_loss(run.records, o["chunk_tokens"], capacity)
    report.write_csv(run, o["results_dir"])
    if o["output"] is not None:
        texts = [f"\nResponse of request {r.prompt_id}: {r.text}\n" for r in run.records]
        o["output"].write_text("".join(texts))
    if o["visualize"]:
        from kvferry_lab.long_doc.report import plot_rounds

        plot_rounds(run, o["results_dir"], shlex.join(["kvferry", *sys.argv[1:]]))
    if o["as_json"]:
        click.echo(json.dumps(report.as_json(run, loss)))
    else:
        click.echo("\n".join(report.result_lines(run)))
        console().print("", report.round_table(run), "")
        click.echo("\n".join(report.loss_lines(run, loss)))
    expected = (o["expected_ttft_gain"], o["expected_latency_gain"], o["expected_latency"])
    missed = report.missed_expectations(run, *expected)
    failed = [record for record in run.records if not record.successful]
    if failed:
        missed.append(f"{len(failed)} requests failed; the first: {failed[0].error}")
    for text in missed:
        click.echo(f"kvferry: {text}", err=True)
    ctx.exit(1 if missed else 0)


def _plan(o: dict[str, Any]) -> dict[str, Any]:
    """What was said, over the preset, over the defaults."""
    from kvferry_lab.long_doc.run import PRESETS, LongDocPlan

    chosen: dict[str, Any] = dict(PRESETS[o["preset"]]) if o["preset"] else {}
    chosen |= {name: o[name] for name in _PLAN if o[name] is not None}
    if chosen.get("rounds") is not None:
        chosen.setdefault("repeat_mode", "tile")
    documents = chosen.get("num_documents", LongDocPlan.num_documents)
    chosen["num_documents"] = max(1, round(documents * o["scale"]))
    if o["hit_miss_ratio"]:
        hit, _, miss = o["hit_miss_ratio"].partition(":")
        if not (hit.isdecimal() and miss.isdecimal() and int(hit) + int(miss)):
            raise UsageError("--hit-miss-ratio is two numbers, e.g. 3:1")
        chosen["hit_miss_ratio"] = (int(hit), int(miss))
    if o["corpus"] is not None:
        try:
            chosen["words"] = o["corpus"].read_text(errors="replace").split()
        except OSError as error:
            raise UsageError(f"--corpus {o['corpus']}: {error.strerror}") from None
        if not chosen["words"]:
            raise UsageError(f"--corpus {o['corpus']} has no words")
    return {**chosen, "completions": o["completions"]}
