"""`kvferry explain`: engines of this host, or a cache server, say where a prompt's chunks are."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from click.testing import CliRunner

from kvferry.cli.main import cli
from kvferry.integrations.vllm.connector.explain import teller
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.integrations.vllm.connector.ranks import RankAnswers, address
from kvferry.server import Client
from support.cache_server import CacheServerProcess
from support.engines import CHUNK, IDENTITY, expected, open_engine, prompt

TOKENS = prompt(4 * CHUNK)


def tokens_of(folder: Path) -> str:
    (folder / "prompt.json").write_text(json.dumps(TOKENS))
    return str(folder / "prompt.json")


def test_an_engine_of_this_host_says_where_chunks_are(tmp_path: Path) -> None:
    with open_engine() as engine:
        engine.store(TOKENS, expected(TOKENS))
        name = address(uuid.uuid4().hex, 0)
        answers = RankAnswers(name, CacheFinder(engine), teller(engine))
        try:
            listed = CliRunner().invoke(cli, ["explain"])
            assert f"{name}: {IDENTITY.digest.hex()}, chunks of {CHUNK} tokens" in listed.output
            said = CliRunner().invoke(cli, ["explain", "--tokens", tokens_of(tmp_path)])
            assert "64 tokens, 4 chunks of 16: 4 in l1" in said.output
            engine.clear(weights_version="step-2")
            engine.store(TOKENS, expected(TOKENS))
            said = CliRunner().invoke(cli, ["explain", "--tokens", tokens_of(tmp_path)])
            assert "4 in l1" in said.output, "of the generation that is in force"
        finally:
            answers.close()


def test_a_cache_server_says_where_chunks_are(tmp_path: Path) -> None:
    with (
        CacheServerProcess(tmp_path, mib=4) as server,
        Client(IDENTITY, server.endpoint, timeout_s=10.0) as client,
    ):
        assert client.wait(10)
        assert client.store(TOKENS, expected(TOKENS)).chunks == 4
        where = ["--url", f"127.0.0.1:{server._http}", "--tokens", tokens_of(tmp_path)]
        said = CliRunner().invoke(cli, ["explain", *where])
        assert "4 in l1" in said.output, said
        wrong = CliRunner().invoke(cli, ["explain", *where, "--identity", "nobody"])
        assert "nobody" in str(wrong.exception)


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    text = tmp_path / "prompt.txt"
    text.write_text("a prompt")
    for words, why in (
        (["--prompt-file", str(text)], "--model"),
        (["--tokens", str(text)], "no JSON list"),
        (["--url", "127.0.0.1:1"], "name a prompt"),
    ):
        said = CliRunner().invoke(cli, ["explain", *words])
        assert why in str(said.exception)
