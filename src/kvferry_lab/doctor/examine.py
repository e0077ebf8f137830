"""examine: facts in, findings out. Pure.

Findings that are the same at several servers become one that names them all. Checks that miss
something the server hides are gathered in one finding, `settings`, and none of them fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from kvferry_lab.doctor import rules_clients, rules_server
from kvferry_lab.doctor.facts import ClientNeed, Facts, Finding, ServerFacts, Severity, Unread, info
from kvferry_lab.doctor.rules_cluster import examine_cluster
from kvferry_lab.doctor.rules_host import examine_host, examine_same_host
from kvferry_lab.doctor.rules_traffic import examine_traffic

__all__ = ["examine", "worst"]

_Rule = Callable[[ServerFacts, ClientNeed], Finding | None]
_RULES: tuple[_Rule, ...] = (
    *rules_server.RULES,
    *rules_clients.RULES,
)
# Of `kvferry node`, for the settings of other servers.
_NODE_OPTIONS = {
    "maxmemory": "--size-gb 8",
    "proto-max-bulk-len": "--value-bytes-max 536870912",
    "requirepass": "--password-file <path>",
    "tls-port": "--tls-cert-file <path> --tls-key-file <path>",
}


def examine(facts: Facts) -> list[Finding]:
    """Every finding, good ones too: servers first, then cluster, network and this host."""
    servers = [found for server in facts.servers for found in _server(server, facts.need)]
    cluster = [replace(found, scope="cluster") for found in examine_cluster(facts)]
    way = [*examine_traffic(facts), *examine_same_host(facts)]
    return [*_merged(servers), *cluster, *way, *examine_host(facts)]


def worst(findings: Iterable[Finding]) -> Severity:
    """The highest severity among them."""
    return max((finding.severity for finding in findings), default=Severity.OK)


def _server(server: ServerFacts, need: ClientNeed) -> Iterator[Finding]:
    hidden: dict[str, None] = {}  # in order
    for rule in _RULES:
        try:
            found = rule(server, need)
        except Unread as missing:
            hidden[str(missing)] = None
            continue
        if found is not None:
            fix = _node_fix(found.fix) if server.kind == "kvferry" else found.fix
            yield replace(found, where=(server.address,), fix=fix)
    if hidden:
        seen = f"could not be read: {', '.join(hidden)}"
        why = "CONFIG is refused here, as on managed services; these checks were left out"
        yield replace(
            info("settings", seen, why, "look for them in the service's own console"),
            where=(server.address,),
        )


def _node_fix(fix: str) -> str:
    option = _NODE_OPTIONS.get(fix.removeprefix("CONFIG SET ").partition(" ")[0])
    return fix if option is None else f"kvferry node {option}"


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    same: dict[Finding, list[str]] = {}
    for finding in findings:
        same.setdefault(replace(finding, where=()), []).extend(finding.where)
    return [replace(finding, where=tuple(where)) for finding, where in same.items()]
