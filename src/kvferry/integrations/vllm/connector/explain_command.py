"""`kvferry explain`: where the chunks of a prompt are, or why they are not."""

from __future__ import annotations

import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import click

from kvferry.base.errors import UnavailableError, UsageError
from kvferry.base.shown import reason_of
from kvferry.config.file import read_token
from kvferry.integrations.vllm.connector.explain import explained

__all__ = ["explain"]

_TIMEOUT_S = 10.0
_TOKEN = "KVFERRY_SERVER_HTTP_TOKEN"


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
        click.echo(_ask_server(url, tokens, identity, secret))
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


def _ask_server(
    url: str, tokens: Sequence[int], identity: str | None = None, token_file: Path | None = None
) -> str:
    """For people: where each chunk is, or why it is not.

    Args:
        url: Of the server's HTTP side, e.g. "http://127.0.0.1:8080".
        tokens: Of the prompt.
        identity: Which model, if the server has several.
        token_file: Holds the token of the server.

    Raises:
        UnavailableError: It does not answer.
        UsageError: It refuses the question; the text says why.
    """
    headers = {"Content-Type": "application/json"}
    secret = read_token(token_file) if token_file is not None else os.environ.get(_TOKEN)
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    asked = {"tokens": list(tokens), **({"identity": identity} if identity else {})}
    place = f"{url if '://' in url else f'http://{url}'}".rstrip("/") + "/v1/explain"
    request = urllib.request.Request(place, json.dumps(asked).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return str(json.load(answer)["text"])
    except urllib.error.HTTPError as error:
        with error:
            raise UsageError(f"{place}: {_refusal(error.read())}") from None
    except OSError as error:
        raise UnavailableError(f"{place} does not answer: {reason_of(error)}") from None
    except (ValueError, LookupError, TypeError, http.client.HTTPException):
        raise UnavailableError(f"{place} is no cache server of kvferry") from None


def _refusal(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["text"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
