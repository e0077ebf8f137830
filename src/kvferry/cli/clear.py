"""`kvferry clear`: what a store has is found by no engine on it any more, and deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from kvferry.base.errors import UsageError

if TYPE_CHECKING:
    from kvferry.config import ClientConfig
    from kvferry.connectors.redis import RedisConnector

__all__ = ["clear", "clear_everybody"]

_TIMEOUT_S = 5.0


@click.command(
    epilog="Exit codes: 0 cleared, 1 the store did not take it, or has nothing of that identity, 2 "
    "usage.  Example: kvferry clear --everybody redis://cache:6379 --identity my-model"
)
@click.argument("url", required=False)
@click.option(
    "--everybody",
    is_flag=True,
    help="Clear for all engines on this store, which lose what they share.",
)
@click.option(
    "--identity",
    metavar="TEXT",
    help="One model: its digest in hex, a beginning of it, or its name.  [default: all]",
)
@click.option(
    "--config", "file", metavar="FILE", help="Settings.  [default: KVFERRY_CONFIG_FILE, if set]"
)
@click.pass_context
def clear(
    ctx: click.Context, url: str | None, everybody: bool, identity: str | None, file: str | None
) -> None:
    """Renew the generation of models in a Redis or Valkey store, and delete what was there.

    URL is the client's; without it the store comes from the environment or a file. Engines that run
    find nothing of before within a second, in their memory neither. An engine that begins its
    answers from its own prefix cache has to be reset by itself, before this.
    """
    from kvferry.config import load_client_config

    if not everybody:
        raise UsageError(
            "say --everybody: this is for all engines on the store. One engine is cleared by "
            "itself: TieredCache.clear(), or vLLM's reset_prefix_cache with its connector"
        )
    count = 0
    for text in clear_everybody(load_client_config(file, url=url), identity):
        count += 1
        click.echo(text)
    if not count:
        click.echo("the store has nothing of such an identity", err=True)
    ctx.exit(0 if count else 1)


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
    from kvferry.cache.store.generations import NewestMark, StoreGenerations
    from kvferry.chunks.generation import Mark

    with _opened(bytes(16), config, "kvf:") as store:
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


def _opened(digest: bytes, config: ClientConfig, prefix: str = "") -> RedisConnector:
    from kvferry.connectors.base import Space
    from kvferry.connectors.redis import RedisConnector

    return RedisConnector(Space(prefix or f"kvf:{digest.hex()}:", digest, 1), config)


def _obsolete(shared: bytes) -> Callable[[bytes], bool]:
    from kvferry.chunks.generation import shared_of

    return lambda generation: shared_of(generation) != shared
