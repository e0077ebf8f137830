"""The findings for people, and as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvferry.cli.table import facts as fact_sheet
from kvferry_lab.doctor.examine import worst
from kvferry_lab.doctor.facts import BareFacts, Facts, Finding, Severity
from kvferry_lab.output import machine_facts, machine_line, package_versions

__all__ = ["as_json", "say"]

_STYLES = {
    Severity.OK: "green",
    Severity.INFO: "cyan",
    Severity.WARN: "yellow",
    Severity.FAULT: "bold red",
}
_MEASURED = ("network", "model")  # worth reading also where all is well


def say(console: Console, facts: Facts, findings: Sequence[Finding], *, everything: bool) -> None:
    """Worst first, then what was measured; the checks that are fine as one line, or all of them."""
    console.print(fact_sheet(_head(facts)), "")
    plain = [f for f in findings if f.severity is Severity.OK and f.scope not in _MEASURED]
    shown = [f for f in findings if f not in plain]
    shown.sort(key=lambda finding: -finding.severity)
    for finding in shown + (plain if everything else []):
        _say_one(console, finding, many=len(facts.servers) > 1)
    if plain and not everything:
        console.print(fact_sheet([("ok", ", ".join(finding.id for finding in plain))]))
    console.print("")
    console.print(_verdict(findings))


def as_json(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """Everything, for programs; the fields are documented in docs/guides/doctor.md."""
    traffic = facts.traffic
    return {
        "worst": worst(findings).name.lower(),
        "findings": [finding.as_json() for finding in findings],
        "servers": [
            {"address": server.address, "kind": server.kind, "version": server.version}
            for server in facts.servers
        ],
        "traffic": {
            "rtt_s": traffic.rtt_s,
            "get_bytes_s_by_connections": {str(n): r for n, r in traffic.by_connections.items()},
            "get_bytes_s_by_size_bytes": {str(n): r for n, r in traffic.by_size.items()},
            "skipped": traffic.skipped,
        },
        "bare_tcp": None if facts.bare is None else _bare(facts.bare),
        "same_host": None if facts.same_host is None else asdict(facts.same_host),
        "machine": machine_facts(),
        "versions": package_versions(),
    }


def _bare(bare: BareFacts) -> dict[str, Any]:
    return {
        "peer": bare.peer,
        "rtt_s": bare.rtt_s,
        "bytes_s_by_connections": {str(n): rate for n, rate in bare.by_connections.items()},
        "skipped": bare.skipped,
    }


def _head(facts: Facts) -> list[tuple[str, str]]:
    servers = ", ".join(
        f"{server.address} ({server.kind} {server.version})" for server in facts.servers
    )
    host = facts.host
    way = "no network" if host.interface == "lo" else f"over {host.interface or 'a network'}"
    congestion = host.sysctls.get("net.ipv4.tcp_congestion_control")
    if host.is_remote and congestion:
        way += f", {congestion}"
    return [("servers", servers), ("way", way), ("machine", machine_line(machine_facts()))]


def _say_one(console: Console, finding: Finding, *, many: bool) -> None:
    """Severity, id, what was seen; below it the reason and the fix, which is never folded."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, min_width=5)
    grid.add_column(overflow="fold")
    name = Text(finding.severity.name.lower(), style=_STYLES[finding.severity])
    seen = Text.assemble((finding.id, "bold"), ": ", finding.seen)
    if many and finding.where:
        seen.append(f"   [{', '.join(finding.where)}]", style="dim")
    grid.add_row(name, seen)
    if finding.why:
        grid.add_row("", Text(f"why  {finding.why}."))
    console.print(grid)
    if finding.fix:
        lines = finding.fix.replace("\n", "\n" + 12 * " ")
        console.print(Text(f"       fix  {lines}"), soft_wrap=True)


def _verdict(findings: Sequence[Finding]) -> str:
    counts = {s: sum(f.severity is s for f in findings) for s in reversed(Severity)}
    words = {Severity.FAULT: "fault", Severity.WARN: "warning", Severity.INFO: "note"}
    said = [
        f"{counts[s]} {word}{'s' if counts[s] > 1 else ''}"
        for s, word in words.items()
        if counts[s]
    ]
    healthy = worst(findings) < Severity.WARN
    return f"{'Healthy' if healthy else 'Not as it could be'}: " + ", ".join(
        [*said, f"{counts[Severity.OK]} checks are fine"]
    )
