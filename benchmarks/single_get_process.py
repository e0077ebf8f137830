"""One client, one value, many GETs, in a process of its own: `python -m ... KIND URL BYTES GETS`.

How fast redis-py reads large values depends on what its process's malloc has learned: it is several
times faster once large NumPy arrays were freed, or while an older value is kept. So it is measured
where nothing else ran, as a loader uses it that drops each value before the next. The value is
random; every GET is compared with it, outside the clock. Prints GB/s of the median GET.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import open_redis_py

__all__ = ["single_get_gbps"]

_KEY = "kvferry-single-get"
_WARM_UP = 4


def single_get_gbps(kind: str, url: str, size_bytes: int, count: int) -> float:
    """GB/s (10^9 bytes) of the median of `count` GETs; a wrong byte is a ValueError."""
    config = ClientConfig.from_url(url, environ={})
    value, target = os.urandom(size_bytes), bytearray(size_bytes)
    pure = PureRedisClient.from_config(config)
    pure.set(_KEY, value)
    peer = open_redis_py(config) if kind == "redis-py" else None
    times = []
    try:
        for _ in range(_WARM_UP + count):
            target[0] ^= 0xFF
            start = time.perf_counter()
            got = peer.get(_KEY) if peer is not None else pure.get(_KEY, target)
            times.append(time.perf_counter() - start)
            if (got if peer is not None else target) != value:
                raise ValueError(f"{kind} read a wrong byte")
            del got  # as a loader does that has moved the value to where it belongs
    finally:
        pure.delete(_KEY)
        pure.close()
    return size_bytes / 1e9 / statistics.median(times[_WARM_UP:])


if __name__ == "__main__":
    print(single_get_gbps(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
