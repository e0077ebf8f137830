"""One prompt on its way through the batcher: what is known of it, and what it has become."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvferry_lab.transformer import BOS, F32, KVCache, Transformer

__all__ = ["Failed", "FinishedSequence", "Heard", "Running", "Token"]


@dataclass(frozen=True)
class Token:
    """A token of the answer."""

    token: int


@dataclass(frozen=True)
class FinishedSequence:
    """The answer is complete."""

    cached_tokens: int


@dataclass(frozen=True)
class Failed:
    """There will be no answer, or no more of it."""

    why: str


Heard = Callable[[Token | FinishedSequence | Failed], None]


@dataclass(eq=False)
class Running:
    """A prompt and its answer so far.

    Attributes:
        prompt: Its tokens.
        new_tokens: How many are to be said.
        heard: Is told each event, in a thread of the batcher; returns at once. What comes behind
            `FinishedSequence` or `Failed` does not count.
        digests: A hash of the prefix for each full chunk.
        began: When it was submitted, on the clock of `time.monotonic`.
        queued, queued_at: What is computed before it, as of that moment; see
            `kvferry.chunks.prompt.Prompt`.
        waited_s: What it waited for the cache.
        cached_tokens: How much of the prompt was loaded.
        stored_chunks: How many leading chunks the cache has or was given.
        logits: Those that choose the next token; None: the prompt is not read yet.
        cancelled: Nobody wants the answer any more.
    """

    prompt: Sequence[int]
    new_tokens: int
    heard: Heard
    digests: list[bytes]
    began: float = field(default_factory=time.monotonic)
    queued: tuple[int, int] = (0, 0)
    queued_at: float = 0.0
    waited_s: float = 0.0
    kv: KVCache | None = None
    cached_tokens: int = 0
    stored_chunks: int = 0
    logits: F32 | None = None
    said: list[int] = field(default_factory=list)
    cancelled: bool = False

    @property
    def done(self) -> bool:
        """Whether all was said."""
        return len(self.said) >= self.new_tokens

    def read(self, model: Transformer, tokens_max: int) -> tuple[int, int]:
        """Compute whole blocks of the prompt; how many tokens and pairs those were.

        At least one block is computed, however small `tokens_max` is.
        """
        assert self.kv is not None
        page, begin = model.config.page_tokens, self.kv.length
        while self.kv.length < len(self.prompt):
            start = self.kv.length
            stop = min(start - start % page + page, len(self.prompt))
            if stop - begin > max(tokens_max, page):
                break
            hidden = model.forward(self.prompt[start:stop], self.kv)
            if stop == len(self.prompt):
                self.logits = model.logits(hidden[-1:])[0]
        return self.kv.length - begin, self.kv.length**2 - begin**2

    def say(self) -> int:
        """Choose the next token; the transformer's random weights know no end of a text."""
        assert self.logits is not None
        token = int(np.argmax(self.logits[:BOS]))
        self.said.append(token)
        return token

    def go_on(self, model: Transformer) -> None:
        """Compute the token that was said last."""
        assert self.kv is not None
        self.logits = model.logits(model.forward(self.said[-1:], self.kv))[0]
