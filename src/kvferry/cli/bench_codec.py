"""`kvferry bench codec`: what `remote_serde` saves, and what it costs."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["codec"]


@click.command(
    epilog="Exit codes: 0 measured, 2 usage.  Example: kvferry bench codec --file kv.bin"
)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="Content from this file: KV as an engine has it.  [default: KV of our transformer]",
)
@click.option(
    "--tokens", type=click.IntRange(1), default=4096, show_default=True, help="Of our transformer."
)
@click.option(
    "--repeat", type=click.IntRange(1), default=5, show_default=True, help="Rounds; medians count."
)
@click.option("--json", "json_file", help="Write the rows to this file; - is stdout.")
def codec(file: Path | None, tokens: int, repeat: int, json_file: str | None) -> None:
    """Encode and decode KV by each codec, in one thread, and compare every byte."""
    from kvferry.connectors.redis import CODECS
    from kvferry.lab.bench import codec as bench

    content, what = bench.content_of(file, tokens)
    rows = [bench.measure(name, content, repeat) for name in CODECS if name != "naive"]
    if json_file != "-":
        bench.say(rows, what)
    if json_file:
        bench.write_json(json_file, rows, what)
