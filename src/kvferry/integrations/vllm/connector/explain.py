"""Where the chunks of a prompt are, as a vLLM that runs sees it.

    kvferry explain                                       which engines run here
    kvferry explain --tokens prompt.json                  a JSON list of token ids
    kvferry explain --model DIR --prompt-file prompt.txt  as the model's tokenizer reads it

Every worker of `KvferryConnector` on this host and of this user is asked, as its scheduler asks it
(`ranks`), and answers as `kvferry.TieredCache.explain` does: which chunks are in
its memory and in its stores, why others are not, and under which other identities a store has them.
Nothing counts as used by that.

The same from outside, with nothing but the identity that stands in vLLM's log:

    keys = kvferry.chunks.keys.chunk_keys(tokens, 256, bytes.fromhex("c8ba2dc60798e8ea..."))
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kvferry import __version__
from kvferry.base.errors import ClosedError
from kvferry.chunks.prompt import Prompt, read_prompt
from kvferry.integrations.vllm.connector.ranks import running
from kvferry.integrations.vllm.connector.request_hashes import request_salt
from kvferry.rpc.local import ask_local

if TYPE_CHECKING:
    from kvferry.cache import TieredCache

__all__ = ["explained", "status_of", "teller"]

_LIMIT_S = 10.0  # of one rank, which may ask its stores


def teller(cache: TieredCache) -> Callable[[Prompt | None], str]:
    """What a rank explains; without a prompt a JSON object about itself."""

    def tell(prompt: Prompt | None) -> str:
        if prompt is not None:
            return str(cache.explain(prompt))
        about = {
            "identity": cache.identity.digest.hex(),
            "description": cache.identity.description,
            "chunk_size": cache.layout.chunk_size,
            "generation": cache.generation.hex(),
            "stores": [store.tier.name for store in cache.tiers],
        }
        return json.dumps(about)

    return tell


def status_of(cache: TieredCache, software: str) -> Callable[[], bytes]:
    """What `kvferry top` is told of a cache: JSON, shaped as the status of a cache server.

    Args:
        cache: Whose figures they are.
        software: Who uses it, for people.
    """
    began, pid = time.monotonic(), os.getpid()
    incarnation = f"{pid}-{time.time_ns()}"

    def status() -> bytes:
        try:
            stats, layout = cache.stats(), cache.layout
        except ClosedError:
            return b"{}"
        age_s = round(time.monotonic() - began, 3)
        pool_bytes, used = cache.memory.pages * layout.chunk_bytes, stats["memory"]["resident"]
        row = {
            "identity": cache.identity.digest.hex(),
            "model": cache.identity.model,
            "chunk_bytes": layout.chunk_bytes,
            "chunk_size": layout.chunk_size,
            "used_bytes": used * layout.chunk_bytes,
            "engines": 1,
            **stats,
        }
        session = {
            "pid": pid,
            "software": software,
            "model": cache.identity.model,
            "age_s": age_s,
            "requests": stats["metrics"]["kvferry_retrieve_seconds"]["count"],
            "pages": used,
        }
        about = {
            "version": __version__,
            "incarnation": incarnation,
            "pid": pid,
            "uptime_s": age_s,
            "state": "ready",
            "pool": {"bytes": pool_bytes, "granted_bytes": pool_bytes},
            "identities": [row],
            "sessions": [session],
        }
        return json.dumps(about, default=str).encode()

    return status


def explained(tokens: Sequence[int] | None, salt: str = "") -> Iterator[str]:
    """What every rank of this host and user says of a prompt; without one, what it is.

    Args:
        tokens: Of the prompt.
        salt: The ``cache_salt`` of its request.
    """
    packed = request_salt(_Salted(salt)) if salt else b""
    for name in running():
        try:
            about = json.loads(ask_local(name, "explain", b"", _LIMIT_S))
            yield f"{name}: {about['identity']}, chunks of {about['chunk_size']} tokens"
            if tokens is not None:
                generation = bytes.fromhex(about["generation"])
                prompt = read_prompt(tokens, about["chunk_size"], packed, generation=generation)
                if prompt.chunks:
                    yield ask_local(name, "explain", prompt.encode(), _LIMIT_S).decode()
                else:
                    yield "no full chunk"
        except (OSError, ValueError) as error:
            yield f"{name}: {error or 'no answer'}"


class _Salted:
    """A request of which only the salt is known."""

    def __init__(self, salt: str) -> None:
        self.cache_salt = salt
