"""`kvferry clear`: what a store has is found by no engine any more."""

from __future__ import annotations

import click

from kvferry.base.errors import UsageError

__all__ = ["clear"]


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
    from kvferry.cli.clear_stores import clear_everybody
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
