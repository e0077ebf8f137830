"""Cases for the tests of `kvferry roi`, in round numbers."""

from __future__ import annotations

from kvferry_lab.roi.arithmetic import Case, Kv, Prefill, Store

__all__ = ["round_case"]


def round_case(**changes: float) -> Case:
    """100,000 bytes a token; 10 ms + 100 us n + 1 ns n^2; 2 GB/s and 5 ms; chunks of 100."""
    numbers = {"a": 10e-3, "c": 100e-6, "d": 1e-9, "bytes_s": 2e9, "fixed_s": 5e-3, "miss_s": 0.0}
    numbers |= changes
    return Case(
        kv=Kv(whole_bytes=numbers.get("whole_bytes", 100_000)),
        prefill=Prefill(
            a_s=numbers["a"],
            c_s_per_token=numbers["c"],
            d_s_per_token2=numbers["d"],
            gpus=int(numbers.get("gpus", 1)),
        ),
        store=Store(
            bytes_s=numbers["bytes_s"], fixed_s=numbers["fixed_s"], miss_s=numbers["miss_s"]
        ),
        chunk_tokens=100,
    )
