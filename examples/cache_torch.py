"""The same with torch, straight into tensors of yours: `python examples/cache_torch.py`."""

import torch

from kvferry import Identity, KVLayout, TieredCache, embedded_store

layout = KVLayout(layers=2, kv_heads=4, head_dim=64, dtype=torch.bfloat16, chunk_size=16)
identity = Identity(model="example", layout=layout)
tokens = torch.arange(100)
chunks = [torch.randn(layout.chunk_shape).to(torch.bfloat16) for _ in range(6)]
targets = [torch.empty(layout.chunk_shape, dtype=torch.bfloat16) for _ in range(6)]

with embedded_store() as store:
    with TieredCache(identity, remote_url=store.url, max_local_cpu_size=0.1) as cache:
        cache.store(tokens.numpy(), chunks)
    with TieredCache(identity, remote_url=store.url, max_local_cpu_size=0.1) as cache:
        print(cache.retrieve(tokens.numpy(), into=targets))
print("equal:", all(torch.equal(a, b) for a, b in zip(targets, chunks, strict=True)))
