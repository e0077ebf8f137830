"""`kvferry clear --everybody`: engines that run, and those that come, find nothing of before."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from kvferry.chunks.identity import Identity
from kvferry.cli.main import cli
from support.engines import CHUNK, IDENTITY, LAYOUT, check, expected, open_engine, prompt
from support.servers import TestServer, wait_for

TOKENS = prompt(4 * CHUNK)
OTHER = Identity(model="other", layout=LAYOUT)


@pytest.mark.ways("tcp")
def test_engines_forget_one_model_or_all(valkey: TestServer) -> None:
    stores = [{"type": "redis", "url": valkey.url}]
    with (
        open_engine(stores=stores) as engine,
        open_engine(stores=stores, identity=OTHER) as other,
    ):
        for one in (engine, other):
            one.store(TOKENS, expected(TOKENS, one.identity))
            assert one.flush(30)
        said = CliRunner().invoke(cli, ["clear", "--everybody", valkey.url, "--identity", "test"])
        assert said.exit_code == 0, said.output
        assert said.output.startswith(f"{IDENTITY.digest.hex()} test: cleared, 4 values deleted")
        wait_for("the engine to hear of it", lambda: engine.lookup(TOKENS).tokens == 0)
        check(other, TOKENS, want=4 * CHUNK)
        with open_engine(stores=stores) as anew:
            check(anew, TOKENS, want=0)
        said = CliRunner().invoke(cli, ["clear", "--everybody", valkey.url])
        assert len(said.output.splitlines()) == 2
        wait_for("the other to hear of it", lambda: other.lookup(TOKENS).tokens == 0)
        wait_for(
            "both have one generation, as ranks of one engine need",
            lambda: engine.generation == other.generation,
        )


def test_it_says_what_is_missing(valkey: TestServer) -> None:
    said = CliRunner().invoke(cli, ["clear", valkey.url])
    assert said.exit_code != 0
    assert "--everybody" in str(said.exception)
    said = CliRunner().invoke(cli, ["clear", "--everybody", valkey.url, "--identity", "nobody"])
    assert said.exit_code == 1
