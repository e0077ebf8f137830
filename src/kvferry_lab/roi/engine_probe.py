"""How fast an engine computes, measured through its OpenAI-compatible server.

Prompts of several lengths, none of which was ever sent, each with one token to make: the time to
that token is the time of computing, plus what the server itself takes. The median of each length
goes into the fit. Run it against an engine that does nothing else, and whose way is short.

Units: seconds, tokens. Each request has a limit. A key comes from OPENAI_API_KEY and is never
shown.
"""

from __future__ import annotations

import json
import os
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvferry.base.errors import UnavailableError, UsageError
from kvferry_lab.openai_client import OpenAIClient, public
from kvferry_lab.roi.arithmetic import Prefill, fit_prefill

__all__ = ["PrefillProbe", "PrefillSample", "write_calibration"]

_LIMIT_S = 300.0
_REPEATS = 3
_TOKENS_MAX = 1 << 20
# Short and common: with a space before it, each is one token of most vocabularies.
_COMMON = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an
they which one you were her all she there would their we him been has when who will more no if out
so said what up its about into than them can only other new some could time
"""
_WORDS = _COMMON.split()


@dataclass(frozen=True, kw_only=True)
class PrefillSample:
    """One request.

    Attributes:
        asked: Tokens that its prompt should have; few servers tell how they cut words.
        tokens: Tokens that it had, as the server counted them.
        ttft_s: To the token that it made.
    """

    asked: int
    tokens: int
    ttft_s: float


@dataclass(frozen=True, kw_only=True)
class PrefillProbe:
    """Measures one server.

    Attributes:
        base_url: With or without /v1.
        model: As the server calls it; None: the first one that it lists.
    """

    base_url: str
    model: str | None = None
    limit_s: float = _LIMIT_S

    def run(
        self, lengths: Sequence[int], say: Callable[[str], object] = lambda _: None
    ) -> list[PrefillSample]:
        """Each length several times, in turn; the first turn warms up and is left out.

        Raises:
            UsageError: The lengths are no lengths, or fewer than two.
            UnavailableError: The server cannot be reached, refuses, or does not stream.
        """
        if len(set(lengths)) < 2 or not all(1 <= length <= _TOKENS_MAX for length in lengths):
            raise UsageError("--probe-tokens needs two lengths at least, each from 1 to 1048576")
        base = self.base_url.rstrip("/").removesuffix("/v1")
        if not base.startswith(("http://", "https://")):
            raise UsageError(f"--server {public(base)} begins with neither http:// nor https://")
        key = os.environ.get("OPENAI_API_KEY", "")
        client = OpenAIClient(f"{base}/v1", key, self.limit_s, direct=True)
        model = self.model or client.model()
        samples, words_a_token = [], 1.0
        for turn in range(_REPEATS + 1):
            for length in sorted(set(lengths)):
                words = max(1, round(length * words_a_token))
                sample = _ask(client, model, length, words)
                words_a_token = words / max(1, sample.tokens)
                which = f"turn {turn}" if turn else "warming up"
                say(f"{which}: {sample.tokens:,} tokens, {sample.ttft_s * 1e3:.1f} ms")
                if turn:
                    samples.append(sample)
        return samples

    def fit(self, samples: Sequence[PrefillSample], gpus: int = 1) -> Prefill:
        """The coefficients, from the median of each length."""
        lengths: dict[int, list[PrefillSample]] = {}
        for sample in samples:
            lengths.setdefault(sample.asked, []).append(sample)
        rows = [
            (
                round(statistics.median(sample.tokens for sample in some)),
                statistics.median(sample.ttft_s for sample in some),
            )
            for some in lengths.values()
        ]
        return fit_prefill(rows, gpus, f"measured at {public(self.base_url)}")


def _ask(client: OpenAIClient, model: str, length: int, words: int) -> PrefillSample:
    prompt = " ".join(random.SystemRandom().choices(_WORDS, k=words))
    answer = client.complete(model, prompt, 1, temperature=0)
    if answer.error:
        answers = f" answers {answer.status}" if answer.status else ""
        raise UnavailableError(f"{public(client.base_url)}{answers}: {answer.error}")
    tokens = answer.usage.prompt_tokens
    return PrefillSample(
        asked=length,
        tokens=words if tokens is None else tokens,
        ttft_s=answer.seconds if answer.ttft_s is None else answer.ttft_s,  # a token without text
    )


def write_calibration(path: Path, found: Prefill, samples: Sequence[PrefillSample]) -> None:
    """What `prefill_calibration_file` and `--calibration` read, and what it was made of."""
    shown = {
        "a_s": found.a_s,
        "c_s_per_token": found.c_s_per_token,
        "d_s_per_token2": found.d_s_per_token2,
        "source": found.source,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "samples": [asdict(sample) for sample in samples],
    }
    path.write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
