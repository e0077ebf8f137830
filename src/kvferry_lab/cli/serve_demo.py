"""`kvferry serve-demo`: an OpenAI-compatible server without a GPU or a model."""

from __future__ import annotations

import os

import click

from kvferry.cli.lazy import check_installed
from kvferry_lab.cli.options import options_of
from kvferry_lab.serve.serve_settings import ServeSettings

__all__ = ["serve_demo"]


@click.command(
    "serve-demo",
    epilog="SIGTERM and Ctrl-C end it, a second time at once.  Exit codes: 0 ended, 1 failed, 2 "
    "usage.  Example: kvferry serve-demo --model llama-3.1-8b "
    "--prefill-tokens-per-s 30000 --config kvferry.yaml",
)
@options_of(ServeSettings)
@click.option(
    "--config",
    metavar="FILE",
    help="The settings of the cache.  [default: that of KVFERRY_CONFIG_FILE]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What the log has.",
)
def serve_demo(
    ctx: click.Context, /, settings: ServeSettings, config: str | None, log_level: str
) -> None:
    """Serve OpenAI's API over a small transformer in NumPy, with a cache behind it.

    Answers mean nothing: weights are random. What is real is the cache: KV of the size of the model
    is stored and loaded, every loaded byte is compared, and what was not loaded is computed at the
    pace of the GPU that is named.
    """
    # Matrices are small: several threads would only wait for each other. Read when NumPy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    check_installed("this server", "numpy", "starlette", "uvicorn", extra="numpy,server")
    from kvferry.config import CacheConfig
    from kvferry_lab.serve.run import serve_demo as serve

    serve(settings, CacheConfig.load(config), log_level)
