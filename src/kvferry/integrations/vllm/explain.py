"""Where the chunks of a prompt are, as a vLLM that runs sees it.

    python -m kvferry.integrations.vllm.explain                          which engines run here
    python -m kvferry.integrations.vllm.explain --tokens prompt.json     a JSON list of token ids
    python -m kvferry.integrations.vllm.explain --model DIR --text "..." as the model's tokenizer

Every worker of `KvferryConnector` on this host and of this user is asked, at the socket where its
scheduler asks it (`ranks`), and answers as `kvferry.Engine.explain` does: which chunks are in its
memory and in its stores, why others are not, and under which other identities a store has them.
Nothing counts as used by that.

The same from outside, with nothing but the identity that stands in vLLM's log:

    keys = kvferry.keys.chunk_keys(tokens, 256, bytes.fromhex("c8ba2dc60798e8ea..."))
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.engine.prompt import Prompt, read_prompt
from kvferry.integrations.vllm.hashing import request_salt
from kvferry.integrations.vllm.ranks import address, ask_text

if TYPE_CHECKING:
    from kvferry.engine import Engine

__all__ = ["main", "running", "teller"]

_LIMIT_S = 10.0


def teller(engine: Engine) -> Callable[[Prompt], str]:
    """What a rank explains; of an empty prompt a JSON object about itself."""

    def tell(prompt: Prompt) -> str:
        if prompt.chunks:
            return str(engine.explain(prompt))
        about = {
            "identity": engine.identity.digest.hex(),
            "description": engine.identity.description,
            "chunk_size": engine.layout.chunk_size,
            "stores": [store.tier.name for store in engine.tiers],
        }
        return json.dumps(about)

    return tell


def running() -> list[str]:
    """The names of the ranks of this host and user."""
    prefix = "@" + address("", 0).removesuffix("-0")
    table = Path("/proc/net/unix").read_text()
    names = {line.split()[-1] for line in table.splitlines() if prefix in line}
    return sorted(name[1:] for name in names if name.startswith(prefix))


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module; the exit status is 1 if no engine runs here."""
    parser = argparse.ArgumentParser(prog="kvferry.integrations.vllm.explain")
    parser.add_argument("--tokens", metavar="FILE", help="a JSON list of token ids, - for stdin")
    parser.add_argument("--text", help="a prompt, as it is given to the model")
    parser.add_argument("--model", metavar="DIR", help="whose tokenizer reads --text")
    parser.add_argument("--salt", help="the cache_salt of the request")
    given = parser.parse_args(arguments)
    if given.text is not None and not given.model:
        parser.error("--text needs --model")
    ranks = running()
    if not ranks:
        print("no vLLM with KvferryConnector runs here", file=sys.stderr)
        return 1
    tokens = _tokens(given)
    salt = request_salt(_Salted(given.salt)) if given.salt else b""
    for name in ranks:
        try:
            about = json.loads(ask_text(name, Prompt(b"", 0, 1), _LIMIT_S))
            print(f"{name}: {about['identity']}, chunks of {about['chunk_size']} tokens")
            if tokens is not None:
                prompt = read_prompt(tokens, about["chunk_size"], salt)
                print(ask_text(name, prompt, _LIMIT_S) if prompt.chunks else "no full chunk")
        except (OSError, ValueError) as error:
            print(f"{name}: {error or 'no answer'}", file=sys.stderr)
    return 0


class _Salted:
    """A request of which only the salt is known."""

    def __init__(self, salt: str) -> None:
        self.cache_salt = salt


def _tokens(given: Any) -> list[int] | None:
    if given.text is not None:
        from transformers import AutoTokenizer

        return list(AutoTokenizer.from_pretrained(given.model)(given.text).input_ids)
    if given.tokens is None:
        return None
    text = sys.stdin.read() if given.tokens == "-" else Path(given.tokens).read_text()
    return [int(token) for token in json.loads(text)]


if __name__ == "__main__":
    sys.exit(main())
