"""What the HTTP side does for its callers: one function for each, without any HTTP in it.

A call gets the server's view and a body of its kind, may wait within the limits of the engine, and
returns what JSON is made of; `kvferry.http.routes` describes it by its annotations. Bodies name
prompts by their tokens; the hashes that the cache knows are made here, with the tenant's salt where
there is one.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

from kvferry.base.errors import UsageError
from kvferry.cache import TieredCache
from kvferry.chunks.generation import joined, named
from kvferry.chunks.prompt import Prompt, read_prompt
from kvferry.http.answers import CallError
from kvferry.http.bodies import Tokens
from kvferry.server.server import Server

__all__ = [
    "IdentityName",
    "Pins",
    "SaltHex",
    "Whose",
    "cache_of",
    "explain",
    "lookup",
    "prompt_of",
    "whose",
]

_PINS_MAX = 10_000
_SALT_BYTES_MAX = 1024

IdentityName = Annotated[
    str | None,
    msgspec.Meta(description="Digest in hex, a beginning of it, or the model; default: the only."),
]
SaltHex = Annotated[str | None, msgspec.Meta(description="Of the tenant, in hex.")]
_Version = Annotated[
    str | None, msgspec.Meta(description="Of engines that were given this name of their weights.")
]


class _Named(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    identity: IdentityName = None
    salt: SaltHex = None
    weights_version: _Version = None


class EnginePromptBody(_Named, kw_only=True):
    """A prompt of an engine."""

    tokens: Tokens


class UnpinBody(_Named, kw_only=True):
    """A pin, by its id alone or by the prompt."""

    id: str | None = None
    tokens: Tokens | None = None


class ClearBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whose chunks are forgotten."""

    identity: IdentityName = None
    stores: Annotated[
        bool, msgspec.Meta(description="For all engines on its stores, and not in memory alone.")
    ] = False


class Whose(TypedDict):
    """An identity: its digest, and the model."""

    identity: str
    model: str


class LookupReport(Whose):
    """How much of a prompt there is."""

    prompt_tokens: int
    tokens: Annotated[int, msgspec.Meta(description="Of the prefix that some tier has.")]
    tiers: Annotated[
        dict[str, int], msgspec.Meta(description='Tokens that each gives; "l1" is memory.')
    ]
    arriving_tokens: Annotated[
        int, msgspec.Meta(description="Right behind those in memory, on their way.")
    ]


class Pinned(Whose):
    """A pin."""

    id: Annotated[str | None, msgspec.Meta(description="null: nothing of the prompt could be had.")]
    prompt_tokens: int
    tokens: int
    since: NotRequired[Annotated[float, msgspec.Meta(description="Seconds since 1970.")]]


class PinnedList(TypedDict):
    """The pins that were set over HTTP."""

    pins: list[Pinned]


class Unpinned(Whose):
    """How many tokens lost a pin."""

    tokens: int


class Cleared(Whose):
    """How many chunks memory lost."""

    chunks: int
    stores: bool


def cache_of(view: Server, identity: str | None) -> TieredCache:
    """The cache of an identity.

    Raises:
        CallError: There is none, or the server is not ready for it.
    """
    if not view.ready:
        raise CallError(503, "not_ready", "the server starts, or ends; ask again later")
    try:
        return view.cache(identity)
    except UsageError as error:
        text = str(error)
    raise CallError(400 if identity is None else 404, "identity", text)


def prompt_of(
    cache: TieredCache, tokens: Any, salt_hex: str | None, weights_version: str | None = None
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
    generation = joined(named(weights_version or ""), cache.clearing.shared)
    return read_prompt(tokens, cache.layout.chunk_size, salt, generation=generation)


def _prompt(view: Server, body: EnginePromptBody | UnpinBody) -> tuple[TieredCache, Prompt]:
    cache = cache_of(view, body.identity)
    return cache, prompt_of(cache, body.tokens, body.salt, body.weights_version)


def whose(cache: TieredCache) -> Whose:
    """Of what identity an engine is."""
    return {"identity": cache.identity.digest.hex(), "model": cache.identity.model}


def lookup(view: Server, body: EnginePromptBody) -> LookupReport:
    """How much of a prompt each tier has."""
    cache, prompt = _prompt(view, body)
    found = cache.lookup(prompt)
    return {
        **whose(cache),
        "prompt_tokens": prompt.tokens,
        "tokens": found.tokens,
        "tiers": dict(found.tiers),
        "arriving_tokens": found.arriving_tokens,
    }


def explain(view: Server, body: EnginePromptBody) -> dict[str, Any]:
    """Where each chunk of a prompt is, or why it is not."""
    cache, prompt = _prompt(view, body)
    found = cache.explain(prompt)
    return {
        **whose(cache),
        **asdict(found),
        "usable_tokens": found.usable_tokens,
        "text": str(found),
    }


@dataclass(frozen=True)
class _Pin:
    id: str
    cache: TieredCache
    prompt: Prompt  # what was pinned
    asked: bytes  # the hashes of all that was asked for
    shown: Pinned


class Pins:
    """The pins that were set over HTTP; others have set more, and undo those themselves.

    Threads: any. A pin ends with `remove`, or with the server.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pins: dict[str, _Pin] = {}
        self._coming = 0

    def list(self, view: Server) -> PinnedList:
        """Pins that were set here, the oldest first."""
        with self._lock:
            return {"pins": [pin.shown for pin in self._pins.values()]}

    def add(self, view: Server, body: EnginePromptBody) -> Pinned:
        """Load a prompt's prefix and keep it in memory."""
        cache, prompt = _prompt(view, body)
        with self._lock:
            if len(self._pins) + self._coming >= _PINS_MAX:
                raise CallError(503, "busy", f"there are {_PINS_MAX} pins; remove some first")
            self._coming += 1
        try:
            tokens = cache.pin(prompt)
        finally:
            with self._lock:
                self._coming -= 1
        shown: Pinned = {
            "identity": cache.identity.digest.hex(),
            "model": cache.identity.model,
            "id": None,
            "prompt_tokens": prompt.tokens,
            "tokens": tokens,
        }
        if tokens:
            chunks = tokens // cache.layout.chunk_size
            held = prompt.cut(chunks)
            id = secrets.token_hex(8)
            shown["id"], shown["since"] = id, round(time.time(), 3)
            pin = _Pin(id, cache, held, prompt.hashes, shown)
            with self._lock:
                self._pins[pin.id] = pin
        return shown

    def remove(self, view: Server, body: UnpinBody) -> Unpinned:
        """Undo a pin, by its id or its tokens; how many tokens lost one."""
        if body.id is not None and body != UnpinBody(id=body.id):
            raise UsageError("the body has an 'id' and more; the id alone says which pin it is")
        if body.id is None:
            if body.tokens is None:
                raise UsageError("name the 'id' of the pin, or the 'tokens' of its prompt")
            cache, prompt = _prompt(view, body)
            pin = self._taken(lambda pin: pin.cache is cache and pin.asked == prompt.hashes)
            if pin is None:  # set by others
                return {"tokens": cache.unpin(prompt), **whose(cache)}
        else:
            pin = self._taken(lambda pin: pin.id == body.id)
            if pin is None:
                raise CallError(404, "pin", "there is no pin with this id")
        return {"tokens": pin.cache.unpin(pin.prompt), **whose(pin.cache)}

    def clear(self, view: Server, body: ClearBody) -> Cleared:
        """Forget all chunks of an identity, pins too, and in the stores if that is said."""
        stores = body.stores  # then for everybody: here are no engines
        cache = cache_of(view, body.identity)
        with self._lock:
            gone = [pin.id for pin in self._pins.values() if pin.cache is cache]
            for id in gone:
                del self._pins[id]
        return {
            **whose(cache),
            "chunks": cache.clear(stores=stores, everybody=stores),
            "stores": stores,
        }

    def _taken(self, fits: Callable[[_Pin], bool]) -> _Pin | None:
        with self._lock:
            pin = next((pin for pin in self._pins.values() if fits(pin)), None)
            return None if pin is None else self._pins.pop(pin.id)
