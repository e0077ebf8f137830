"""An engine process for tests of the cache server: it retrieves, checks every byte, stores, and
tells what each call took. Run as ``python -m support.cache_worker ENDPOINT SEED PROMPTS``.

It goes on until its input ends, then prints one JSON object.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from kvferry.server import Client
from support.engines import CHUNK, IDENTITY, blanks, expected, prompt

TESTS = Path(__file__).parents[1]
CHUNKS = 8


def main() -> None:
    """See the module."""
    endpoint, seed, prompts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    rng = random.Random(seed)
    made = {n: (prompt(CHUNKS * CHUNK, n),) for n in range(prompts)}
    right = {n: expected(made[n][0]) for n in made}
    calls: list[tuple[str, float, float, int]] = []  # what, when, seconds, chunks
    wrong = 0
    buffers = blanks(CHUNKS)
    with Client(IDENTITY, endpoint) as client:
        print("there", flush=True)
        while not ended.is_set():
            number = rng.randrange(prompts)
            tokens = made[number][0]
            began = time.time()
            got = client.retrieve(tokens, buffers)
            calls.append(("retrieve", began, time.time() - began, got.tokens // CHUNK))
            for chunk in range(got.tokens // CHUNK):
                wrong += not np.array_equal(buffers[chunk], right[number][chunk])
            began = time.time()
            stored = client.store(tokens, right[number])
            calls.append(("store", began, time.time() - began, stored.chunks))
        stats = client.stats()
    print(json.dumps({"calls": calls, "wrong": wrong, "stats": stats}), flush=True)


class CacheWorker:
    """Such a process, from the outside."""

    def __init__(self, endpoint: str, seed: int, prompts: int = 40) -> None:
        arguments = [sys.executable, "-m", "support.cache_worker", endpoint, str(seed)]
        self.process = subprocess.Popen(
            [*arguments, str(prompts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS,
        )
        self.report: dict[str, Any] = {}

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "there\n"
        return self

    def finish(self) -> dict[str, Any]:
        """End it; its report."""
        out, _ = self.process.communicate(timeout=200)
        self.report = json.loads(out.splitlines()[-1])
        return self.report

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()


if __name__ == "__main__":
    main()
