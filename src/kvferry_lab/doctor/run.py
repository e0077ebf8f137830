"""run: gather, examine; what the command does, without the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvferry.base.errors import KVFerryError, UnavailableError
from kvferry.config import CONNECTIONS_DEFAULT, ClientConfig
from kvferry_lab.doctor.bare_tcp import measure_bare
from kvferry_lab.doctor.examine import examine
from kvferry_lab.doctor.facts import (
    ClientNeed,
    ClusterFacts,
    Facts,
    Finding,
    SameHostFacts,
    ServerFacts,
    TrafficFacts,
)
from kvferry_lab.doctor.host import read_host
from kvferry_lab.doctor.model import ModelShape
from kvferry_lab.doctor.prefill import Engine, examine_model
from kvferry_lab.doctor.server import CommandConnection, read_cluster, read_server
from kvferry_lab.doctor.traffic import (
    Limits,
    find_ways,
    measure_rate,
    measure_rtt,
    measure_ways,
    room_bytes,
)
from kvferry_lab.servers.same_host import Ways

__all__ = ["DoctorPlan", "run_doctor"]


@dataclass(frozen=True, kw_only=True)
class DoctorPlan:
    """What to look at.

    Attributes:
        config: Of the client that will use the store.
        limits: Of the bandwidth probe; ``None`` leaves it out.
        model: Whose KV it will hold, if that is known.
        engine: What computes that model.
        peer: Host and port of `kvferry doctor --serve`, to measure bare TCP from.
        root: Of this host's /proc and /sys.
    """

    config: ClientConfig
    limits: Limits | None = None
    model: ModelShape | None = None
    engine: Engine = field(default_factory=Engine)
    peer: tuple[str, int] | None = None
    root: Path = Path("/")


def run_doctor(
    plan: DoctorPlan, say: Callable[[str], None] = lambda _: None
) -> tuple[Facts, list[Finding]]:
    """Look at everything.

    Args:
        say: Told what is being done.

    Raises:
        UnavailableError: No server can be reached, or it refuses us.
    """
    config = plan.config
    need = ClientNeed(
        connections=config.connections or CONNECTIONS_DEFAULT,
        ttl_s=config.ttl_s,
        prefill_bytes_s=plan.engine.made_bytes_s(plan.model) if plan.model else None,
    )
    say("reading the server")
    first, cluster, servers = _servers(config)
    say("reading this host")
    near = next((server for server in servers if server.is_near), None)
    host = read_host(first, plan.root, near.count("process_id") if near else None)
    say("measuring the round trip")
    rtt_s = measure_rtt(first)
    ways = find_ways(config, is_alone=config.topology == "standalone" and cluster is None)
    same_host = None if ways is None else _known(ways)
    traffic = TrafficFacts(skipped="not asked for")
    if plan.limits is not None:
        used = config if ways is None else ways.unix or ways.tcp
        traffic = _measure(used, need, servers, plan.limits, say)
        if ways is not None and not traffic.skipped and ways.tcp.unix_path is None:
            same_host = _compare(ways, need, plan.limits, say) or same_host
    bare = None
    if plan.peer is not None:
        points = plan.limits.connections if plan.limits else ()
        most = plan.limits.moved_bytes if plan.limits else 0
        bare = measure_bare(*plan.peer, points, most, say)
    facts = Facts(
        need=need,
        servers=tuple(servers),
        cluster=cluster,
        host=host,
        traffic=replace(traffic, rtt_s=rtt_s),
        bare=bare,
        same_host=same_host,
    )
    findings = examine(facts)
    if plan.model is not None:
        findings += examine_model(plan.model, plan.engine, facts.traffic)
    return facts, findings


def _servers(config: ClientConfig) -> tuple[ClientConfig, ClusterFacts | None, list[ServerFacts]]:
    """The settings for the node that was reached first, its cluster, and every server of it."""
    first = _primary(config) if config.topology == "sentinel" else _seed(config)
    found = read_cluster(first, is_expected=config.topology == "cluster")
    if found is None:
        return first, None, [read_server(first)]
    cluster, primaries = found
    return first, cluster, [read_server(node) for node in primaries or [first]]


def _seed(config: ClientConfig) -> ClientConfig:
    """The first of the addresses that answers."""

    def greet(host: str, port: int) -> ClientConfig:
        node = config if config.unix_path else config.for_node(host, port)
        CommandConnection(node).close()
        return node

    return _first(config, greet)


def _primary(config: ClientConfig) -> ClientConfig:
    """Where the first Sentinel that answers says that the primary is."""
    name = config.sentinel_master or ""

    def ask(host: str, port: int) -> ClientConfig:
        with CommandConnection(config.for_sentinel(host, port)) as talk:
            reply = talk.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        match reply:
            case [bytes() as where, bytes() as at] if at.isdigit():
                return config.for_node(where.decode(errors="replace"), int(at))
        raise UnavailableError(f"the Sentinel {host}:{port} knows no primary named {name!r}")

    return _first(config, ask)


def _first(config: ClientConfig, find: Callable[[str, int], ClientConfig]) -> ClientConfig:
    errors = []
    for seed in config.seeds:
        try:
            return find(*seed)
        except UnavailableError as error:
            errors.append(str(error))
    raise UnavailableError("; ".join(errors))


def _known(ways: Ways) -> SameHostFacts:
    return SameHostFacts(unix_path=(ways.unix or ways.tcp).unix_path, why=ways.why)


def _compare(
    ways: Ways, need: ClientNeed, limits: Limits, say: Callable[[str], None]
) -> SameHostFacts | None:
    try:
        return measure_ways(ways, need, limits, say)
    except KVFerryError:
        return None  # what is known without figures is said all the same


def _measure(
    config: ClientConfig,
    need: ClientNeed,
    servers: Sequence[ServerFacts],
    limits: Limits,
    say: Callable[[str], None],
) -> TrafficFacts:
    room, why = room_bytes(servers)
    if room < 2 * need.chunk_bytes:
        return TrafficFacts(skipped=why or "too little room in the server's memory")
    limits = replace(limits, stored_bytes=min(limits.stored_bytes, room))
    try:
        return measure_rate(config, need, limits, say)
    except KVFerryError as error:
        return TrafficFacts(skipped=str(error))
