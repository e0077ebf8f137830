"""`kvferry serve-demo`: an OpenAI-compatible server without a GPU or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvferry.cli.lazy import check_installed
from kvferry.cli.numbers import Number

__all__ = ["serve_demo"]

_PATH = click.Path(path_type=Path)
_WHOLE = click.IntRange(1)
_RATE = Number(0, min_open=True)


@click.command(
    "serve-demo",
    epilog="SIGTERM and Ctrl-C end it, a second time at once.  Exit codes: 0 ended, 1 failed, 2 "
    "usage.  Example: kvferry serve-demo --model llama-3.1-8b "
    "--prefill-tokens-per-s 30000 --config kvferry.yaml",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address where it listens."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Its port; 0 takes any that is free.",
)
@click.option(
    "--config",
    metavar="FILE",
    help="The settings of the cache.  [default: that of KVFERRY_CONFIG_FILE]",
)
@click.option("--no-cache", "cache", flag_value=False, default=True, help="Compute everything.")
@click.option(
    "--client",
    type=click.Choice(["ours", "in-turn"]),
    default="ours",
    show_default=True,
    help="How the store is asked: as kvferry does, or by an EXISTS for each chunk in turn and then "
    "GETs.",
)
@click.option(
    "--model",
    metavar="NAME|FILE",
    help="KV has its size: a name of `kvferry roi --list`, or a config.json.",
)
@click.option("--bytes-per-token", type=_WHOLE, help="Bytes of KV for a token, without a model.")
@click.option("--prefill-tokens-per-s", type=_RATE, help="Prefill at the pace of a GPU.")
@click.option(
    "--prefill-calibration",
    type=_PATH,
    help="Take a + c n + d n^2 seconds for n tokens instead: "
    '{"a_s": .., "c_s_per_token": .., "d_s_per_token2": ..}.',
)
@click.option(
    "--decode-tokens-per-s",
    type=_RATE,
    default=100.0,
    show_default=True,
    help="Tokens a second of an answer, where there is a pace.",
)
@click.option(
    "--max-model-len",
    type=_WHOLE,
    default=65536,
    show_default=True,
    help="Most tokens of a request.",
)
@click.option(
    "--max-num-seqs", type=_WHOLE, default=8, show_default=True, help="Most requests at a time."
)
@click.option(
    "--max-num-batched-tokens",
    "step_tokens",
    type=_WHOLE,
    default=2048,
    show_default=True,
    help="Most tokens of prompts in a step.",
)
@click.option(
    "--served-model-name",
    default="kvferry-demo",
    show_default=True,
    help="The name of the model in requests.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the random weights.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What the log has.",
)
def serve_demo(config: str | None, log_level: str, **options: Any) -> None:
    """Serve OpenAI's API over a small transformer in NumPy, with a cache behind it.

    Answers mean nothing: weights are random. What is real is the cache: KV of the size of the model
    is stored and loaded, every loaded byte is compared, and what was not loaded is computed at the
    pace of the GPU that is named.
    """
    import os

    # Matrices are small: several threads would only wait for each other. Read when NumPy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    check_installed("this server", "numpy", "starlette", "uvicorn", extra="numpy,server")
    from kvferry.config import CacheConfig
    from kvferry_lab.serve.run import ServeSettings
    from kvferry_lab.serve.run import serve_demo as serve

    serve(ServeSettings(**options), CacheConfig.load(config), log_level)
