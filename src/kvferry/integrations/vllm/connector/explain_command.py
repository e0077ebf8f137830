"""`kvferry explain`: where the chunks of a prompt are, or why they are not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from kvferry.base.errors import UsageError
from kvferry.integrations.vllm.connector.ask_server import ask_server
from kvferry.integrations.vllm.connector.explain import explained

__all__ = ["explain"]


@click.command(
    epilog="Exit codes: 0 said, 1 nobody is there to ask, 2 usage.  Example: kvferry explain "
    "--model meta-llama/Llama-3.1-8B-Instruct --prompt-file prompt.txt"
)
@click.option("--model", metavar="DIR", help="Whose tokenizer reads the prompt.")
@click.option("--prompt-file", metavar="FILE", help="A prompt as text, - for standard input.")
@click.option("--tokens", "token_file", metavar="FILE", help="Or as a JSON list of token ids.")
@click.option("--salt", default="", metavar="TEXT", help="The cache_salt of the request.")
@click.option("--url", metavar="URL", help="Ask the cache server with this HTTP side.")
@click.option("--identity", metavar="TEXT", help="Which model of that server, if it has several.")
@click.option(
    "--token-file",
    "secret",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Holds the token of that server.",
)
@click.pass_context
def explain(
    ctx: click.Context,
    model: str | None,
    prompt_file: str | None,
    token_file: str | None,
    salt: str,
    url: str | None,
    identity: str | None,
    secret: Path | None,
) -> None:
    """Say where each chunk of a prompt is, or why it is not.

    Every vLLM of this host and user that has KvferryConnector is asked, or the cache server at
    --url. Without a prompt the engines are listed. Nothing counts as used by that.
    """
    tokens = _tokens(model, prompt_file, token_file)
    if url is not None:
        if tokens is None:
            raise UsageError("name a prompt: --prompt-file with --model, or --tokens")
        click.echo(ask_server(url, tokens, identity, secret))
        return
    said = 0
    for text in explained(tokens, salt):
        said += 1
        click.echo(text)
    if not said:
        click.echo("no vLLM with KvferryConnector runs here; --url asks a cache server", err=True)
        ctx.exit(1)


def _tokens(model: str | None, prompt_file: str | None, token_file: str | None) -> list[int] | None:
    if token_file is not None:
        if prompt_file is not None:
            raise UsageError("give --prompt-file or --tokens, not both")
        try:
            found = json.loads(_read(token_file))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list) or not all(type(token) is int for token in found):
            raise UsageError(f"{token_file} is no JSON list of token ids, such as [1, 2, 3]")
        return found
    if prompt_file is None:
        return None
    if model is None:
        raise UsageError("--prompt-file needs --model, whose tokenizer reads it")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UsageError(
            "reading a text needs transformers; run this where vLLM is installed, or give --tokens"
        ) from None
    return list(AutoTokenizer.from_pretrained(model)(_read(prompt_file)).input_ids)


def _read(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text()
