"""The doctor before real servers: what is planted is found, and its fix mends it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.host import usable_cores
from kvferry.config import ClientConfig
from kvferry.embedded.store import embedded_store
from kvferry_lab.doctor.facts import Facts, Finding, Severity
from kvferry_lab.doctor.run import DoctorPlan, run_doctor
from support.node_server import NodeServer
from support.servers import KINDS, TestServer, find_kind, start_server, wait_for

OK, INFO, WARN, FAULT = Severity
GOOD = [
    *("--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"),
    *("--io-threads", "1" if usable_cores() < 8 else "2"),
]
GOOD_OF = {
    "valkey": ["--commandlog-request-larger-than", "-1", "--commandlog-reply-larger-than", "-1"],
    "redis7": ["--io-threads-do-reads", "yes", "--lazyfree-lazy-user-flush", "yes"],
}
# setting, value that is wrong, the check that says so, how badly
PLANTED = [
    ("maxmemory", "0", "maxmemory", WARN),
    ("maxmemory", "100mb", "maxmemory", WARN),
    ("maxmemory-policy", "noeviction", "maxmemory-policy", FAULT),
    ("maxmemory-policy", "volatile-lru", "maxmemory-policy", FAULT),
    ("save", "86400 1000000", "save", WARN),
    ("appendonly", "yes", "appendonly", WARN),
    ("client-output-buffer-limit", "normal 1mb 0 0", "output-buffer", FAULT),
    ("client-output-buffer-limit", "normal 32mb 0 0", "output-buffer", WARN),
    ("client-query-buffer-limit", "2mb", "query-buffer", FAULT),
    ("proto-max-bulk-len", "1mb", "bulk-length", FAULT),
    ("proto-max-bulk-len", "16mb", "bulk-length", WARN),
    ("maxmemory-clients", "1mb", "maxmemory-clients", FAULT),
    ("maxmemory-clients", "5%", "maxmemory-clients", WARN),
    ("timeout", "5", "timeout", WARN),
    ("min-replicas-to-write", "1", "write-quorum", FAULT),
    ("slowlog-log-slower-than", "0", "slowlog", WARN),
    ("latency-monitor-threshold", "1", "latency-monitor", INFO),
    ("lazyfree-lazy-user-flush", "no", "lazy-flush", INFO),
]
PLANTED_OF: dict[str, list[tuple[str, str, str, Severity]]] = {
    "valkey": [
        ("commandlog-reply-larger-than", "1048576", "commandlog", INFO),
        ("min-string-size-avoid-copy-reply", "16777216", "copy-avoidance", WARN),
    ],
    "redis7": [],  # activedefrag needs a jemalloc that neither of our servers has
}
CASES = [(kind, *case) for kind in KINDS for case in PLANTED + PLANTED_OF[kind]]


def findings(url: str, **settings: Any) -> dict[str, Finding]:
    return found(ClientConfig.from_url(url, **settings))[1]


def found(config: ClientConfig) -> tuple[Facts, dict[str, Finding]]:
    facts, all_of_them = run_doctor(DoctorPlan(config=config))
    return facts, {f.id: f for f in all_of_them}


def at_server(findings: dict[str, Finding], least: Severity = WARN) -> dict[str, Finding]:
    """Those of the server and its cluster, not of whatever host the tests run on."""
    scopes = ("server", "cluster")
    return {i: f for i, f in findings.items() if f.severity >= least and f.scope in scopes}


def mend(server: TestServer, finding: Finding) -> None:
    line = finding.fix.partition("   (")[0]
    assert line.startswith("CONFIG SET "), finding
    server.cli(*shlex.split(line))


@pytest.fixture(scope="module")
def good_servers() -> Iterator[Callable[[str], TestServer]]:
    servers: dict[str, TestServer] = {}

    def get(kind: str) -> TestServer:
        if kind not in servers:
            try:
                find_kind(kind)
            except LookupError as reason:
                pytest.skip(str(reason))
            servers[kind] = start_server(kind, *GOOD, *GOOD_OF[kind])
        return servers[kind]

    yield get
    for server in servers.values():
        server.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_server_has_no_finding(good_servers: Callable[[str], TestServer], kind: str) -> None:
    server = good_servers(kind)
    facts, found_here = found(ClientConfig.from_url(server.url))
    assert at_server(found_here) == {}
    assert [(s.kind, s.version) for s in facts.servers] == [(server.binary.kind, server.version)]
    assert found_here["copy-avoidance"].severity is (OK if kind == "valkey" else INFO)
    assert len([f for f in found_here.values() if f.severity is OK]) > 25


@pytest.mark.parametrize("binary", [None, "redis-server"])
def test_our_own_store_has_no_finding(binary: str | None) -> None:
    path = binary and shutil.which(binary)
    if binary and path is None:
        pytest.skip(f"no {binary} on PATH")
    with embedded_store(maxmemory_mb=1024, binary=path) as store:
        assert at_server(findings(store.url)) == {}
        assert store.unix_path is not None
        assert at_server(findings(f"unix://{store.unix_path}")) == {}


def test_a_node_of_ours_has_no_finding() -> None:
    with NodeServer() as server:
        assert server.cli("CONFIG", "GET", "bind") == [b"bind", server.host.encode()]
        facts, found_here = found(ClientConfig.from_url(server.url))
    assert at_server(found_here, INFO) == {}
    assert [node.kind for node in facts.servers] == ["kvferry"]
    assert not {"pacing", "unix-buffer"} & found_here.keys()


@pytest.mark.parametrize(("kind", "setting", "value", "check", "severity"), CASES)
def test_a_setting_that_is_wrong_is_found_and_its_fix_mends_it(
    good_servers: Callable[[str], TestServer],
    kind: str,
    setting: str,
    value: str,
    check: str,
    severity: Severity,
) -> None:
    server = good_servers(kind)
    before = server.cli("CONFIG", "GET", setting)[1]
    server.cli("CONFIG", "SET", setting, value)
    try:
        sick = findings(server.url)
        assert sick[check].severity is severity, sick[check]
        assert set(at_server(sick)) <= {check}, "it sets off others"
        mend(server, sick[check])
        assert findings(server.url)[check].severity < severity
    finally:
        server.cli("CONFIG", "SET", setting, before)
        server.cli("CONFIG", "SET", "maxmemory", "1gb")
    assert at_server(findings(server.url)) == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "check"),
    [
        (["--tcp-backlog", "8"], "tcp-backlog"),
        (["--maxclients", "40"], "maxclients"),
        (["--io-threads", str(usable_cores() + 1), "--io-threads-do-reads", "yes"], "io-threads"),
        (["--disable-thp", "no", "--save", "86400 1000000"], "disable-thp"),
        (["--bind", "*", "--protected-mode", "yes"], "password"),  # which keeps others out
    ],
)
def test_an_argument_that_is_wrong(
    start: Callable[..., TestServer], kind: str, arguments: list[str], check: str
) -> None:
    if kind == "valkey" and "--io-threads-do-reads" in arguments:
        arguments = arguments[:2]
    server = start(kind, *GOOD, *GOOD_OF[kind], *arguments)
    sick = findings(server.url)
    assert sick[check].severity is WARN, sick.get(check)
    assert set(at_server(sick)) <= {check, "save"}


def test_a_password_mends_an_open_server(start: Callable[..., TestServer]) -> None:
    server = start("valkey", *GOOD, *GOOD_OF["valkey"], "--bind", "*")
    assert findings(server.url)["password"].severity is WARN
    server.cli("CONFIG", "SET", "requirepass", "entry-7431")
    server.cli("CONFIG", "SET", "masterauth", "other-7431")
    facts, closed = found(ClientConfig.from_url(server.url, password="entry-7431"))
    assert closed["password"].severity is OK
    assert "7431" not in repr(facts), "CONFIG GET shows what we must not keep"


def test_eviction_and_clients_cut_off_are_counted(start: Callable[..., TestServer]) -> None:
    server = start("valkey", *GOOD_OF["valkey"], "--maxmemory", "12mb")
    server.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    for key in range(8):
        server.cli("SET", f"k{key}", os.urandom(2 << 20))
    seen = findings(server.url)
    assert seen["evictions"].severity is INFO
    assert int(seen["evictions"].seen.split()[0]) > 0


def test_a_replica_refuses_writes(start: Callable[..., TestServer]) -> None:
    primary = start("valkey", *GOOD, *GOOD_OF["valkey"])
    replica = start("valkey", *GOOD, *GOOD_OF["valkey"], primary=primary)
    role = findings(replica.url)["role"]
    assert role.severity is FAULT
    assert f"{primary.host}:{primary.port}" in role.fix


def test_replicas_need_room(start: Callable[..., TestServer]) -> None:
    primary = start("redis7", *GOOD, *GOOD_OF["redis7"])
    start("redis7", primary=primary)
    wait_for("a replica", lambda: primary.info("replication")["connected_slaves"] == "1")
    sick = findings(primary.url)
    assert sick["replication"].severity is WARN
    mend(primary, sick["replication"])
    assert findings(primary.url)["replication"].severity is OK


def test_where_config_is_refused(start: Callable[..., TestServer]) -> None:
    user = "user guest on >secret ~* +@all -config -acl -debug"
    server = start("valkey", users=[user])
    seen = findings(server.url.replace("redis://", "redis://guest:secret@"))
    assert seen["settings"].severity is INFO
    assert "timeout" in seen["settings"].seen
    assert seen["maxmemory"].severity is WARN, "INFO tells it"
    assert seen["copy-avoidance"].severity is OK


def test_where_info_is_refused_too(start: Callable[..., TestServer]) -> None:
    user = "user guest on >secret ~* +ping +get +set +hello"
    server = start("valkey", users=[user])
    seen = findings(server.url.replace("redis://", "redis://guest:secret@"))
    assert seen["server"].severity is INFO
    assert "maxmemory" not in seen


def test_words_of_a_server_cannot_write_on_the_terminal(start: Callable[..., TestServer]) -> None:
    server = start("valkey", "--availability-zone", "a\x1b[31mred" + "x" * 1000)
    facts, _ = found(ClientConfig.from_url(server.url))
    assert facts.servers[0].info["availability_zone"].startswith("a?[31mredxx")
    assert len(facts.servers[0].info["availability_zone"]) == 300


def test_a_planted_host(good_servers: Callable[[str], TestServer], tmp_path: Path) -> None:
    sysctls = tmp_path / "proc/sys/net/ipv4"
    sysctls.mkdir(parents=True)
    (sysctls / "tcp_rmem").write_text("4096 8192 8192\n")
    (tmp_path / "sys/kernel/mm/transparent_hugepage").mkdir(parents=True)
    (tmp_path / "sys/kernel/mm/transparent_hugepage/enabled").write_text("always madvise [never]")
    config = ClientConfig.from_url(good_servers("valkey").url)
    seen = {f.id: f for f in run_doctor(DoctorPlan(config=config, root=tmp_path))[1]}
    assert seen["huge-pages-transparent"].severity is INFO
    assert seen["huge-pages-transparent"].scope == "host"
    assert at_server(seen) == {}
