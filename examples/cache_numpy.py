"""Store the KV of a prompt and retrieve it in another cache: `python examples/cache_numpy.py`."""

import numpy as np

from kvferry import Identity, KVLayout, TieredCache, embedded_store

layout = KVLayout(layers=2, kv_heads=4, head_dim=64, dtype="float16", chunk_size=16)
identity = Identity(model="example", layout=layout)
tokens = list(range(100))  # six full chunks; the last four tokens are computed again
chunks = [np.full(layout.chunk_shape, index, np.float16) for index in range(6)]

settings = {"max_local_cpu_size": 0.1}  # GB of memory

with embedded_store() as store:
    with TieredCache(identity, remote_url=store.url, **settings) as cache:
        print("stored:", cache.store(tokens, chunks).chunks, "chunks")  # in memory; the store soon
    with TieredCache(identity, remote_url=store.url, **settings) as cache:
        hit = cache.retrieve([*tokens, 7, 8, 9])  # the same beginning
        print(hit)
        print("equal:", all((a == b).all() for a, b in zip(hit.arrays, chunks, strict=True)))
        hit.release()
