"""A child process that runs many batches and reports its memory: ``... N``, the URL on stdin.

It is a process of its own so that nothing else grows or frees memory meanwhile. Prints one JSON
object with the resident bytes before and after N batches; as many as N / 10 warm up first.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import sys
from pathlib import Path
from typing import Any

from kvferry.base.errors import CorruptError

_KEYS = 16
_VALUE_BYTES = 4096


def main(batches: int, url: str) -> None:
    """Run the batches against a server and print the figures."""
    from kvferry.client.sync import RedisClient
    from kvferry.config import ClientConfig

    client = RedisClient.from_config(ClientConfig.from_url(url, environ={}))
    keys = [f"memory:{index}" for index in range(_KEYS)]
    values = [os.urandom(_VALUE_BYTES) for _ in keys]
    targets = [bytearray(_VALUE_BYTES) for _ in keys]
    _run(client, max(1, batches // 10), keys, values, targets)
    before = _resident_bytes()
    _run(client, batches, keys, values, targets)
    after = _resident_bytes()
    client.close()
    print(json.dumps({"before_bytes": before, "after_bytes": after}))


def _run(
    client: Any, batches: int, keys: list[str], values: list[bytes], targets: list[bytearray]
) -> None:
    """SET, GET and EXISTS in turn; every GET is checked."""
    for number in range(batches):
        if number % 3 == 0:
            client.batch_set(keys, values).raise_for_errors()
        elif number % 3 == 1:
            client.batch_get(keys, targets).raise_for_errors()
            if targets != values:
                raise CorruptError("a value came back wrong")
        elif not client.batch_exists(keys).ok:
            raise CorruptError("a key that exists is said not to")


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.stdin.read().strip())
