"""How fast an engine computes, measured through its OpenAI-compatible server.

Prompts of several lengths, none of which was ever sent, each with one token to make: the time to
that token is the time of computing, plus what the server itself takes. The median of each length
goes into the fit. Run it against an engine that does nothing else, and whose way is short.

Units: seconds, tokens. Each request has a limit. A key comes from OPENAI_API_KEY and is never
shown.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvferry.errors import UnavailableError, UsageError
from kvferry.lab.roi.arithmetic import Prefill
from kvferry.lab.roi.fit import fit_prefill
from kvferry.lab.top.watch import NoRedirection

__all__ = ["Probe", "Sample", "write_calibration"]

_LIMIT_S = 300.0
_LINE_BYTES_MAX = 1 << 20
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
class Sample:
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
class Probe:
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
    ) -> list[Sample]:
        """Each length several times, in turn; the first turn warms up and is left out.

        Raises:
            UsageError: The lengths are no lengths, or fewer than two.
            UnavailableError: The server cannot be reached, refuses, or does not stream.
        """
        if len(set(lengths)) < 2 or not all(1 <= length <= _TOKENS_MAX for length in lengths):
            raise UsageError("--probe-tokens needs two lengths at least, each from 1 to 1048576")
        model = self.model or self._first_model()
        samples, words_a_token = [], 1.0
        for turn in range(_REPEATS + 1):
            for length in sorted(set(lengths)):
                words = max(1, round(length * words_a_token))
                sample = self._ask(model, length, words)
                words_a_token = words / max(1, sample.tokens)
                which = f"turn {turn}" if turn else "warming up"
                say(f"{which}: {sample.tokens:,} tokens, {sample.ttft_s * 1e3:.1f} ms")
                if turn:
                    samples.append(sample)
        return samples

    def fit(self, samples: Sequence[Sample], gpus: int = 1) -> Prefill:
        """The coefficients, from the median of each length."""
        lengths: dict[int, list[Sample]] = {}
        for sample in samples:
            lengths.setdefault(sample.asked, []).append(sample)
        rows = [
            (
                round(statistics.median(sample.tokens for sample in some)),
                statistics.median(sample.ttft_s for sample in some),
            )
            for some in lengths.values()
        ]
        return fit_prefill(rows, gpus, f"measured at {_public(self.base_url)}")

    def _first_model(self) -> str:
        with self._open("models", None) as reply:
            found = _object(reply.read(_LINE_BYTES_MAX))
        models = found.get("data")
        first = models[0] if isinstance(models, list) and models else None
        if not isinstance(first, Mapping) or not isinstance(first.get("id"), str):
            raise UnavailableError(f"{_public(self.base_url)} lists no model: use --server-model")
        return str(first["id"])

    def _ask(self, model: str, length: int, words: int) -> Sample:
        body = {
            "model": model,
            "prompt": " ".join(random.SystemRandom().choices(_WORDS, k=words)),
            "max_tokens": 1,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began = time.perf_counter()
        ttft_s, tokens = None, words
        with self._open("completions", body) as reply:
            for event in self._events(reply, began):
                if ttft_s is None and event.get("choices"):
                    ttft_s = time.perf_counter() - began
                usage = event.get("usage")
                if isinstance(usage, Mapping) and isinstance(usage.get("prompt_tokens"), int):
                    tokens = usage["prompt_tokens"]
        if ttft_s is None:
            raise UnavailableError(f"{_public(self.base_url)} sent no token")
        return Sample(asked=length, tokens=tokens, ttft_s=ttft_s)

    def _events(self, reply: http.client.HTTPResponse, began: float) -> Iterator[Mapping[str, Any]]:
        """The objects of a stream of server-sent events."""
        while True:
            try:
                line = reply.readline(_LINE_BYTES_MAX)
            except (OSError, http.client.HTTPException) as error:
                raise UnavailableError(f"{_public(self.base_url)} broke off: {error}") from None
            if time.perf_counter() - began > self.limit_s:
                raise UnavailableError(
                    f"{_public(self.base_url)} took longer than {self.limit_s:g} s"
                )
            text = line.strip()
            if not line or text == b"data: [DONE]":
                return
            if text.startswith(b"data:"):
                yield _object(text[5:])

    def _open(self, path: str, body: Mapping[str, Any] | None) -> http.client.HTTPResponse:
        base = self.base_url.rstrip("/")
        base = base if base.endswith("/v1") else f"{base}/v1"
        if not base.startswith(("http://", "https://")):
            raise UsageError(f"--server {_public(base)} begins with neither http:// nor https://")
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{base}/{path}", data, headers)
        where = f"{_public(base)}/{path}"
        try:
            # Not to wherever a redirection leads: there may be a key in the request.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirection)
            reply: http.client.HTTPResponse = opener.open(request, timeout=self.limit_s)
        except urllib.error.HTTPError as error:
            with error:
                raise UnavailableError(f"{where} answers {error.code} {error.reason}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise UnavailableError(f"{where} cannot be reached: {reason}") from None
        return reply


def write_calibration(path: Path, found: Prefill, samples: Sequence[Sample]) -> None:
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


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        raise UnavailableError("the server's answer is no JSON object: is it OpenAI's interface?")
    return found


def _public(url: str) -> str:
    """Without user and password."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
