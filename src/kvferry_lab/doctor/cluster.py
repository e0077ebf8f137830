"""Reading a cluster: what one node says of it, and which of its primaries can be reached."""

from __future__ import annotations

import re

from kvferry.base.errors import UnavailableError
from kvferry.config import ClientConfig
from kvferry.config.url import parse_endpoint, show_endpoint
from kvferry_lab.doctor.command_connection import CommandConnection, text_of
from kvferry_lab.doctor.facts import ClusterFacts, NodeLine

__all__ = ["parse_nodes", "read_cluster"]

_NODES_MAX = 64
_NOWHERE = frozenset(("fail", "noaddr", "handshake"))


def read_cluster(
    config: ClientConfig, is_expected: bool
) -> tuple[ClusterFacts, list[ClientConfig]] | None:
    """What a node says about its cluster, and the settings for each primary that is up.

    Returns:
        None if it is not in a cluster.
    """
    with CommandConnection(config) as talk:
        state = talk.fields("CLUSTER", "INFO")
        lines = text_of(talk.ask("CLUSTER", "NODES"))
    if "cluster_state" not in state:
        return None
    nodes = parse_nodes(lines, config.host, config.port)
    primaries: list[ClientConfig] = []
    unreached: dict[str, str] = {}
    for node in [n for n in nodes if n.is_primary and not n.flags & _NOWHERE]:
        host, port = parse_endpoint(node.address)
        if not port or len(primaries) == _NODES_MAX:
            continue
        alone = config.for_node(host, port).replace(unix_path=None)
        try:
            CommandConnection(alone).close()
        except UnavailableError as error:
            unreached[node.address] = str(error)
        else:
            primaries.append(alone)
    facts = ClusterFacts(info=state, nodes=nodes, unreached=unreached, is_expected=is_expected)
    return facts, primaries


def parse_nodes(text: str, asked_host: str, asked_port: int) -> tuple[NodeLine, ...]:
    """``CLUSTER NODES``; a node without an address is the one that was asked, if it says so.

    Source: https://redis.io/docs/latest/commands/cluster-nodes/
    """
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 8:
            continue
        flags = frozenset(words[2].split(","))
        address, _, rest = words[1].partition("@")
        host, _, port = address.rpartition(":")
        name = rest.split(",")[1] if "," in rest else ""
        if "myself" in flags:
            host, port = asked_host, str(asked_port)
        elif not host and name:
            host = name
        slots = sum(map(_slot_count, words[8:]))
        where = show_endpoint(host, int(port) if port.isdigit() else 0)
        linked = words[7] == "connected"
        found.append(NodeLine(address=where, flags=flags, is_linked=linked, slots=slots))
    return tuple(found)


def _slot_count(word: str) -> int:
    """Of ``0-5460`` or ``7``; ``[93-<-id]`` is a slot on its way, owned by somebody else."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
    return 0 if match is None else int(match[2] or match[1]) - int(match[1]) + 1
