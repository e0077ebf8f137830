"""Run by LMCache's interpreter: its own Redis connector asks for a prompt as its engine does.

    inside_latency.py CHUNKS

KVFERRY_TEST_SERVER is a link to a store. Chunks of one prompt are stored; then a prompt that is not
there and one that is are looked up and loaded. Prints when each began and was there, by
`time.monotonic`, and how many chunks came.
"""

from __future__ import annotations

import json
import os
import sys
import time

from lmcache.v1.storage_backend.remote_backend import RemoteBackend

from engines.lmcache.inside_remote import HOST, PORT, World, key

_STORED_S = 60.0


def main() -> None:
    keys = [key(number) for number in range(1, int(sys.argv[1]) + 1)]
    others = [key(1000 + number) for number in range(len(keys))]
    made = World(f"redis://{HOST}:{PORT}")
    backend = RemoteBackend(made.config, made.metadata, made.loop, made.cpu, "cpu")
    backend.batched_submit_put_task(keys, [made.chunk(number) for number in range(len(keys))])
    until = time.monotonic() + _STORED_S
    while not all(backend.contains(one) for one in keys):
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(0.5)
    told = {}
    for name, asked in (("miss", others), ("hit", keys)):
        began = time.monotonic()
        there = backend.batched_contains(asked)
        found = backend.batched_get_blocking(asked[:there]) if there else []
        came = sum(one is not None for one in found)
        told[name] = {"began": began, "ended": time.monotonic(), "chunks": came}
        time.sleep(0.5)
    print(json.dumps(told), flush=True)
    os._exit(0)  # its threads would be waited for without an end


if __name__ == "__main__":
    main()
