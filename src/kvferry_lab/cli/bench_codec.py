"""`kvferry bench codec`: what `remote_serde` saves, and what it costs."""

from __future__ import annotations

from pathlib import Path

import click

from kvferry_lab.output import OutputFile

__all__ = ["codec"]


@click.command(
    epilog="Exit codes: 0 measured, 2 usage.  Example: kvferry bench codec --file kv.bin"
)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="KV of an engine as bytes.  [default: KV of a small transformer]",
)
@click.option(
    "--tokens",
    type=click.IntRange(1, 1 << 20),
    default=4096,
    show_default=True,
    help="Tokens whose KV is computed.",
)
@click.option(
    "--repeat", type=click.IntRange(1), default=5, show_default=True, help="Rounds; medians count."
)
@click.option(
    "--json", "json_file", type=OutputFile(), help="Write the rows to this file; - is stdout."
)
def codec(file: Path | None, tokens: int, repeat: int, json_file: str | None) -> None:
    """Encode and decode KV by each codec, in one thread, and compare every byte.

    Of fp8, which loses something, it says what that does to the model's predictions.
    """
    from kvferry.connectors.serde import CODECS, FP8
    from kvferry_lab.bench import codec as bench
    from kvferry_lab.bench.codec import measure_loss
    from kvferry_lab.output import write_json

    content, what = bench.content_of(file, tokens)
    names = [name for name in CODECS if name != "naive"]
    loss = None
    if file is None:  # whose numbers are bf16
        names.append(FP8)
        loss = measure_loss(tokens)
    rows = [bench.measure(name, content, repeat) for name in names]
    if json_file != "-":
        bench.say(rows, what, loss)
    if json_file:
        write_json(json_file, bench.figures(rows, what, loss))
