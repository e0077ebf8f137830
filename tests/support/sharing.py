"""Instances that share, in tests: a controller, engines that read each other, owners to kill.

with running_controller() as controller, instances(controller) as opened:
    one, other = opened("one"), opened("other")
    meets(other, "one")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kvferry import TieredCache
from kvferry.config.controller import ControllerConfig
from kvferry.server import Client
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.peers import instance as of_cache
from kvferry.sharing.peers.instance import Sharing
from support.engines import CHUNK, open_engine
from support.programs import Program
from support.servers import wait_for
from support.tuned import tuned

__all__ = [
    "PROMPT",
    "Open",
    "finds",
    "from_peers",
    "instances",
    "meets",
    "owner",
    "peers_of",
    "running_controller",
    "sharing",
    "sharing_of",
    "told",
]

PROMPT = 40 * CHUNK  # tokens
_TESTS = str(Path(__file__).parents[1])

Open = Callable[..., TieredCache]

_OWNER = """
import json, resource, sys
sys.path.insert(0, sys.argv[1])
from support.engines import expected, open_engine, pages_gb, prompt
settings, prompts, tokens = json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if sys.argv[5]:
    resource.setrlimit(getattr(resource, sys.argv[5]), (0, 0))
with open_engine(max_local_cpu_size=pages_gb(4096), **settings) as engine:
    for seed in range(prompts):
        engine.store(prompt(tokens, seed), expected(prompt(tokens, seed)))
    print("ready", flush=True)
    __import__("time").sleep(600)
"""


@contextmanager
def running_controller(**settings: Any) -> Iterator[Controller]:
    """A controller in this process, at free ports, that notices quickly who is gone."""
    ports = {"pull": 0, "reply": 0, "heartbeat": 0}
    quick = {"heartbeat_s": 0.2, "suspect_s": 0.6, "dead_s": 2.0}
    settings = {"port": 0, "monitor_ports": ports, **quick, **settings}
    controller = Controller(ControllerConfig(**tuned(ControllerConfig, **settings)))
    controller.start()
    try:
        yield controller
    finally:
        controller.stop()


def sharing(controller: Controller, name: str, **settings: Any) -> dict[str, Any]:
    """The settings of an instance."""
    ports = controller.ports
    return {
        "enable_p2p": True,
        "p2p_host": "localhost",
        "p2p_init_ports": [0],
        "enable_controller": True,
        "lmcache_instance_id": name,
        "controller_pull_url": f"localhost:{ports['pull']}",
        "controller_reply_url": f"localhost:{ports['reply']}",
        **settings,
    }


@contextmanager
def instances(controller: Controller) -> Iterator[Open]:
    """Opens engines that share, by their names; they end with the block."""
    with ExitStack() as stack:

        def opened(name: str, **settings: Any) -> TieredCache:
            return stack.enter_context(open_engine(**sharing(controller, name, **settings)))

        yield opened


def peers_of(engine: TieredCache) -> list[str]:
    """The tiers of the peers that it is connected to."""
    return [
        tier.tier.name
        for tier in engine.tiers
        if tier.tier.connector.stats().get("client_connections_up")
    ]


def meets(engine: TieredCache, *names: str) -> None:
    """Wait until these are its peers, and no others."""
    wait_for("it knows its peers", lambda: sorted(peers_of(engine)) == [f"peer {n}" for n in names])


def finds(engine: TieredCache | Client, tokens: list[int]) -> None:
    """Wait until all of a prompt of PROMPT tokens is found."""
    wait_for("it is found", lambda: engine.contains(tokens) == PROMPT)


def told(controller: Controller) -> int:
    """How many chunks all instances together have told the controller of; -1: nobody is there."""
    members = controller.members.living()
    return sum(map(controller.members.chunks, members)) if members else -1


def from_peers(engine: TieredCache) -> float:
    """How many tokens it has had from peers."""
    hits = engine.stats()["metrics"]["kvferry_tokens_hit_total"]
    return float(sum(count for tier, count in hits.items() if tier.startswith("peer ")))


def owner(
    controller: Controller, name: str, prompts: int = 4, tokens: int = PROMPT, limit: str = ""
) -> Program:
    """A process of its own that shares so many prompts, prompt(tokens, 0) and on.

    `limit` names one of the system's, say RLIMIT_MEMLOCK, of which it has nothing.
    """
    program = Program(_OWNER, _TESTS, json.dumps(sharing(controller, name)), prompts, tokens, limit)
    assert program.read_line(60) == "ready"
    return program


def sharing_of(cache: TieredCache) -> Sharing:
    """What this cache takes part in."""
    return next(one for one in of_cache._here.values() if cache in one.caches)
