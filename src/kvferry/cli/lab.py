"""`kvferry lab`: load tests of inference servers, ours or any other."""

from __future__ import annotations

import importlib

import click

__all__ = ["lab"]

# As in kvferry.cli.main: name -> (where it is, its line in --help).
_COMMANDS = {
    "long-doc-qa": (
        "kvferry.cli.lab_long_doc:long_doc_qa",
        "Ask about long documents again and again.",
    ),
    "p2p": ("kvferry.cli.lab_p2p:p2p", "Two instances that read each other's memory."),
    "tokens": ("kvferry.cli.lab_tokens:tokens", "Measure tokens per second, as llmperf does."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup, epilog="Example: kvferry lab long-doc-qa --preset published")
def lab() -> None:
    """Measure what a cache does for an inference server, as its clients see it.

    Any server that speaks OpenAI's API will do; `kvferry serve-demo` is one without a GPU.
    """
