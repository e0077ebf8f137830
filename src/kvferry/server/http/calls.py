"""What the HTTP side does for its callers: one function for each, without any HTTP in it.

A call gets the server's view and a parsed body, may wait within the limits of the engine, and
returns what JSON is made of. Bodies name prompts by their tokens; the hashes that the cache knows
are made here, with the tenant's salt where there is one.
"""

from __future__ import annotations

import secrets
import threading
import time
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvferry.cache import TieredCache
from kvferry.cache.prompt import Prompt, read_prompt
from kvferry.chunks.generation import joined, named
from kvferry.errors import UsageError
from kvferry.http.answers import CallError, check_names, field
from kvferry.server.view import ServerView

__all__ = [
    "Pins",
    "engine_of",
    "explain",
    "lookup",
    "prompt_of",
]

_PINS_MAX = 10_000
_SALT_BYTES_MAX = 1024
_PROMPT = ("tokens", "identity", "salt", "weights_version")


def engine_of(view: ServerView, body: Mapping[str, Any]) -> TieredCache:
    """The engine of the identity that a body names.

    Raises:
        CallError: There is none, or the server is not ready for it.
    """
    if not view.ready:
        raise CallError(503, "not_ready", "the server starts, or ends; ask again later")
    identity = field(body, "identity", str)
    try:
        return view.engine(identity)
    except UsageError as error:
        text = str(error)
    raise CallError(400 if identity is None else 404, "identity", text)


def prompt_of(
    engine: TieredCache, tokens: Any, salt_hex: str | None, weights_version: str | None = None
) -> Prompt:
    """A prompt as engines read it that were given this name of their weights, or none.

    Raises:
        UsageError: These are no tokens, or no salt.
    """
    try:
        salt = bytes.fromhex(salt_hex or "")
    except ValueError:
        raise UsageError("'salt' is no hexadecimal text") from None
    if len(salt) > _SALT_BYTES_MAX:
        raise UsageError(f"'salt' is longer than {_SALT_BYTES_MAX} bytes")
    generation = joined(named(weights_version or ""), engine.clearing.shared)
    return read_prompt(tokens, engine.layout.chunk_size, salt, generation=generation)


def _prompt(view: ServerView, body: Mapping[str, Any]) -> tuple[TieredCache, Prompt]:
    check_names(body, _PROMPT)
    tokens = field(body, "tokens", array)
    if tokens is None:
        raise UsageError("the body has no 'tokens'; write the tokens of the prompt as a list")
    salt, version = field(body, "salt", str), field(body, "weights_version", str)
    engine = engine_of(view, body)
    return engine, prompt_of(engine, tokens, salt, version)


def _whose(engine: TieredCache) -> dict[str, str]:
    return {"identity": engine.identity.digest.hex(), "model": engine.identity.model}


def lookup(view: ServerView, body: Mapping[str, Any]) -> dict[str, Any]:
    """How much of a prompt each tier has."""
    engine, prompt = _prompt(view, body)
    found = engine.lookup(prompt)
    return {
        **_whose(engine),
        "prompt_tokens": prompt.tokens,
        "tokens": found.tokens,
        "tiers": dict(found.tiers),
        "arriving_tokens": found.arriving_tokens,
    }


def explain(view: ServerView, body: Mapping[str, Any]) -> dict[str, Any]:
    """Where each chunk of a prompt is, or why it is not."""
    engine, prompt = _prompt(view, body)
    found = engine.explain(prompt)
    return {
        **_whose(engine),
        **asdict(found),
        "usable_tokens": found.usable_tokens,
        "text": str(found),
    }


@dataclass(frozen=True)
class _Pin:
    id: str
    engine: TieredCache
    prompt: Prompt  # what was pinned
    asked: bytes  # the hashes of all that was asked for
    shown: dict[str, Any]


class Pins:
    """The pins that were set over HTTP; others have set more, and undo those themselves.

    Threads: any. A pin ends with `remove`, or with the server.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pins: dict[str, _Pin] = {}
        self._coming = 0

    def list(self, view: ServerView, body: Mapping[str, Any]) -> dict[str, Any]:
        """All of them, the oldest first."""
        with self._lock:
            return {"pins": [pin.shown for pin in self._pins.values()]}

    def add(self, view: ServerView, body: Mapping[str, Any]) -> dict[str, Any]:
        """Load the prefix of a prompt and keep it in memory."""
        engine, prompt = _prompt(view, body)
        with self._lock:
            if len(self._pins) + self._coming >= _PINS_MAX:
                raise CallError(503, "busy", f"there are {_PINS_MAX} pins; remove some first")
            self._coming += 1
        try:
            tokens = engine.pin(prompt)
        finally:
            with self._lock:
                self._coming -= 1
        shown: dict[str, Any] = {
            "id": None,
            **_whose(engine),
            "prompt_tokens": prompt.tokens,
            "tokens": tokens,
        }
        if tokens:
            chunks = tokens // engine.layout.chunk_size
            held = replace(prompt, hashes=prompt.first(chunks))
            shown |= {"id": secrets.token_hex(8), "since": round(time.time(), 3)}
            pin = _Pin(shown["id"], engine, held, prompt.hashes, shown)
            with self._lock:
                self._pins[pin.id] = pin
        return shown

    def remove(self, view: ServerView, body: Mapping[str, Any]) -> dict[str, Any]:
        """Undo one, by its id or its tokens; how many tokens lost a pin."""
        check_names(body, ("id", *_PROMPT))
        wanted = field(body, "id", str)
        if wanted is not None and len(body) > 1:
            raise UsageError("the body has an 'id' and more; the id alone says which pin it is")
        if wanted is None:
            engine, prompt = _prompt(view, body)
            pin = self._taken(lambda pin: pin.engine is engine and pin.asked == prompt.hashes)
            if pin is None:  # set by others
                return {"tokens": engine.unpin(prompt), **_whose(engine)}
        else:
            pin = self._taken(lambda pin: pin.id == wanted)
            if pin is None:
                raise CallError(404, "pin", "there is no pin with this id")
        return {"tokens": pin.engine.unpin(pin.prompt), **_whose(pin.engine)}

    def clear(self, view: ServerView, body: Mapping[str, Any]) -> dict[str, Any]:
        """Forget everything of an identity, pins too, and in the stores if that is said."""
        check_names(body, ("identity", "stores"))
        stores = field(body, "stores", bool, False)  # then for everybody: here are no engines
        engine = engine_of(view, body)
        with self._lock:
            gone = [pin.id for pin in self._pins.values() if pin.engine is engine]
            for id in gone:
                del self._pins[id]
        return {
            **_whose(engine),
            "chunks": engine.clear(stores=stores, everybody=stores),
            "stores": stores,
        }

    def _taken(self, fits: Any) -> _Pin | None:
        with self._lock:
            pin = next((pin for pin in self._pins.values() if fits(pin)), None)
            return None if pin is None else self._pins.pop(pin.id)
