"""The long-document workload: many long prompts, each asked again and again.

First a warm-up round asks for each document once. The query round asks for each `repeat_count`
times more, in an order that decides what a small cache can keep: one after the other (tile), in
groups of the same (interleave), or shuffled. A document is its number and then words; how many
words make `document_length` tokens is asked of the server, so it is so many tokens for any model.

The workload, its flags and what is printed are those of LMCache's benchmark of that name.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvferry.base.errors import UnavailableError, UsageError
from kvferry_lab.cli.options import option
from kvferry_lab.openai_client import Answer, OpenAIClient
from kvferry_lab.openai_load import ask_all

__all__ = ["PRESETS", "LongDocPlan", "LongDocRun", "Record", "mean_ttft", "run_long_doc"]

_PROBE_WORDS = (20, 120)
_WORDS = ("hi",)

# The run that was published: three rounds over 40 documents, 66.7 % hits, 40 % less time.
PRESETS = {
    "published": {
        "num_documents": 40,
        "document_length": 40_000,
        "output_len": 100,
        "rounds": 3,
        "repeat_mode": "tile",
    },
}


@dataclass(frozen=True, kw_only=True)
class LongDocPlan:
    """What to ask.

    Attributes:
        hit_miss_ratio: Of so many prompts of the query round in a row so many are repeated, and so
            many are new; None: all are repeated.
        words: What documents are made of; each begins at another one.
    """

    num_documents: int = option(8, "How many.", "--num-documents", "--ldqa-num-documents", least=1)
    document_length: int = option(
        20_000, "Tokens of a document.", "--document-length", "--ldqa-document-length", least=1
    )
    output_len: int = option(
        100, "Tokens of an answer.", "--output-len", "--ldqa-max-output-length", least=1
    )
    repeat_count: int = option(
        2,
        "How often each is asked for after the warm-up.",
        *("--repeat-count", "--ldqa-query-per-document"),
        least=1,
    )
    repeat_mode: Literal["random", "tile", "interleave"] = option(
        "random", "Their order; tile with --rounds.", "--repeat-mode", "--ldqa-shuffle-policy"
    )
    shuffle_seed: int = option(0, "Seed of --repeat-mode random.")
    rounds: int | None = option(
        None, "Ask in so many rounds, the warm-up included, instead of --repeat-count.", least=2
    )
    max_inflight_requests: int = option(
        2,
        "Requests at a time.",
        *("--max-inflight-requests", "--ldqa-num-inflight-requests"),
        least=1,
    )
    sleep_time_after_warmup: float = option(0.0, "Seconds to wait then.", least=0)
    completions: bool = option(False, "Use /completions, not /chat/completions.")
    hit_miss_ratio: tuple[int, int] | None = None
    words: Sequence[str] = _WORDS

    def __post_init__(self) -> None:
        if self.rounds is not None and self.repeat_mode == "interleave":
            raise UsageError(
                "--rounds ask for each document once; use --repeat-mode tile or random"
            )

    @property
    def query_rounds(self) -> list[list[int]]:
        """The documents to ask for, in order; a document that nobody asked for has a negative
        number."""
        rng, each = random.Random(self.shuffle_seed), list(range(self.num_documents))
        if self.rounds is None:
            rounds = [each * self.repeat_count]
            if self.repeat_mode == "interleave":
                rounds = [[one for one in each for _ in range(self.repeat_count)]]
        else:
            rounds = [list(each) for _ in range(self.rounds - 1)]
        for one in rounds if self.repeat_mode == "random" else ():
            rng.shuffle(one)
        if self.hit_miss_ratio is not None:
            hit, miss = self.hit_miss_ratio
            flat = enumerate(document for one in rounds for document in one)
            new = iter([-1 - i if i % (hit + miss) >= hit else document for i, document in flat])
            rounds = [[next(new) for _ in one] for one in rounds]
        return rounds


@dataclass(frozen=True, kw_only=True)
class Record:
    """One request.

    Attributes:
        prompt_id: Its number in the warm-up, or in all that follows.
        request_start, request_end: In seconds from the beginning of the same.
        ttft: Time to the first token; -1: it failed.
    """

    prompt_id: int
    request_start: float
    ttft: float
    request_end: float
    successful: bool
    document: int
    round: int
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    error: str
    text: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class LongDocRun:
    """The records of a run. Round 0 is the warm-up."""

    plan: LongDocPlan
    model: str
    records: list[Record]
    round_s: list[float]

    @property
    def warmup(self) -> list[Record]:
        """Its requests."""
        return [record for record in self.records if record.round == 0]

    @property
    def query(self) -> list[Record]:
        """The records of the query round, or rounds."""
        return [record for record in self.records if record.round > 0]

    @property
    def parts(self) -> list[tuple[str, list[Record], float]]:
        """Warm-up and query round: name, requests, and seconds."""
        return [("warmup", self.warmup, self.round_s[0]), ("query", self.query, self.query_s)]

    @property
    def query_s(self) -> float:
        """The duration of the query round, in seconds."""
        return sum(self.round_s[1:])


def mean_ttft(records: Sequence[Record]) -> float:
    """Of the requests that were answered; 0 without any."""
    times = [record.ttft for record in records if record.successful]
    return sum(times) / len(times) if times else 0.0


def run_long_doc(
    plan: LongDocPlan, client: OpenAIClient, model: str, say: Callable[[str], None]
) -> LongDocRun:
    """Ask.

    Raises:
        UnavailableError: Not even the first request was answered.
    """
    make = _documents(plan, client, model)
    rounds = [list(range(plan.num_documents)), *plan.query_rounds]
    records: list[Record] = []
    round_s, at = [], 0.0
    for number, documents in enumerate(rounds):
        say(f"round {number + 1} of {len(rounds)}: {len(documents)} requests")
        if number == 1:
            time.sleep(plan.sleep_time_after_warmup)
        began, at = time.monotonic(), time.time() if number < 2 else at
        before = plan.num_documents if number else 0
        for asked in ask_all(
            documents,
            lambda one: _ask(plan, client, model, make(one)),
            plan.max_inflight_requests,
        ):
            prompt_id = len(records) - before
            records.append(_record(prompt_id, asked.task, number, asked.answer, at))
        round_s.append(time.monotonic() - began)
    return LongDocRun(plan=plan, model=model, records=records, round_s=round_s)


def _documents(plan: LongDocPlan, client: OpenAIClient, model: str) -> Callable[[int], str]:
    """Makes documents of so many tokens, by what the server says of two short ones.

    The beginning is a document's number, so none is the beginning of another.
    """
    few, many = _PROBE_WORDS
    counted = []
    for words in _PROBE_WORDS:
        answer = _ask(plan, client, model, _document(plan, "x", 0, words), tokens=1)
        if answer.error:
            raise UnavailableError(f"{client.base_url}: {answer.error}")
        counted.append(answer.usage.prompt_tokens)
    if counted[0] is None or counted[1] is None:  # as the known tool assumes
        words = plan.document_length
    else:
        per_word = max(0.1, (counted[1] - counted[0]) / (many - few))
        words = max(1, round((plan.document_length - counted[0]) / per_word + few))
    return lambda number: _document(plan, str(number), number, words)


def _document(plan: LongDocPlan, name: str, start: int, words: int) -> str:
    text = [plan.words[(start + at) % len(plan.words)] for at in range(words)]
    return " ".join([name, *text])


def _ask(
    plan: LongDocPlan, client: OpenAIClient, model: str, prompt: str, tokens: int | None = None
) -> Answer:
    tokens = plan.output_len if tokens is None else tokens
    if plan.completions:
        return client.complete(model, prompt, tokens, temperature=0.0)
    messages = [{"role": "user", "content": prompt}]
    return client.chat(model, messages, tokens, temperature=0.0)


def _record(prompt_id: int, document: int, number: int, answer: Answer, at: float) -> Record:
    fine = not answer.error
    return Record(
        prompt_id=prompt_id,
        document=document,
        round=number,
        request_start=answer.began - at,
        ttft=(answer.ttft_s or answer.seconds) if fine else -1.0,
        request_end=answer.began - at + answer.seconds,
        successful=fine,
        prompt_tokens=answer.usage.prompt_tokens,
        cached_tokens=answer.usage.cached_tokens,
        output_tokens=answer.output_tokens,
        error=answer.error,
        text=answer.text,
    )
