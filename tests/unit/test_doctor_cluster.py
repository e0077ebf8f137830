"""The doctor on clusters: what CLUSTER NODES says, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvferry_lab.doctor.examine import examine
from kvferry_lab.doctor.facts import ClusterFacts, Facts, Finding, NodeLine, ServerFacts, Severity
from kvferry_lab.doctor.server import parse_nodes

SHARDS = (5461, 5462, 5461)
NODES = tuple(
    NodeLine(address=f"10.0.0.{i}:6379", flags=frozenset({"master"}), is_linked=True, slots=slots)
    for i, slots in enumerate(SHARDS)
)
GOOD = ClusterFacts(info={"cluster_state": "ok"}, nodes=NODES)
SETTINGS = {"cluster-require-full-coverage": "no"}


def found(cluster: ClusterFacts, settings: dict[str, str] | None = None) -> dict[str, Finding]:
    server = ServerFacts(config=SETTINGS if settings is None else settings)
    findings = examine(Facts(servers=(server,), cluster=cluster))
    return {f.id: f for f in findings if f.scope == "cluster"}


def with_node(index: int, **changes: object) -> ClusterFacts:
    nodes = list(NODES)
    nodes[index] = replace(nodes[index], **changes)  # type: ignore[arg-type]
    return replace(GOOD, nodes=tuple(nodes))


def test_a_good_cluster() -> None:
    findings = found(GOOD)
    assert {f.severity for f in findings.values()} == {Severity.OK}
    assert len(findings) == 6


@pytest.mark.parametrize(
    ("check", "severity", "cluster"),
    [
        ("cluster-state", Severity.FAULT, replace(GOOD, info={"cluster_state": "fail"})),
        ("cluster-slots", Severity.FAULT, with_node(1, slots=5000)),
        ("cluster-slots", Severity.FAULT, with_node(1, flags=frozenset({"master", "fail"}))),
        ("cluster-nodes", Severity.WARN, with_node(1, flags=frozenset({"master", "fail?"}))),
        ("cluster-nodes", Severity.WARN, with_node(2, is_linked=False)),
        ("cluster-nodes", Severity.FAULT, replace(GOOD, unreached={"10.9.9.9:1": "timed out"})),
        ("cluster-mode", Severity.FAULT, replace(GOOD, is_expected=False)),
        ("cluster-mode", Severity.INFO, replace(GOOD, nodes=NODES[:1], is_expected=False)),
        ("cluster-balance", Severity.WARN, with_node(0, slots=9000)),
        ("cluster-balance", Severity.INFO, replace(GOOD, nodes=())),
    ],
)
def test_what_is_planted(check: str, severity: Severity, cluster: ClusterFacts) -> None:
    finding = found(cluster)[check]
    assert finding.severity is severity
    assert finding.fix or severity < Severity.WARN


def test_full_coverage_takes_all_shards_down() -> None:
    finding = found(GOOD, {"cluster-require-full-coverage": "yes"})["cluster-coverage"]
    assert finding.severity is Severity.WARN
    assert finding.fix.startswith("CONFIG SET cluster-require-full-coverage no")


def test_no_cluster_no_findings() -> None:
    assert not [f for f in examine(Facts(servers=(ServerFacts(),))) if f.scope == "cluster"]


LINES = """\
a1 :7000@17000 myself,master - 0 0 1 connected 0-5460 [5461-<-b2]
b2 10.0.0.2:7001@17001,cache-2 master - 0 1 2 connected 5461-10921 10923
c3 :7002@17002,cache-3 master,fail - 0 1 3 disconnected 10922 10924-16383
d4 fd00::4:7003@17003 slave a1 0 1 1 connected
e5 :0@0 master,noaddr - 0 1 0 disconnected
half a line
"""


def test_lines_of_cluster_nodes() -> None:
    nodes = parse_nodes(LINES, "seed", 7000)
    assert [node.address for node in nodes] == [
        "seed:7000",
        "10.0.0.2:7001",
        "cache-3:7002",
        "[fd00::4]:7003",
        ":0",
    ]
    assert [node.slots for node in nodes] == [5461, 5462, 5461, 0, 0]
    assert [node.is_primary for node in nodes] == [True, True, True, False, True]
    assert [node.is_linked for node in nodes] == [True, True, False, True, False]
