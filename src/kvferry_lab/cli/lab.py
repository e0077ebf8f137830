"""`kvferry lab`: load tests of inference servers, ours or any other."""

from __future__ import annotations

import click

from kvferry.cli.lazy import lazy_group

__all__ = ["lab"]

# As in kvferry.cli.main: name -> (where it is, its line in --help).
_COMMANDS = {
    "latency": (
        "kvferry_lab.cli.lab_latency:latency",
        "Measure what the distance to a store costs.",
    ),
    "long-doc-qa": (
        "kvferry_lab.cli.lab_long_doc:long_doc_qa",
        "Ask about long documents again and again.",
    ),
    "p2p": ("kvferry_lab.p2p:p2p", "Measure two instances that read each other's memory."),
    "tokens": ("kvferry_lab.tokens:tokens", "Measure tokens per second, as llmperf does."),
}


@click.group(
    cls=lazy_group(_COMMANDS), epilog="Example: kvferry lab long-doc-qa --preset published"
)
def lab() -> None:
    """Measure what a cache does for an inference server, as its clients see it.

    Any server that speaks OpenAI's API will do; `kvferry serve-demo` is one without a GPU.
    """
