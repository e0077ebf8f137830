"""run: gather, examine; what the command does, without the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvferry.config import CONNECTIONS_DEFAULT, ClientConfig
from kvferry.errors import KVFerryError, UnavailableError
from kvferry.lab.doctor.examine import examine
from kvferry.lab.doctor.facts import ClusterFacts, Facts, Need, ServerFacts, TrafficFacts
from kvferry.lab.doctor.finding import Finding
from kvferry.lab.doctor.host import read_host
from kvferry.lab.doctor.model import ModelShape
from kvferry.lab.doctor.prefill import Engine, examine_model
from kvferry.lab.doctor.server import Talk, one_server, read_cluster, read_server
from kvferry.lab.doctor.traffic import Limits, measure_rate, measure_rtt, room_bytes

__all__ = ["Visit", "visit"]


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What to look at.

    Attributes:
        config: Of the client that will use the store.
        limits: Of the bandwidth probe; ``None`` leaves it out.
        model: Whose KV it will hold, if that is known.
        engine: What computes that model.
        root: Of this host's /proc and /sys.
    """

    config: ClientConfig
    limits: Limits | None = None
    model: ModelShape | None = None
    engine: Engine = field(default_factory=Engine)
    root: Path = Path("/")


def visit(plan: Visit, say: Callable[[str], None] = lambda _: None) -> tuple[Facts, list[Finding]]:
    """Look at everything.

    Args:
        say: Told what is being done.

    Raises:
        UnavailableError: No server can be reached, or it refuses us.
    """
    config = plan.config
    need = Need(connections=config.connections or CONNECTIONS_DEFAULT, ttl_s=config.ttl_s)
    say("reading the server")
    first, cluster, servers = _servers(config)
    say("reading this host")
    host = read_host(first, plan.root)
    say("measuring the round trip")
    traffic = TrafficFacts(rtt_s=measure_rtt(first), skipped="not asked for")
    if plan.limits is not None:
        traffic = replace(_measure(config, need, servers, plan.limits, say), rtt_s=traffic.rtt_s)
    facts = Facts(need=need, servers=tuple(servers), cluster=cluster, host=host, traffic=traffic)
    findings = examine(facts)
    if plan.model is not None:
        findings += examine_model(plan.model, plan.engine, traffic)
    return facts, findings


def _servers(config: ClientConfig) -> tuple[ClientConfig, ClusterFacts | None, list[ServerFacts]]:
    """The settings for the node that was reached first, its cluster, and every server of it."""
    topology = getattr(config, "topology", "standalone")
    first = _primary(config) if topology == "sentinel" else _seed(config)
    found = read_cluster(first, is_expected=topology == "cluster")
    if found is None:
        return first, None, [read_server(first)]
    cluster, primaries = found
    return first, cluster, [read_server(node) for node in primaries or [first]]


def _seed(config: ClientConfig) -> ClientConfig:
    """The first of the addresses that answers."""
    others = [_split(node) for node in getattr(config, "nodes", ())]
    choices = [one_server(config), *(one_server(config, host, port) for host, port in others)]
    return _first(choices)


def _primary(config: ClientConfig) -> ClientConfig:
    """Where the Sentinels say that the primary is."""
    sentinel = replace(
        _seed(config),
        username=getattr(config, "sentinel_username", None),
        password=getattr(config, "sentinel_password", None),
        db=0,
    )
    with Talk(sentinel) as talk:
        name = str(getattr(config, "sentinel_master", ""))
        reply = talk.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
    if not isinstance(reply, list) or len(reply) != 2:
        raise UnavailableError(f"{sentinel.address} knows no primary named {name!r}")
    host, port = (word.decode() if isinstance(word, bytes) else str(word) for word in reply)
    return one_server(config, host, int(port))


def _first(choices: Sequence[ClientConfig]) -> ClientConfig:
    errors = []
    for choice in choices:
        try:
            Talk(choice).close()
        except UnavailableError as error:
            errors.append(error)
        else:
            return choice
    raise errors[0]


def _measure(
    config: ClientConfig,
    need: Need,
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


def _split(node: str) -> tuple[str, int]:
    host, _, port = node.rpartition(":")
    return host.strip("[]"), int(port)
