"""Load many chunks while the event loop goes on: `python examples/asyncio_batch.py`.

One await moves the whole batch. The result has one status per key, and `prefix_len`: how many
leading keys are OK, because KV is usable only up to the first hole.
"""

import asyncio

import kvferry

CHUNKS, SIZE_BYTES = 16, 1 << 20


async def main(url: str) -> None:
    keys = [f"chunk:{i}" for i in range(CHUNKS)]
    values = [bytes([i]) * SIZE_BYTES for i in range(CHUNKS)]
    targets = [bytearray(SIZE_BYTES) for _ in keys]
    async with kvferry.AsyncRedisClient.from_url(url) as client:
        stored = await client.batch_set(keys[:12], values[:12])  # the last four stay missing
        stored.raise_for_errors()

        loading = asyncio.create_task(client.batch_get(keys, targets))
        ticks = 0
        while not loading.done():
            ticks += 1
            await asyncio.sleep(0)
        result = await loading
    print("usable:", result.prefix_len, "of", len(keys), "- then:", result[12].name)
    print("equal:", targets[:12] == values[:12], "- loop ran meanwhile:", ticks > 0)


with kvferry.embedded_store() as store:
    asyncio.run(main(store.url))
