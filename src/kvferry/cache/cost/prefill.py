"""How long an engine computes, learnt from what its steps took.

A step takes ``a + c * n + d * pairs + e * decodes``: a fixed part, the tokens of prompts that it
computes, the pairs of tokens that attend to each other, and the sequences for which it makes one
token more. For ``n`` tokens behind ``m`` that are cached, the pairs are counted as
``(m + n)**2 - m**2``: twice as many as there are, which the coefficient knows.

Steps are observed by their totals and never request by request, so it does not matter how an engine
cuts prompts into steps or which requests share one. A prompt needs as many steps as `step_tokens`
says, each with its fixed part.

What is learnt is one fit, with errors in proportion to the time:

- Steps of a like size share a memory that fades, so a thousand steps of decoding do not wash out
  the few that read a prompt.
- A step that took many times what was expected counts as a few times that.
- A step that was measured too short would weigh as much as the square of what it is too short by,
  which no fading outlasts. So the last steps are known one by one: those that are false by what the
  others say are left out. Where most of the last ones took far longer than what is believed, that
  is forgotten, and found anew from them.
- With a `prior` (what was learnt before, or a guess from the operations that a model needs) the
  shape of the curve is the prior's, scaled, until steps of different sizes were seen.

Tokens wait for what a step does here, so that is little: a fit, which takes a part of a
millisecond, is made when somebody asks what computing takes; and of steps that only make tokens few
are looked at, once there were some.

Units: seconds, tokens. Threads: any.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence

from kvferry.cache.cost.step_fit import (
    SIZE,
    UNITS,
    SeenStep,
    StepSums,
    own_shape,
    possible,
    true_steps,
)

__all__ = ["Coefficients", "PrefillModel"]

# a, c, d and e, in seconds for one of each.
Coefficients = tuple[float, float, float, float]

# From so many samples on, of sizes that differ so much (in powers of two), the shape is our own.
_OWN_SAMPLES = 8
_OWN_SPREAD = 3
# How little a prior is believed: the fixed part of a step in seconds, the weight of that, and the
# weight of its scale, which is tried out. One real step of ordinary size outweighs them.
_FIXED_S, _FIXED_WEIGHT, _SCALE_WEIGHT = 2e-3, 0.005, 0.01
_SCALES = tuple(1.05**n for n in range(-142, 143))  # a thousandth to a thousand
# A step of fewer tokens says nothing about the scale of a prior.
_TELLING_TOKENS = 16
# After so many samples whoever asks gets a new fit only when there are so many new ones with a
# prompt, or without. Where nobody asks a step makes it: at each doubling before, and very seldom
# then, for what is believed also says which steps have stalled.
_EVERY_SAMPLES, _EVERY, _EVERY_DECODES = 64, 8, 1024
_UNASKED = 8  # times that
# After so many steps without a prompt one of so many is looked at.
_DECODES_ALL, _DECODES_EVERY = 64, 16
# So many of the last steps are known one by one. What is believed was learnt of false ones where so
# many of the last took so many times that.
_SEEN, _RECENT, _DOUBTS, _FAR = 16, 8, 4, 2.5


class PrefillModel:
    """How long the engine computes; see the module.

    Without coefficients it learns them; `known` tells whether it has any. With coefficients of the
    user it keeps them.

    Args:
        a_s, c_s_per_token, d_s_per_token2: The coefficients.
        e_s_per_decode: Of a sequence that only goes on, in a step.
        fixed: They are the user's.
        step_tokens: Tokens of prompts that a step computes at most; 0: all of a prompt.

    Attributes:
        samples: How many steps were observed.
    """

    def __init__(
        self,
        a_s: float = 0.0,
        c_s_per_token: float = 0.0,
        d_s_per_token2: float = 0.0,
        e_s_per_decode: float = 0.0,
        *,
        fixed: bool = False,
        step_tokens: int = 0,
    ) -> None:
        self.fixed = fixed
        self.step_tokens = step_tokens
        self.samples = 0
        self._fitted: Coefficients = (a_s, c_s_per_token, d_s_per_token2, e_s_per_decode)
        self._lock = threading.Lock()
        self._prompts = self._decodes = 0  # steps with a prompt and without since the last fit
        self._decodes_seen = 0
        self._prior: Coefficients | None = None
        self._sums: dict[int, StepSums] = {}  # by the size of the step
        # The last steps without a prompt, and with one that tells something.
        self._seen = (deque[SeenStep](maxlen=_SEEN), deque[SeenStep](maxlen=_SEEN))
        self._left_out = [False, False]  # whether some of those are not believed

    @property
    def known(self) -> bool:
        """Whether predictions mean anything yet."""
        return self.fixed or self.samples > 0 or self._prior is not None

    @property
    def coefficients(self) -> Coefficients:
        """a, c, d and e as they are now."""
        if self._prompts or self._decodes:
            new = self.samples < _EVERY_SAMPLES
            if new or self._prompts >= _EVERY or self._decodes >= _EVERY_DECODES:
                with self._lock:
                    self._fit()
        return self._fitted

    def expect(self, prior: Coefficients) -> None:
        """Believe these until steps say otherwise. Nothing of what was observed is lost."""
        usable = all(math.isfinite(value) and value >= 0 for value in prior) and any(prior[1:3])
        if not self.fixed and usable:
            with self._lock:
                self._prior = prior
                self._fit()

    def predict_s(self, tokens: int, cached: int = 0) -> float:
        """Seconds to compute the tokens behind `cached` of all `tokens`."""
        new = tokens - cached
        return self.total_s(new, tokens * tokens - cached * cached) if new > 0 else 0.0

    def total_s(self, new_tokens: int, pairs: int) -> float:
        """Seconds to compute so many tokens and pairs, in as many steps as that takes."""
        if new_tokens <= 0:
            return 0.0
        steps = -(-new_tokens // self.step_tokens) if self.step_tokens else 1
        a, c, d, _ = self.coefficients
        return a * steps + c * new_tokens + d * pairs

    def observe(self, tokens: int, cached: int, took_s: float) -> None:
        """The engine computed ``tokens - cached`` tokens behind `cached` in `took_s`."""
        if tokens > cached:
            self.observe_step(tokens - cached, tokens * tokens - cached * cached, 0, took_s)

    def observe_step(self, new_tokens: int, pairs: int, decodes: int, took_s: float) -> None:
        """A step computed so much in `took_s`.

        Args:
            new_tokens: Tokens of prompts.
            pairs: For each sequence of the step the square of its length behind it, less that
                before it.
            decodes: Sequences that went on by a token.
            took_s: Of the step.
        """
        if self.fixed or not possible(new_tokens, pairs, decodes, took_s):
            return
        self.samples += 1
        if not new_tokens:
            self._decodes += 1
            self._decodes_seen += 1
            if self._decodes_seen > _DECODES_ALL and self._decodes_seen % _DECODES_EVERY:
                return
        with self._lock:
            self._add((1.0, new_tokens, pairs, decodes), took_s)

    def _add(self, x: Sequence[float], took_s: float) -> None:
        """Take in a step."""
        new_tokens = int(x[1])
        expected = sum(k * v for k, v in zip(self._fitted, x, strict=True))
        doubted = self._doubts(SeenStep(x, took_s, expected))
        if self.samples > _OWN_SAMPLES:  # one stall must not bend the curve
            took_s = min(max(took_s, expected / 4), expected * 4) if expected > 0 else took_s
        self._take(x, took_s)
        if doubted:
            prompt = new_tokens > 0
            seen = [list(steps) for steps in self._seen]
            seen[prompt] = seen[prompt][-_RECENT:]
            self._recall(prompt, true_steps(seen, doubted=prompt)[prompt])
        if new_tokens:
            self._prompts += 1
        if self.samples <= _EVERY_SAMPLES:
            due = self.samples & (self.samples - 1) == 0
        else:
            due = self._prompts >= _UNASKED * _EVERY or self._decodes >= _UNASKED * _EVERY_DECODES
        if due or doubted:
            self._fit()

    def _take(self, x: Sequence[float], took_s: float) -> None:
        size = int(x[1]).bit_length()
        self._sums.setdefault(size, StepSums()).add(x, took_s)
        for other, sums in self._sums.items() if size else ():
            if other != size:
                sums.fade()

    def _doubts(self, step: SeenStep) -> bool:
        """Note a step; whether what is believed of such steps is to be found anew."""
        if 0 < step.x[1] < _TELLING_TOKENS:
            return False
        seen = self._seen[step.x[1] > 0]
        seen.append(step)
        recent = list(seen)[-_RECENT:]
        far = sum(one.took_s > _FAR * one.expected_s > 0 for one in recent)
        return far >= _DOUBTS and len(seen) == _SEEN

    def _recall(self, prompt: bool, steps: Iterable[SeenStep]) -> None:
        """Believe these steps, and no others of their kind."""
        for size in list(self._sums):
            if (size >= _TELLING_TOKENS.bit_length()) if prompt else size == 0:
                del self._sums[size]
        for one in steps:
            self._take(one.x, one.took_s)

    # --- The fit ---

    def _fit(self) -> None:
        """With the lock."""
        self._prompts = self._decodes = 0
        early = [1 < len(seen) < _SEEN for seen in self._seen]  # those are all that there were
        believed = true_steps(self._seen) if any(early) else self._seen
        for prompt, steps in enumerate(believed):
            less = len(steps) < len(self._seen[prompt])
            if early[prompt] and (less or self._left_out[prompt]):
                self._recall(bool(prompt), steps)
            self._left_out[prompt] = early[prompt] and less
        leans = self._prior is not None and not self._has_shape()
        found = self._prior_shape() if leans else own_shape(self._joined(0))
        a, c, d, e = (value / unit for value, unit in zip(found, UNITS, strict=True))
        self._fitted = (a, c, d, e)
        if self._prior is not None and not leans and c + d > 0:
            # The shape to keep when steps of other sizes are forgotten.
            self._prior = self._fitted

    def _has_shape(self) -> bool:
        """Whether steps of different sizes were seen, and are remembered."""
        telling = [
            size
            for size, sums in self._sums.items()
            if size >= _TELLING_TOKENS.bit_length() and sums.tt >= 0.5
        ]
        count = sum(self._sums[size].tt for size in telling)
        return count >= 0.8 * _OWN_SAMPLES and max(telling) - min(telling) >= _OWN_SPREAD

    def _prior_shape(self) -> list[float]:
        """The prior, scaled, and a fixed part for each step."""
        assert self._prior is not None
        prior = [value * unit for value, unit in zip(self._prior, UNITS, strict=True)]
        sums = self._joined(_TELLING_TOKENS.bit_length())
        if sums.tt == 0:
            return prior
        # Two unknowns: the scale of the prior, and what is fixed beside it.
        across = [sum(sums.xx[i][j] * prior[j] for j in range(SIZE)) for i in range(SIZE)]
        both = sum(prior[i] * across[i] for i in range(SIZE))
        seen = sum(prior[i] * sums.xt[i] for i in range(SIZE))
        fixed_weight = _FIXED_WEIGHT / _FIXED_S**2
        expected_s = max(0.0, _FIXED_S - prior[0])
        best, best_error = prior, math.inf
        for scale in _SCALES:
            told_s = sums.xt[0] - scale * across[0] + fixed_weight * expected_s
            fixed_s = max(0.0, told_s / (sums.xx[0][0] + fixed_weight))
            error = scale * (scale * both - 2 * seen) + _SCALE_WEIGHT * math.log(scale) ** 2
            error += fixed_s * (fixed_s * sums.xx[0][0] + 2 * (scale * across[0] - sums.xt[0]))
            error += fixed_weight * (fixed_s - expected_s) ** 2
            if error < best_error:
                best_error = error
                best = [prior[0] * scale + fixed_s, *(value * scale for value in prior[1:])]
        return best

    def _joined(self, size_min: int) -> StepSums:
        joined = StepSums()
        for size, sums in self._sums.items():
            if size >= size_min:
                joined.join(sums)
        return joined
