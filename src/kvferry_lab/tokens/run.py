"""llmperf's token benchmark: prompts and answers of random lengths, so many at a time.

The requests are its requests: /chat/completions with an empty system message, a stream, lengths
from normal distributions, the same for every run. What it measures is what llmperf measures, by the
same names: the inter-token latency of a request is the time of its last token over the number of
tokens, so it contains the time to the first one.

Two things differ. Tokens are counted by the server and not by a tokenizer of some other model; how
many letters make a token is asked of it with one short request. And a prompt is made of words, not
of sonnets.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from kvferry.base.errors import UnavailableError
from kvferry_lab.openai_client import Answer, OpenAIClient

__all__ = ["TokenPlan", "TokenRun", "random_text", "run_tokens"]

_SEED = 11111
_ASK = (
    "Randomly stream lines from the following text with {} output tokens. "
    "Don't generate eos tokens:\n\n"
)
_TEXT = (
    "the cache of a model keeps what was computed for every token that it has read and a store far "
    "away keeps it longer so that another process finds the same beginning and goes on from there"
)
_LINE_WORDS = 9
_PROBE_LETTERS = 400


@dataclass(frozen=True, kw_only=True)
class TokenPlan:
    """What to ask; lengths are in tokens."""

    model: str
    mean_input_tokens: int = 550
    stddev_input_tokens: int = 150
    mean_output_tokens: int = 150
    stddev_output_tokens: int = 80
    num_concurrent_requests: int = 10
    timeout_s: float = 90.0
    max_num_completed_requests: int = 10
    additional_sampling_params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenRun:
    """What came of it: each answer with the tokens of its prompt, in the order of their ends."""

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
    letters = _letters_per_token(plan, client)
    asked = _requests(plan, letters)
    say(f"prompt sizes: {[tokens for _, tokens, _ in asked]}")
    began, lock = time.monotonic(), threading.Lock()
    answers: list[tuple[Answer, int]] = []

    def work() -> None:
        while True:
            with lock:
                if not asked or time.monotonic() - began >= plan.timeout_s:
                    return
                prompt, tokens, new_tokens = asked.pop()
            answer = _ask(plan, client, prompt, new_tokens)
            counted = answer.usage.prompt_tokens
            with lock:
                answers.append((answer, tokens if counted is None else counted))

    with ThreadPoolExecutor(plan.num_concurrent_requests, "kvferry-ask") as pool:
        for working in [pool.submit(work) for _ in range(plan.num_concurrent_requests)]:
            working.result()
    seconds = time.monotonic() - began
    return TokenRun(plan=plan, answers=answers, seconds=seconds, timed_out=bool(asked))


def _ask(plan: TokenPlan, client: OpenAIClient, prompt: str, new_tokens: int) -> Answer:
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": prompt}]
    body = {"model": plan.model, "messages": messages, "max_tokens": new_tokens}
    return client.ask("/chat/completions", {**body, **plan.additional_sampling_params})


def _letters_per_token(plan: TokenPlan, client: OpenAIClient) -> float:
    """How many letters of our prompts the server takes for a token; 4 if it does not say."""
    text = random_text(random.Random(_SEED), _PROBE_LETTERS)
    answer = _ask(plan, client, text, 1)
    if (answer.error and answer.status is not None) or not answer.seconds:
        raise UnavailableError(f"{client.base_url}: {answer.error}")
    tokens = answer.usage.prompt_tokens
    return max(0.5, len(text) / tokens) if tokens else 4.0


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


def random_text(rng: random.Random, letters: int) -> str:
    """Lines of words, exactly so long."""
    words, parts, length = _TEXT.split(), list[str](), 0
    while length < letters:
        parts.append(" ".join(rng.choices(words, k=_LINE_WORDS)) + "\n")
        length += len(parts[-1])
    return "".join(parts)[:letters]


def _positive(rng: random.Random, mean: int, stddev: int) -> int:
    """From a normal distribution, drawn until it is positive; a mean that is not is 1."""
    while mean > 0 or stddev > 0:
        drawn = int(rng.gauss(mean, stddev))
        if drawn > 0:
            return drawn
    return 1
