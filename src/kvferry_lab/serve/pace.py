"""How long steps take on a GPU that is not here."""

from __future__ import annotations

from dataclasses import dataclass

from kvferry.cache.cost.prefill import Coefficients

__all__ = ["Pace"]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Of each step the time that it takes at least.

    A step that reads ``n`` tokens of prompts takes ``a + c n + d pairs``, pairs as in
    `kvferry.cache.cost.prefill`. One in which sequences go on by a token each reads all weights
    once, and takes `decode_s` at least: what computing takes and what memory takes overlap.

    Attributes:
        a_s, c_s_per_token, d_s_per_token2: Of reading prompts.
        decode_s: Of one token more for each sequence of the step.
    """

    a_s: float = 0.0
    c_s_per_token: float
    d_s_per_token2: float = 0.0
    decode_s: float = 0.0

    @property
    def coefficients(self) -> Coefficients:
        """What a cost model may expect."""
        return self.a_s, self.c_s_per_token, self.d_s_per_token2, self.decode_s

    def step_s(self, new_tokens: int, pairs: int, decodes: int) -> float:
        """Seconds of a step."""
        prefill_s = 0.0
        if new_tokens:
            prefill_s = self.a_s + self.c_s_per_token * new_tokens + self.d_s_per_token2 * pairs
        return max(prefill_s, self.decode_s if decodes else 0.0)
