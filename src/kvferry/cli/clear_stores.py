"""Clearing a store for all engines on it, from outside: `kvferry clear --everybody`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvferry.cache.store.generations import StoreGenerations
from kvferry.cache.store.newest_mark import NewestMark
from kvferry.chunks.generation import Mark, shared_of
from kvferry.config import ClientConfig
from kvferry.connectors.base import Space
from kvferry.connectors.redis import RedisConnector

__all__ = ["clear_everybody"]

_TIMEOUT_S = 5.0


def clear_everybody(config: ClientConfig, identity: str | None = None) -> Iterator[str]:
    """Renew the generation of identities in a store, and delete what they have there.

    Args:
        config: How the server is reached.
        identity: Of one model: its digest in hex, a beginning of it, or its name. None: all.

    Yields:
        What was done, a line for each identity.

    Raises:
        UnavailableError, DeadlineExceeded, ServerError: The store does not take it; do it again.
    """
    with RedisConnector(Space("kvf:", bytes(16), 1), config) as store:
        found = store.descriptions()
    chosen: dict[bytes, str] = {}
    there = []
    for digest, description in sorted(found.items()):
        fields = dict(line.split("=", 1) for line in description.splitlines() if "=" in line)
        model = fields.get("model", "")
        if identity is None or identity == model or digest.hex().startswith(identity):
            chosen[digest] = model
            with _opened(digest, config) as connector:
                there.append(Mark.decode(connector.read_mark(_TIMEOUT_S)))
    # One for all: ranks of an engine are identities, and what they have is found together.
    newest = NewestMark(int)
    newest.renew(*there)
    for digest, model in chosen.items():
        with _opened(digest, config) as connector:
            generations = StoreGenerations("the store", connector, newest)
            try:
                generations.tell()
                gone = sum(connector.delete_generations(_obsolete(newest.mark.half)))
            finally:
                generations.close()
        yield f"{digest.hex()} {model}: cleared, {gone} values deleted"


def _opened(digest: bytes, config: ClientConfig) -> RedisConnector:
    return RedisConnector(Space(f"kvf:{digest.hex()}:", digest, 1), config)


def _obsolete(shared: bytes) -> Callable[[bytes], bool]:
    return lambda generation: shared_of(generation) != shared
