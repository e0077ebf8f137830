"""Store a chunk and load it back into memory that you already own: `python examples/quickstart.py`.

The store here is a Valkey that kvferry starts and stops. With a server of your own, the client is
`kvferry.RedisClient(host="localhost", port=6379)`.
"""

import kvferry

chunk, target = bytes(range(256)) * 8192, bytearray(256 * 8192)  # 2 MiB each

with kvferry.embedded_store() as store, kvferry.RedisClient.from_url(store.url) as client:
    client.set("chunk", chunk)  # any object with the buffer protocol, sent without a copy
    found = client.get("chunk", target)  # True: filled in place; False: no such key
    print("found:", found, "- equal:", target == chunk)
    print("another key:", client.get("no such chunk", target))
