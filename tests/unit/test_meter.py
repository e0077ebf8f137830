"""What a cache's metrics say of counters that others keep."""

from __future__ import annotations

from support.engines import memory_store, open_engine


def test_what_a_connector_counts_is_told_once_and_goes_on_when_it_begins_anew() -> None:
    store = memory_store("counts")
    counts = {"one_sided_reads": 0, "one_sided_fallbacks": 0, "refused_key": 0}
    store.stats = lambda: counts  # type: ignore[method-assign]
    with open_engine(store) as engine:

        def shown() -> tuple[object, object, object]:
            taken = engine.metrics.snapshot()
            reads, failed = (taken[f"kvferry_one_sided_{n}_total"] for n in ("reads", "fallbacks"))
            return reads, failed, taken["kvferry_corrupt_values_total"]["key"]

        assert shown() == ({"store0": 0}, {"store0": 0}, 0)  # before anything has happened
        counts |= {"one_sided_reads": 5, "refused_key": 2}
        assert shown() == shown() == ({"store0": 5}, {"store0": 0}, 2)
        counts |= {"one_sided_reads": 3, "one_sided_fallbacks": 1, "refused_key": 1}  # another one
        assert shown() == ({"store0": 8}, {"store0": 1}, 3)
