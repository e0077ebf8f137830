"""Where the chunks of a prompt are, as a vLLM that runs sees it.

    kvferry explain                                       which engines run here
    kvferry explain --tokens prompt.json                  a JSON list of token ids
    kvferry explain --model DIR --prompt-file prompt.txt  as the model's tokenizer reads it

Every worker of `KvferryConnector` on this host and of this user is asked, at the socket where its
scheduler asks it (`ranks`), and answers as `kvferry.TieredCache.explain` does: which chunks are in
its memory and in its stores, why others are not, and under which other identities a store has them.
Nothing counts as used by that.

The same from outside, with nothing but the identity that stands in vLLM's log:

    keys = kvferry.chunks.keys.chunk_keys(tokens, 256, bytes.fromhex("c8ba2dc60798e8ea..."))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvferry.chunks.prompt import Prompt, read_prompt
from kvferry.integrations.vllm.connector.ranks import address, ask_text
from kvferry.integrations.vllm.connector.request_hashes import request_salt

if TYPE_CHECKING:
    from kvferry.cache import TieredCache

__all__ = ["explained", "running", "teller"]

_LIMIT_S = 10.0


def teller(cache: TieredCache) -> Callable[[Prompt], str]:
    """What a rank explains; of an empty prompt a JSON object about itself."""

    def tell(prompt: Prompt) -> str:
        if prompt.chunks:
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


def running() -> list[str]:
    """The names of the ranks of this host and user."""
    prefix = "@" + address("", 0).removesuffix("-0")
    table = Path("/proc/net/unix").read_text()
    names = {line.split()[-1] for line in table.splitlines() if prefix in line}
    return sorted(name[1:] for name in names if name.startswith(prefix))


def explained(tokens: Sequence[int] | None, salt: str = "") -> Iterator[str]:
    """What every rank of this host and user says of a prompt; without one, what it is.

    Args:
        tokens: Of the prompt.
        salt: The ``cache_salt`` of its request.
    """
    packed = request_salt(_Salted(salt)) if salt else b""
    for name in running():
        try:
            about = json.loads(ask_text(name, Prompt(b"", 0, 1), _LIMIT_S))
            yield f"{name}: {about['identity']}, chunks of {about['chunk_size']} tokens"
            if tokens is not None:
                generation = bytes.fromhex(about["generation"])
                prompt = read_prompt(tokens, about["chunk_size"], packed, generation=generation)
                yield ask_text(name, prompt, _LIMIT_S) if prompt.chunks else "no full chunk"
        except (OSError, ValueError) as error:
            yield f"{name}: {error or 'no answer'}"


class _Salted:
    """A request of which only the salt is known."""

    def __init__(self, salt: str) -> None:
        self.cache_salt = salt
