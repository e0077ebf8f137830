"""Keep chunks in a pool of equal NumPy pages: `python examples/numpy_pool.py`.

The pool's memory is allocated once. A page is a buffer for the client and an array for you: stored
from there, loaded into there, no copy in between. `kvferry.chunks.keys` names chunks so that equal
keys mean equal prefixes of tokens.
"""

import kvferry
from kvferry.chunks.keys import chunk_keys, describe_identity, identity_digest

SHAPE = (8, 2, 64, 4, 64)  # layers, K and V, tokens, KV heads, head size: 1 MiB
identity = identity_digest(describe_identity(model="example", dtype="float32", shape=str(SHAPE)))
keys = chunk_keys(range(200), 64, identity)  # 200 tokens: three full chunks

pool = kvferry.PagePool(shape=SHAPE, dtype="float32", pages=6)
computed, loaded = pool.allocate_many(len(keys)), pool.allocate_many(len(keys))
if computed is None or loaded is None:  # a full pool says so at once and never waits
    raise SystemExit("the pool is full")
for number, page in enumerate(computed):
    page.array[...] = number

with kvferry.embedded_store() as store, kvferry.RedisClient.from_url(store.url) as client:
    client.batch_set(keys, computed).raise_for_errors()
    result = client.batch_get(keys, loaded)

print("loaded:", result.prefix_len, "of", len(keys), "chunks of", loaded[0].nbytes, "bytes")
print("equal:", all((a.array == b.array).all() for a, b in zip(computed, loaded, strict=True)))
for page in (*computed, *loaded):
    page.free()
print("free pages:", pool.free_count)
