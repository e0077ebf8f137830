"""`kvferry lab tokens`: llmperf's token benchmark, with its flags, environment and files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from kvferry.base.errors import UsageError

__all__ = ["tokens"]

T = TypeVar("T", bound=Callable[..., Any])

_BASE, _KEY = "OPENAI_API_BASE", "OPENAI_API_KEY"
_SIZE_BYTES_MAX = 1 << 20


def _number(name: str, default: int, text: str, least: int = 0) -> Callable[[T], T]:
    return click.option(
        name, type=click.IntRange(least), default=default, show_default=True, help=text
    )


@click.command(
    epilog=f"{_BASE} (e.g. http://localhost:8000/v1) and {_KEY} say which server; a file .env here "
    "may have both. Variables of Ray have no effect.  Exit codes: 0 done, 1 no request was "
    "answered, 2 usage.  Example: kvferry lab tokens --model kvferry-demo --results-dir results"
)
@click.option("--model", required=True, help="Its name at the server.")
@_number("--mean-input-tokens", 550, "Mean length of prompts.")
@_number("--stddev-input-tokens", 150, "Its standard deviation.")
@_number("--mean-output-tokens", 150, "Mean max_tokens of answers.")
@_number("--stddev-output-tokens", 80, "Its standard deviation.")
@_number("--num-concurrent-requests", 10, "Requests at a time.", 1)
@_number("--timeout", 90, "Seconds after which no request is begun.", 1)
@_number("--max-num-completed-requests", 10, "Requests in all.", 1)
@click.option(
    "--additional-sampling-params",
    default="{}",
    show_default=True,
    help="More fields of a request, as JSON.",
)
@click.option("--results-dir", default="", help="Where both files are written.  [default: nowhere]")
@click.option("--llm-api", default="openai", show_default=True, help="Has to be openai.")
@click.option("--metadata", default="", metavar="K=V,...", help="More fields of the summary.")
@click.option("--log-prompts/--no-log-prompts", default=False, hidden=True)
@click.pass_context
def tokens(ctx: click.Context, /, **o: Any) -> None:
    """Send prompts of random lengths and measure tokens per second, as llmperf does.

    The same command line as its token_benchmark_ray.py, the same environment, and two JSON files
    with the same names and fields.
    """
    from kvferry_lab.openai_client import OpenAIClient
    from kvferry_lab.tokens.report import summary_lines, write_results
    from kvferry_lab.tokens.run import TokenPlan, run_tokens

    if o["llm_api"] != "openai":
        raise UsageError(f"--llm-api {o['llm_api']} is not known; openai is")
    metadata = _metadata(o["metadata"])
    environ = {**_of_file(Path(".env")), **os.environ}
    for name in (_BASE, _KEY):
        if not environ.get(name):
            raise UsageError(f"{name} must be set, in the environment or in .env")
    names = (
        *("model", "mean_input_tokens", "stddev_input_tokens", "mean_output_tokens"),
        *("stddev_output_tokens", "num_concurrent_requests", "max_num_completed_requests"),
    )
    plan = TokenPlan(
        **{name: o[name] for name in names},
        timeout_s=float(o["timeout"]),
        additional_sampling_params=_params(o["additional_sampling_params"]),
    )
    client = OpenAIClient(environ[_BASE], environ[_KEY], limit_s=180.0)
    run = run_tokens(plan, client, lambda text: click.echo(text, err=True))
    if run.timed_out:
        click.echo("Test timed out before all requests could be completed.", err=True)
    click.echo(f"Results for token benchmark for {plan.model} queried with the openai api.\n")
    for line in summary_lines(run):
        click.echo(line)
    if o["results_dir"]:
        for path in write_results(run, Path(o["results_dir"]), metadata):
            click.echo(f"wrote {path}", err=True)
    failed = [answer.error for answer, _ in run.answers if answer.error]
    if failed:
        click.echo(f"kvferry: {len(failed)} requests failed; the first: {failed[0]}", err=True)
    ctx.exit(1 if len(failed) == len(run.answers) else 0)


def _params(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError("--additional-sampling-params is no JSON object")
    return found


def _metadata(text: str) -> dict[str, str]:
    found = {}
    for item in filter(None, text.split(",")):
        name, sign, value = item.partition("=")
        if not sign or not name:
            raise UsageError("--metadata is a list like name=foo,bar=1")
        found[name] = value
    return found


def _of_file(path: Path) -> Mapping[str, str]:
    """The two variables in a file of lines NAME=VALUE, quoted or not; what else it has is left."""
    try:
        with path.open(errors="replace") as file:
            lines = file.read(_SIZE_BYTES_MAX).splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, sign, value = line.strip().removeprefix("export ").partition("=")
        if sign and name.strip() in (_BASE, _KEY):
            found[name.strip()] = value.strip().strip("'\"")
    return found
