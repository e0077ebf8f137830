"""An engine process for tests of the cache server: the NumPy transformer, with the KV it shares.

Run as ``python -m support.model_worker ENDPOINT NUMBER PROCESSES``: it answers the prompt of its
number, waits for a line, and then answers the prompts of all the others. Each answer is made twice,
with the cache and without it. It prints a line of JSON after each round.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

from kvferry import Identity, KVLayout
from kvferry.server import Client
from kvferry_lab.transformer import Transformer, TransformerConfig

MODEL = TransformerConfig(layers=2, d_model=64, heads=4, kv_heads=2, d_ff=128, page_tokens=16)
LAYOUT = KVLayout(
    layers=MODEL.layers,
    kv_heads=MODEL.kv_heads,
    head_dim=MODEL.head_dim,
    dtype=MODEL.kv_dtype,
    chunk_size=MODEL.page_tokens,
)
IDENTITY = Identity(model="numpy-transformer", revision="seed 0", layout=LAYOUT)
NEW_TOKENS = 12


@dataclass(frozen=True)
class Answer:
    """What became of a prompt: `cached` of `full` chunks came from the cache."""

    prompt: int
    cached: int
    full: int
    stored: int
    tokens: list[int]
    plain_tokens: list[int]
    equal_logits: bool
    release: bool


def prompt_of(number: int) -> list[int]:
    """The prompt of a process, about 170 tokens; the beginnings differ."""
    text = f"{number}: what is computed once need not be computed again. " * 3
    return list(text.encode())[: 165 + number]


def answer(model: Transformer, client: Client, number: int) -> Answer:
    """Answer with what the cache has, store the rest, and answer again without it."""
    prompt = prompt_of(number)
    size = MODEL.page_tokens
    full = (len(prompt) - 1) // size
    kv, plain = (model.new_cache(len(prompt) + NEW_TOKENS) for _ in range(2))
    released = True
    if number % 2:  # into pages of the engine's own
        into = [memoryview(page).cast("B") for page in kv.pages[:full]]
        hit = client.retrieve(prompt, into, limit_tokens=len(prompt) - 1)
    else:  # out of those of the server
        with client.retrieve(prompt, limit_tokens=len(prompt) - 1) as hit:
            for page, array in zip(kv.pages, hit.arrays, strict=False):
                page[...] = array
            released = hit.release()
    kv.length = hit.tokens if released else 0
    first = model.prefill(prompt, kv)
    chunks = [memoryview(page).cast("B") for page in kv.pages[hit.tokens // size : full]]
    stored = client.store(prompt[: full * size], chunks, first_chunk=hit.tokens // size)
    tokens, logits = model.decode(first, kv, NEW_TOKENS)
    plain_tokens, plain_logits = model.generate(prompt, plain, NEW_TOKENS)
    return Answer(
        prompt=number,
        cached=hit.tokens // size,
        full=full,
        stored=stored.chunks,
        tokens=tokens,
        plain_tokens=plain_tokens,
        equal_logits=logits.tobytes() == plain_logits.tobytes(),
        release=released,
    )


def main() -> None:
    """See the module."""
    endpoint, number, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = Transformer(MODEL, 0)
    with Client(IDENTITY, endpoint, timeout_s=20.0) as client:
        if not client.wait(60):
            sys.exit(f"no server: {client.refused}")
        print(json.dumps([asdict(answer(model, client, number))]), flush=True)
        sys.stdin.readline()
        others = [(number + step) % processes for step in range(1, processes)]
        answers = [asdict(answer(model, client, other)) for other in others]
        print(json.dumps([answers, client.stats()]), flush=True)


if __name__ == "__main__":
    main()
