"""Two engine processes share one cache server: `python examples/shared_cache.py`."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

from kvferry import Identity, KVLayout
from kvferry.server import Client

layout = KVLayout(layers=2, kv_heads=4, head_dim=64, dtype="float16", chunk_size=16)
identity = Identity(model="example", layout=layout)
tokens = list(range(100))  # six full chunks; the last four tokens are computed again


def one_engine(url: str) -> None:
    """It computes, and stores what it has computed."""
    with Client(identity, url) as cache:
        cache.wait(10)
        chunks = [np.full(layout.chunk_shape, index, np.float16) for index in range(6)]
        print("stored:", cache.store(tokens, chunks).chunks, "chunks", flush=True)


def another_engine(url: str) -> None:
    """It finds all of it, in the same memory."""
    with Client(identity, url) as cache:
        cache.wait(10)
        with cache.retrieve([*tokens, 7, 8, 9]) as hit:
            print(hit)
            print("equal:", all((a == i).all() for i, a in enumerate(hit.arrays)))
        stats = cache.stats()
        sent = stats["socket_bytes_sent"] + stats["socket_bytes_received"]
        print(
            "through the socket:", "names only" if sent < layout.chunk_bytes else "more", flush=True
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "kvferry.cli.main", "server", "--l1-size-gb", "0.1"]
        socket = ["--no-tcp", "--no-http", "--log-level", "warning", "--ipc", f"{directory}/cache"]
        with subprocess.Popen([*command, *socket]) as server:
            while server.poll() is None and not os.path.exists(f"{directory}/cache"):
                time.sleep(0.01)  # it starts
            spawn = multiprocessing.get_context("spawn")
            for engine in (one_engine, another_engine):
                process = spawn.Process(target=engine, args=(f"ipc://{directory}/cache",))
                process.start()
                process.join()
            server.terminate()
