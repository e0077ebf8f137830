"""`kvferry lab tokens`: llmperf's token benchmark, with its requests, flags, environment and files.

Prompts and answers have random lengths, and a fixed number of requests is in flight. The requests
are llmperf's: /chat/completions with an empty system message, a stream, lengths from normal
distributions, the same for every run. What is measured is what llmperf measures, by the same names:
the inter-token latency of a request is the time of its last token over the number of tokens, so it
contains the time to the first one. Both JSON files have llmperf's names and fields.

Two things differ. Tokens are counted by the server and not by a tokenizer of some other model; how
many letters make a token is asked of it with one short request. And a prompt is made of words, not
of sonnets.

Source: github.com/ray-project/llmperf, its `common_metrics` and `RESULTS_VERSION`, and files that
its program wrote. It divides by the events of a stream where it says tokens. It has no files where
requests fail: they are as its code would have them.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvferry.base.errors import UsageError
from kvferry_lab.bench.intervals import quantile
from kvferry_lab.cli.options import REQUIRED, option, options_of
from kvferry_lab.openai_client import Answer, OpenAIClient
from kvferry_lab.openai_load import ask_all, letters_per_token, random_text

__all__ = [
    "TokenPlan",
    "TokenRun",
    "individual",
    "summary",
    "summary_lines",
    "tokens",
]

_SEED = 11111
_ASK = (
    "Randomly stream lines from the following text with {} output tokens. "
    "Don't generate eos tokens:\n\n"
)
_VERSION = "2023-08-31"
_QUANTILES = (25, 50, 75, 90, 95, 99)
_SPREAD = (
    "inter_token_latency_s",
    "ttft_s",
    "end_to_end_latency_s",
    "request_output_throughput_token_per_s",
    "number_input_tokens",
    "number_output_tokens",
)
_BASE, _KEY = "OPENAI_API_BASE", "OPENAI_API_KEY"
_SIZE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TokenPlan:
    """The requests of a run; lengths are in tokens."""

    model: str = option(REQUIRED, "Its name at the server.")
    mean_input_tokens: int = option(550, "Mean length of prompts.", least=0)
    stddev_input_tokens: int = option(150, "Its standard deviation.", least=0)
    mean_output_tokens: int = option(150, "Mean max_tokens of answers.", least=0)
    stddev_output_tokens: int = option(80, "Its standard deviation.", least=0)
    num_concurrent_requests: int = option(10, "Requests at a time.", least=1)
    timeout: int = option(90, "Seconds after which no request is begun.", least=1)
    max_num_completed_requests: int = option(10, "Requests in all.", least=1)
    additional_sampling_params: str = option("{}", "More fields of a request, as JSON.")

    @property
    def params(self) -> dict[str, Any]:
        """The other fields of a request.

        Raises:
            UsageError: They are no JSON object.
        """
        try:
            found = json.loads(self.additional_sampling_params)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UsageError("--additional-sampling-params is no JSON object")
        return found


@dataclass(frozen=True, kw_only=True)
class TokenRun:
    """The answers of a run, each with the tokens of its prompt, in the order of their ends."""

    plan: TokenPlan
    answers: list[tuple[Answer, int]]
    seconds: float
    timed_out: bool


def run_tokens(
    plan: TokenPlan, client: OpenAIClient, say: Callable[[str], None] = lambda _: None
) -> TokenRun:
    """Ask until so many requests are done, or the time is over; those under way are waited for.

    Raises:
        UnavailableError: Not even the first request was answered.
    """
    letters = letters_per_token(client, lambda text: _ask(plan, client, text, 1))
    requests = _requests(plan, letters)
    say(f"prompt sizes: {[tokens for _, tokens, _ in requests]}")
    began = time.monotonic()
    asked = ask_all(
        reversed(requests),
        lambda request: _ask(plan, client, request[0], request[2]),
        plan.num_concurrent_requests,
        plan.timeout,
    )
    seconds = time.monotonic() - began
    answers = [
        (one.answer, one.task[1] if (n := one.answer.usage.prompt_tokens) is None else n)
        for one in sorted(asked, key=lambda one: one.sent_s + one.answer.seconds)
    ]
    timed_out = len(asked) < len(requests)
    return TokenRun(plan=plan, answers=answers, seconds=seconds, timed_out=timed_out)


def _ask(plan: TokenPlan, client: OpenAIClient, prompt: str, new_tokens: int) -> Answer:
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": prompt}]
    return client.chat(plan.model, messages, new_tokens, **plan.params)


def _requests(plan: TokenPlan, letters: float) -> list[tuple[str, int, int]]:
    """Prompt, its tokens, and tokens of the answer, of each request."""
    rng, made = random.Random(_SEED), []
    for _ in range(plan.max_num_completed_requests):
        new_tokens = _positive(rng, plan.mean_output_tokens, plan.stddev_output_tokens)
        head = _ASK.format(new_tokens)
        least = int(len(head) / letters)
        # A mean far below what the instruction takes would never be drawn.
        tokens = max(least, _positive(rng, plan.mean_input_tokens, plan.stddev_input_tokens))
        body = random_text(rng, max(0, round((tokens - least) * letters)))
        made.append((head + body, tokens, new_tokens))
    return made


def _positive(rng: random.Random, mean: int, stddev: int) -> int:
    """From a normal distribution, drawn until it is positive; a mean that is not is 1."""
    while mean > 0 or stddev > 0:
        drawn = int(rng.gauss(mean, stddev))
        if drawn > 0:
            return drawn
    return 1


def individual(run: TokenRun) -> list[dict[str, Any]]:
    """The measurements of each request."""
    return [_one(answer, tokens) for answer, tokens in run.answers]


def _one(answer: Answer, input_tokens: int) -> dict[str, Any]:
    tokens = answer.output_tokens
    failed = bool(answer.error)
    code = (answer.status if answer.status is not None else -1) if failed else None
    seconds = 0.0 if failed else answer.seconds  # as llmperf leaves them
    return {
        "error_code": code,
        "error_msg": answer.error,
        "inter_token_latency_s": _inter_token_s(answer),
        "ttft_s": answer.ttft_s or answer.seconds,
        "end_to_end_latency_s": seconds,
        "request_output_throughput_token_per_s": tokens / seconds if seconds > 0 else 0,
        "number_total_tokens": input_tokens + tokens,
        "number_output_tokens": tokens,
        "number_input_tokens": input_tokens,
    }


def _inter_token_s(answer: Answer) -> float:
    events = answer.events or answer.output_tokens
    return (answer.last_s or answer.seconds) / events if answer.output_tokens else 0


def results(run: TokenRun) -> dict[str, Any]:
    """Of all requests: distributions of those that were answered, and counts."""
    metrics = individual(run)
    fine = [one for one in metrics if one["error_code"] is None]
    found: dict[str, Any] = {key: _spread([one[key] for one in fine]) for key in _SPREAD}
    codes = [one["error_code"] for one in metrics if one["error_code"] is not None]
    produced = sum(one["number_output_tokens"] for one in fine)
    seconds = max(run.seconds, 1e-9)
    return {
        **found,
        "num_requests_started": len(metrics),
        "error_rate": len(codes) / len(metrics) if metrics else 0,
        "number_errors": len(codes),
        "error_code_frequency": str(dict(Counter(codes))),
        "mean_output_throughput_token_per_s": produced / seconds,
        "num_completed_requests": len(fine),
        "num_completed_requests_per_min": len(fine) / seconds * 60,
    }


def summary(run: TokenRun, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The summary as one flat object."""
    plan = run.plan
    names = (
        *("model", "mean_input_tokens", "stddev_input_tokens", "mean_output_tokens"),
        *("stddev_output_tokens", "num_concurrent_requests"),
    )
    found = {
        "version": _VERSION,
        "name": f"{_stem(plan)}_summary",
        **{name: getattr(plan, name) for name in names},
        "additional_sampling_params": plan.params,
        "results": results(run),
        **metadata,
        "timestamp": int(time.time()),
    }
    return dict(_flat(found, ""))


def write_results(run: TokenRun, folder: Path, metadata: Mapping[str, str]) -> list[Path]:
    """Write both files; their names."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, value in (("summary", summary(run, metadata)), ("individual_responses", None)):
        path = folder / f"{_stem(run.plan)}_{name}.json"
        path.write_text(json.dumps(individual(run) if value is None else value, indent=4))
        written.append(path)
    return written


def summary_lines(run: TokenRun) -> Iterator[str]:
    """The lines that llmperf prints."""
    found = results(run)
    for key in _SPREAD:
        yield key
        spread = found[key]
        for name, value in {**spread["quantiles"], **spread}.items():
            if name != "quantiles":
                yield f"    {name} = {value}"
    yield f"Number Of Errored Requests: {found['number_errors']}"
    if found["number_errors"]:
        yield f"Error Code Frequency: {found['error_code_frequency']}"
    yield f"Overall Output Throughput: {found['mean_output_throughput_token_per_s']}"
    yield f"Number Of Completed Requests: {found['num_completed_requests']}"
    yield f"Completed Requests Per Minute: {found['num_completed_requests_per_min']}"


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Quantiles with linear interpolation, and the rest; null without values."""
    ordered = sorted(values)
    return {
        "quantiles": {f"p{part}": quantile(ordered, part / 100) for part in _QUANTILES},
        "mean": statistics.fmean(ordered) if ordered else None,
        "min": _written(ordered[0]) if ordered else None,
        "max": _written(ordered[-1]) if ordered else None,
        "stddev": statistics.stdev(ordered) if len(ordered) > 1 else None,
    }


def _written(value: float) -> float | str:
    """Whole numbers of pandas end up as texts."""
    return str(value) if isinstance(value, int) else value


def _stem(plan: TokenPlan) -> str:
    name = f"{plan.model}_{plan.mean_input_tokens}_{plan.mean_output_tokens}"
    return re.sub(r"-{2,}", "-", re.sub(r"[^\w\d-]+", "-", name))


def _flat(value: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        key = f"{above}_{name}" if above else name
        if isinstance(inner, Mapping):
            yield from _flat(inner, key)
        else:
            yield key, inner


@dataclass(frozen=True, kw_only=True)
class _Output:
    """How requests are sent, and where figures go."""

    results_dir: str = option("", "Where both files are written.  [default: nowhere]")
    llm_api: str = option("openai", "Has to be openai.")
    metadata: str = option("", "More fields of the summary.", metavar="K=V,...")
    log_prompts: bool = option(False, "No effect.", "--log-prompts/--no-log-prompts", hidden=True)


@click.command(
    epilog=f"{_BASE} (e.g. http://localhost:8000/v1) and {_KEY} say which server; a file .env here "
    "may have both. Variables of Ray have no effect.  Exit codes: 0 done, 1 no request was "
    "answered, 2 usage.  Example: kvferry lab tokens --model kvferry-demo --results-dir results"
)
@options_of(TokenPlan, _Output)
def tokens(ctx: click.Context, /, plan: TokenPlan, to: _Output) -> None:
    """Send prompts of random lengths and measure tokens per second, as llmperf does.

    The same command line as its token_benchmark_ray.py, the same environment, and two JSON files
    with the same names and fields.
    """
    if to.llm_api != "openai":
        raise UsageError(f"--llm-api {to.llm_api} is not known; openai is")
    metadata = _metadata(to.metadata)
    environ = {**_of_file(Path(".env")), **os.environ}
    for name in (_BASE, _KEY):
        if not environ.get(name):
            raise UsageError(f"{name} must be set, in the environment or in .env")
    client = OpenAIClient(environ[_BASE], environ[_KEY], limit_s=180.0)
    run = run_tokens(plan, client, lambda text: click.echo(text, err=True))
    if run.timed_out:
        click.echo("Test timed out before all requests could be completed.", err=True)
    click.echo(f"Results for token benchmark for {plan.model} queried with the openai api.\n")
    for line in summary_lines(run):
        click.echo(line)
    if to.results_dir:
        for path in write_results(run, Path(to.results_dir), metadata):
            click.echo(f"wrote {path}", err=True)
    failed = [answer.error for answer, _ in run.answers if answer.error]
    if failed:
        click.echo(f"kvferry: {len(failed)} requests failed; the first: {failed[0]}", err=True)
    ctx.exit(1 if len(failed) == len(run.answers) else 0)


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
