"""Two processes that share one-sided, in tests: an owner, and a reader that does as it is told.

NIXL reads UCX_TLS once and keeps threads, so the process of the tests never loads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvferry import Identity, KVLayout
from kvferry.sharing.controller.controller import Controller
from support.engines import LAYOUT
from support.programs import Program
from support.sharing import sharing

__all__ = ["IDENTITIES", "NIXL", "OWNER", "owner_of", "reader_of", "says"]

_TESTS = str(Path(__file__).parents[1])
_PLAIN = KVLayout(layers=8, kv_heads=8, head_dim=128, dtype="float16", chunk_size=64)
_STRIPED = KVLayout(layers=20, kv_heads=8, head_dim=128, dtype="float16", chunk_size=64)
IDENTITIES = {
    "small": Identity(model="small", layout=LAYOUT),  # 4 KiB
    "plain": Identity(model="plain", layout=_PLAIN),  # 2 MiB
    "striped": Identity(model="striped", layout=_STRIPED),  # 5 MiB, two stripes
}
OWNER = "owner"
NIXL = {"transfer_channel": "nixl"}

_HEAD = """
import itertools, json, logging, os, signal, sys, threading, time
if "without" in sys.argv[4]:
    sys.modules["nixl"] = None  # as where the wheel is not installed
from support.engines import blanks, check, expected, open_engine, pages_gb, prompt
from support.one_sided import IDENTITIES, OWNER
from support.sharing import finds, meets, peers_of
name, settings, chunks = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
identity = IDENTITIES[name]
tokens = chunks * identity.layout.chunk_size
size = {"max_local_cpu_size": pages_gb(4 * chunks, identity.layout), "identity": identity}
"""

_OWNER = (
    _HEAD
    + """
with open_engine(**size, **settings) as engine:
    for seed in range(3):
        engine.store(prompt(tokens, seed), expected(prompt(tokens, seed), identity))
    print("ready", flush=True)
    for seed in itertools.count(3):
        time.sleep(0.001 if "evicts" in sys.argv[4] else 600)
        engine.store(prompt(tokens, seed % 8), expected(prompt(tokens, seed % 8), identity))
"""
)

_READER = (
    _HEAD
    + """
logging.basicConfig(level="INFO", stream=sys.stderr)

def figures(engine):
    stats = engine.tiers[0].tier.connector.stats()
    names = ("reads", "bytes", "expired", "fallbacks")
    return {name: stats.get("one_sided_" + name, -1) for name in names}

def until_one_sided(engine, seed=0):
    "Read until the agent has met the other side."
    end = time.monotonic() + 60
    while figures(engine)["reads"] == 0:
        assert time.monotonic() < end, figures(engine)
        engine.clear(stores=False)
        check(engine, prompt(tokens, seed))

with open_engine(**size, **settings) as engine:
    meets(engine, OWNER)
    for seed in range(3):
        found = prompt(tokens, seed)
        end = time.monotonic() + 60
        while engine.contains(found) < tokens:
            assert time.monotonic() < end
    print("ready", flush=True)
"""
)


def says(program: Program) -> str:
    """Its next line; fails with its last words when it has ended."""
    line = program.read_line(90)
    assert line, program.process.communicate()
    return line


@contextmanager
def owner_of(
    controller: Controller, name: str, chunks: int, mode: str = "", **settings: Any
) -> Iterator[Program]:
    """An instance that has three prompts of so many chunks; mode "without": it has no NIXL;
    "evicts": it goes on storing others."""
    settings = sharing(controller, OWNER, **settings)
    with Program(_OWNER, name, json.dumps(settings), chunks, mode) as program:
        assert says(program) == "ready"
        yield program


@contextmanager
def reader_of(
    controller: Controller, name: str, chunks: int, body: str, *words: object, **settings: Any
) -> Iterator[Program]:
    """An instance that knows the owner and then runs `body`, which prints lines."""
    settings = sharing(controller, "reader", **settings)
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    with Program(_READER + lines, name, json.dumps(settings), chunks, "", *words) as program:
        assert says(program) == "ready"
        yield program
