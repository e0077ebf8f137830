"""What peers read of an owner does not decide what its own new documents are worth."""

from __future__ import annotations

import pytest

from kvferry_lab.trace.replay import POLICIES
from support.engines import check, expected, pages_gb, prompt
from support.sharing import PROMPT, finds, from_peers, instances, meets, running_controller

_PAGES = 4096
_OLD, _NEW = 97, 12  # documents of 40 chunks; the old ones have room


@pytest.mark.parametrize("policy", POLICIES)
def test_new_documents_stay_after_a_peer_has_read_all_older_ones(policy: str) -> None:
    memory = {"max_local_cpu_size": pages_gb(_PAGES)}
    with running_controller() as controller, instances(controller) as opened:
        owner, reader = (
            opened("owner", eviction_policy=policy, **memory),
            opened("reader", **memory),
        )
        for seed in range(_OLD):
            owner.store(prompt(PROMPT, seed), expected(prompt(PROMPT, seed)))
        meets(reader, "owner")
        finds(reader, prompt(PROMPT, _OLD - 1))
        for seed in range(_OLD):
            check(reader, prompt(PROMPT, seed), PROMPT)
        assert from_peers(reader) == _OLD * PROMPT
        new = [prompt(PROMPT, _OLD + number) for number in range(_NEW)]
        for tokens in new:
            owner.store(tokens, expected(tokens))
        assert [owner.contains(tokens) for tokens in new] == [PROMPT] * _NEW
