"""What instances tell their controller of what they did: a real read from a peer, counted."""

from __future__ import annotations

from typing import Any

import pytest

from support.engines import CHUNK, check, expected, open_engine, prompt
from support.holdings import controller
from support.servers import wait_for

PROMPT = 40 * CHUNK


def test_a_controller_is_told_who_read_how_much_from_whom_and_what_it_saved() -> None:
    tokens = prompt(PROMPT)
    with controller() as ctl:

        def settings(name: str) -> dict[str, Any]:
            return {
                "enable_p2p": True,
                "p2p_host": "localhost",
                "p2p_init_ports": [0],
                "enable_controller": True,
                "lmcache_instance_id": name,
                "controller_pull_url": f"localhost:{ctl.ports['pull']}",
                "controller_reply_url": f"localhost:{ctl.ports['reply']}",
            }

        def beating() -> bool:
            members = ctl.members.living()
            return len(members) == 2 and all(one.beats for one in members)

        with open_engine(**settings("one")) as one, open_engine(**settings("other")) as other:
            other.prefill.expect((0.0, 0.001, 0.0, 0.0))
            one.store(tokens, expected(tokens))
            wait_for("both beat", beating)
            wait_for("it is found", lambda: other.contains(tokens) == PROMPT)
            assert check(other, tokens) == PROMPT
            traffic = ctl.members.traffic
            wait_for("it is told", lambda: traffic.window(60).tokens["peers"] >= PROMPT)
            [moved] = traffic.moved(8)
            assert (moved["from"], moved["to"], moved["tokens"]) == ("one", "other", PROMPT)
            assert moved["bytes"] == PROMPT // CHUNK * other.memory.chunk_bytes
            done = traffic.window(60)
            assert done.saved_s == pytest.approx(0.001 * sum(done.tokens.values()))
            sizes = {i.chunk_bytes for m in ctl.members.living() for i in m.facts.identities}
            assert sizes == {other.memory.chunk_bytes}
