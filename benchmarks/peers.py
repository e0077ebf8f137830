"""Bars of peers: what an instance reads from the memory of another one, which is a process of its
own on this machine: all of a prompt, beside the raw client, and the first time that they meet."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from statistics import median
from typing import Any

import msgspec

from benchmarks.bars import Bar, Lab, Target
from benchmarks.prompt import PromptKV
from kvferry.base.errors import CorruptError
from kvferry.base.socket_folder import node_path
from kvferry.chunks.prompt import read_prompt
from kvferry.client.sync import RedisClient
from kvferry.config import CacheConfig, ClientConfig
from kvferry.config.controller import ControllerConfig
from kvferry.sharing import TieredCache
from kvferry.sharing.controller.controller import Controller
from kvferry_lab.bench.intervals import in_turn
from kvferry_lab.bench.programs import python_process
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.servers.lab_server import HOST, free_port, wait_until

__all__ = ["peer_contact", "peer_loads"]

_CALL_S, _START_S = 60.0, 120.0
_OF_CLIENT = Target(">=", 0.90, "x raw client")
_CONTACT = Target("<=", 60.0, "ms")
_CONTACT_CHUNKS = 29  # 0.12 GB
_OWNER = "owner"

_Costs = tuple[list[tuple[float, float]], list[tuple[float, float]]]  # of ours, of the raw client


def peer_loads(lab: Lab) -> Iterator[Bar]:
    """Retrieve of 1.3 GB from a peer, against the raw client's batch_get from the same node."""
    words = {True: "pages", False: "into buffers"}
    found: dict[bool, _Costs] = {pages: ([], []) for pages in words}
    for _ in range(lab.openings):
        kv = _measure_loads(lab, found)
    for pages, said in words.items():
        name = f"retrieve of {kv.label} from a peer, {said}"
        yield _bar(name, kv.size_bytes, found[pages])


def _measure_loads(lab: Lab, found: Mapping[bool, _Costs]) -> PromptKV:
    """One opening: an owner, a reader and a raw client anew; pairs with pages, and without."""
    with _owner(lab) as (kv, port, controller), ExitStack() as stack:
        config = ClientConfig(unix_path=str(node_path(HOST, port)), presence="off")
        client = stack.enter_context(closing(RedisClient.from_config(config)))
        probe = stack.enter_context(ServerProbe(config))
        reader = stack.enter_context(closing(_instance(kv, "reader", 0, *controller)))
        wait_until(
            "the reader to find it", lambda: reader.contains(kv.tokens) == len(kv.tokens), _START_S
        )

        def spent(began: tuple[float, float] = (0.0, 0.0)) -> tuple[float, float]:
            cpu_s = time.process_time() + (probe.cpu_s() or 0.0)
            return time.perf_counter() - began[0], cpu_s - began[1]

        def retrieve(*, pages: bool) -> tuple[float, float]:
            reader.clear(stores=False)
            kv.poison()
            began = spent()
            hit = reader.retrieve(kv.tokens, None if pages else kv.targets)
            cost = spent(began)
            with hit:
                if hit.tiers.get(f"peer {_OWNER}", 0) != len(kv.tokens):
                    raise CorruptError(f"not all of the prompt came from the peer: {hit}")
                kv.verify(hit.pages if pages else kv.targets)
            return cost

        def raw() -> tuple[float, float]:
            kv.poison()
            began = spent()
            result = client.batch_get(kv.keys, kv.frames, timeout_s=_CALL_S)
            cost = spent(began)
            result.raise_for_errors()
            kv.verify(kv.targets)
            return cost

        for pages, (ours, theirs) in found.items():
            rounds = max(1, lab.pairs // lab.openings)
            costs = in_turn(rounds, partial(retrieve, pages=pages), raw)
            ours += costs[0]
            theirs += costs[1]
        return kv


def _bar(name: str, size_bytes: int, costs: _Costs) -> Bar:
    """Our rate over the raw client's, pair by pair; costs are seconds, and seconds of CPU, of
    reader and owner."""
    (our_s, our_cpu), (their_s, their_cpu) = (zip(*each, strict=True) for each in costs)
    said = (
        f"{size_bytes / median(wall) / 1e9:.2f} GB/s, {median(cpu) / size_bytes * 1e9:.2f} "
        "s of CPU per GB"
        for wall, cpu in ((our_s, our_cpu), (their_s, their_cpu))
    )
    return Bar.of_pairs(name, _OF_CLIENT, their_s, our_s, "; raw client ".join(said))


def peer_contact(lab: Lab) -> Iterator[Bar]:
    """The first retrieve of a new instance from a node that it was never told of before."""
    with _owner(lab) as (kv, port, _):
        chunks = min(_CONTACT_CHUNKS, kv.chunks)
        tokens = kv.tokens[: chunks * kv.identity.layout.chunk_size]
        prompt = read_prompt(tokens, kv.identity.layout.chunk_size, b"")
        asked = msgspec.structs.replace(prompt, source=(HOST, port))
        wall_ms = []
        for _ in range(lab.pairs):
            config = CacheConfig(
                chunk_size=kv.identity.layout.chunk_size,
                max_local_cpu_size=kv.pool_gb * (chunks + 1) / kv.chunks,
                remote_kv_sources=(HOST,),
            )
            with closing(TieredCache(kv.identity, config)) as reader:
                began = time.perf_counter()
                hit = reader.retrieve(asked)
                wall_ms.append((time.perf_counter() - began) * 1e3)
                with hit:
                    kv.verify(hit.pages, chunks)
        yield Bar.of_median(
            f"first contact, {chunks * kv.chunk_bytes / 1e9:.2f} GB",
            _CONTACT,
            wall_ms,
            f"from {min(wall_ms):.0f} to {max(wall_ms):.0f} ms",
        )


@contextmanager
def _owner(lab: Lab) -> Iterator[tuple[PromptKV, int, tuple[int, int]]]:
    """A prompt that an instance in a process of its own has, the port of its node, and those of its
    controller."""
    seed, port = os.urandom(8).hex(), free_port()
    with ExitStack() as stack:
        ports = {"pull": 0, "reply": 0, "heartbeat": 0}
        controller = Controller(ControllerConfig(port=0, monitor_ports=ports))
        controller.start()
        stack.callback(controller.stop)
        kv = PromptKV(lab, seed)
        found = controller.ports["pull"], controller.ports["reply"]
        quick = ["quick"] if lab.quick else []
        owner = python_process(__name__, seed, port, *found, *quick)
        stack.enter_context(owner).line()  # it has the prompt
        yield kv, port, found


def _instance(kv: PromptKV, name: str, port: int, pull: int, reply: int) -> TieredCache:
    settings: dict[str, Any] = {
        "chunk_size": kv.identity.layout.chunk_size,
        "max_local_cpu_size": kv.pool_gb,
        "retrieve_timeout_s": _CALL_S,
        "enable_p2p": True,
        "p2p_host": HOST,
        "p2p_init_ports": [port],
        "enable_controller": True,
        "lmcache_instance_id": name,
        "controller_pull_url": f"{HOST}:{pull}",
        "controller_reply_url": f"{HOST}:{reply}",
    }
    return TieredCache(kv.identity, CacheConfig(**settings))


def _own(seed: str, port: int, pull: int, reply: int, lab: Lab) -> None:
    """In a process of its own: has the prompt in memory until its input ends."""
    kv = PromptKV(lab, seed)
    with closing(_instance(kv, _OWNER, port, pull, reply)) as owner:
        stored = owner.store(kv.tokens, kv.sources)
        if stored.chunks != kv.chunks:
            raise CorruptError(f"the owner did not take the prompt: {stored}")
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _seed, _port, _pull, _reply, *_quick = sys.argv[1:]
    _own(_seed, int(_port), int(_pull), int(_reply), Lab(quick=bool(_quick)))
