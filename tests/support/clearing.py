"""KV of versions, to see what a clear has reached; and a cache in a process of its own.

with worker(stores=[...]) as other:       # the same calls, as lines: see `line_process.serve`
    other("put", version="old")
    other("found")                        # "old", "new", or "" for nothing
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvferry import TieredCache
from kvferry.chunks.prompt import read_prompt
from kvferry.server import Client
from support.engines import CHUNK, Chunk, blanks, expected, open_engine, prompt
from support.line_process import LineProcess, serve

__all__ = ["TOKENS", "found", "kv", "put", "worker"]

TOKENS = prompt(8 * CHUNK, 1)
_PATIENT_S = 30.0


def kv(version: str, tokens: Sequence[int] = TOKENS) -> list[Chunk]:
    """The chunks of a prompt, as weights of that version compute them."""
    return expected(tokens, salt=version.encode())


def put(engine: TieredCache | Client, version: str = "old") -> None:
    """Store the prompt, and wait until the stores have it."""
    engine.store(TOKENS, kv(version))
    if isinstance(engine, TieredCache):
        assert engine.flush(_PATIENT_S)


def found(engine: TieredCache | Client, *, memory: bool = True) -> str:
    """Of which version all chunks of the prompt are; "" if none is found."""
    if not memory:
        engine.clear(stores=False)
    into = blanks(8)
    hit = engine.retrieve(TOKENS, into, timeout_s=_PATIENT_S)
    pages = [chunk.tobytes() for chunk in into[: hit.tokens // CHUNK]]
    if not pages:
        return ""
    for version in ("old", "new"):
        if pages == [chunk.tobytes() for chunk in kv(version)]:
            return version
    return f"{len(pages)} of 8, mixed"


def worker(**settings: Any) -> LineProcess:
    """A cache with these settings in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "support.clearing", json.dumps(settings)]
    return LineProcess(command, environment)


def _main() -> None:
    with open_engine(**json.loads(sys.argv[1])) as engine:
        admitted = read_prompt(TOKENS, CHUNK, b"", generation=engine.generation)

        def call(do: str, **request: Any) -> Any:
            match do:
                case "put":
                    return put(engine, **request)
                case "put admitted":  # of a request that was admitted when it began
                    engine.store(admitted, kv("old"))
                    return engine.flush(_PATIENT_S)
                case "found":
                    return found(engine, **request)
                case "clear":
                    return engine.clear(**request)
                case "generation":
                    return engine.generation.hex()
            raise ValueError(do)

        serve(call)


if __name__ == "__main__":
    _main()
