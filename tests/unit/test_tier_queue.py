"""What a store's speed is reckoned with: what others are loading, less what of it has come."""

from __future__ import annotations

import pytest

from kvferry.chunks.prompt import read_prompt
from support.engines import CHUNK, LAYOUT, memory_store, open_engine, prompt


def test_a_load_is_behind_what_others_load_until_that_has_come() -> None:
    store = memory_store("queue")
    came = {"bytes_read": 0}
    store.stats = lambda: came  # type: ignore[method-assign]
    tokens = read_prompt(prompt(8 * CHUNK), CHUNK, b"")
    with open_engine(store) as engine:
        tier = engine.tiers[0].tier
        alone_s = tier.predict_s(0)
        one_s = tier.predict_s(1) - alone_s

        def behind() -> float:
            """How many chunks, by the time."""
            return (tier.predict_s(0) - alone_s) / one_s

        def arrive(chunks: int) -> None:
            came["bytes_read"] += chunks * LAYOUT.chunk_bytes

        with tier.loading(tokens, 0, 8):
            assert behind() == pytest.approx(8)
            arrive(6)
            assert behind() == pytest.approx(2)
            with tier.loading(tokens, 0, 4):
                assert behind() == pytest.approx(6)
                arrive(7)  # one of them was nobody's
                assert behind() == pytest.approx(0)
        assert behind() == pytest.approx(0)
        with tier.loading(tokens, 0, 4), tier.loading(tokens, 4, 8):
            assert behind() == pytest.approx(8), "what was too much before is over"
        with tier.loading(tokens, 0, 4):
            assert behind() == pytest.approx(4), "and what never came, too"
