"""The doctor's rules for servers: tables of facts, and what must be found in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kvferry_lab.doctor.examine import _RULES, examine, worst
from kvferry_lab.doctor.facts import ClientNeed, Facts, Finding, ServerFacts, Severity

INFO, WARN, FAULT = Severity.INFO, Severity.WARN, Severity.FAULT
GIB = 1 << 30

GOOD_INFO = {
    "redis_version": "7.2.4",
    "server_name": "valkey",
    "valkey_version": "9.1.2",
    "loading": "0",
    "role": "master",
    "connected_slaves": "0",
    "connected_clients": "12",
    "maxclients": "10000",
    "rejected_connections": "0",
    "maxmemory": str(16 * GIB),
    "maxmemory_policy": "allkeys-lru",
    "used_memory": str(8 * GIB),
    "used_memory_rss": str(8 * GIB),
    "total_system_memory": str(32 * GIB),
    "mem_allocator": "jemalloc-5.3.0",
    "aof_enabled": "0",
    "rdb_last_bgsave_status": "ok",
    "evicted_keys": "0",
    "evicted_clients": "0",
    "client_output_buffer_limit_disconnections": "0",
}
GOOD_CONFIG = {
    "activedefrag": "no",
    "bind": "10.0.0.5",
    "client-output-buffer-limit": "normal 0 0 0 slave 268435456 67108864 60 pubsub 33 8 60",
    "client-query-buffer-limit": "1073741824",
    "commandlog-execution-slower-than": "10000",
    "commandlog-reply-larger-than": "-1",
    "commandlog-request-larger-than": "-1",
    "disable-thp": "yes",
    "io-threads": "4",
    "latency-monitor-threshold": "0",
    "lazyfree-lazy-user-flush": "yes",
    "maxmemory-clients": "0",
    "min-replicas-to-write": "0",
    "min-string-size-avoid-copy-reply": "16384",
    "port": "6379",
    "proto-max-bulk-len": "536870912",
    "protected-mode": "yes",
    "repl-backlog-size": "10485760",
    "save": "",
    "slowlog-log-slower-than": "10000",
    "tcp-backlog": "511",
    "timeout": "0",
}
GOOD = ServerFacts(address="cache:6379", info=GOOD_INFO, config=GOOD_CONFIG, is_open=False)
NEED = ClientNeed(ttl_s=3600.0)

# id, severity, then what is planted: INFO, CONFIG, other facts of the server, needs of the client
PLANTED: list[tuple[str, Severity, dict[str, str], dict[str, str], dict[str, Any]]] = [
    ("server", INFO, {"valkey_version": "7.0.0"}, {}, {}),
    ("loading", FAULT, {"loading": "1"}, {}, {}),
    ("copy-avoidance", INFO, {"valkey_version": "8.1.1"}, {}, {}),
    ("copy-avoidance", WARN, {}, {"min-string-size-avoid-copy-reply": "16777216"}, {}),
    ("io-threads", WARN, {}, {"io-threads": "16"}, {"cores": 8}),
    ("io-threads", WARN, {}, {"io-threads": "1"}, {"cores": 16}),
    ("io-threads", INFO, {}, {"io-threads": "1"}, {}),
    ("commandlog", WARN, {}, {"commandlog-reply-larger-than": "1048576"}, {}),
    ("commandlog", INFO, {}, {"commandlog-reply-larger-than": "0", "io-threads": "1"}, {}),
    ("slowlog", WARN, {}, {"commandlog-execution-slower-than": "0"}, {}),
    ("latency-monitor", INFO, {}, {"latency-monitor-threshold": "1"}, {}),
    ("maxmemory", WARN, {"maxmemory": "0"}, {}, {}),
    ("maxmemory", WARN, {"maxmemory": str(31 * GIB)}, {}, {}),
    ("maxmemory", WARN, {"maxmemory": str(100 << 20)}, {}, {}),
    ("maxmemory-policy", WARN, {"maxmemory_policy": "noeviction"}, {}, {}),
    ("maxmemory-policy", FAULT, {"maxmemory_policy": "noeviction"}, {}, {"ttl_s": None}),
    (
        "maxmemory-policy",
        FAULT,
        {"maxmemory_policy": "noeviction", "used_memory": str(16 * GIB)},
        {},
        {},
    ),
    ("maxmemory-policy", FAULT, {"maxmemory_policy": "volatile-lru"}, {}, {"ttl_s": None}),
    ("maxmemory-policy", WARN, {"maxmemory_policy": "allkeys-lrm"}, {}, {}),
    ("maxmemory-policy", INFO, {"maxmemory_policy": "allkeys-random"}, {}, {}),
    ("evictions", INFO, {"evicted_keys": "7"}, {}, {}),
    ("allocator", INFO, {"mem_allocator": "libc"}, {}, {}),
    ("allocator", WARN, {}, {}, {"chunk_bytes": 8 << 20}),
    ("activedefrag", WARN, {}, {"activedefrag": "yes"}, {}),
    ("fragmentation", INFO, {"used_memory_rss": str(14 * GIB)}, {}, {}),
    ("lazy-flush", INFO, {}, {"lazyfree-lazy-user-flush": "no"}, {}),
    ("save", WARN, {}, {"save": "3600 1 300 100"}, {}),
    ("appendonly", WARN, {"aof_enabled": "1"}, {}, {}),
    ("bgsave", FAULT, {"rdb_last_bgsave_status": "err"}, {}, {}),
    (
        "bgsave",
        WARN,
        {"rdb_last_bgsave_status": "err"},
        {"stop-writes-on-bgsave-error": "no"},
        {},
    ),
    ("disable-thp", WARN, {}, {"disable-thp": "no", "save": "60 1"}, {}),
    ("disable-thp", INFO, {}, {"disable-thp": "no"}, {}),
    ("output-buffer", FAULT, {}, {"client-output-buffer-limit": "normal 1048576 0 0"}, {}),
    ("output-buffer", WARN, {}, {"client-output-buffer-limit": "normal 33554432 0 0"}, {}),
    ("output-buffer", WARN, {}, {"client-output-buffer-limit": "normal 0 1048576 10"}, {}),
    ("query-buffer", FAULT, {}, {"client-query-buffer-limit": "1048576"}, {}),
    ("query-buffer", WARN, {}, {"client-query-buffer-limit": "8388608"}, {}),
    ("bulk-length", FAULT, {}, {"proto-max-bulk-len": "1048576"}, {}),
    ("bulk-length", WARN, {}, {"proto-max-bulk-len": "8mb"}, {}),
    ("maxmemory-clients", FAULT, {}, {"maxmemory-clients": "1048576"}, {}),
    ("maxmemory-clients", WARN, {}, {"maxmemory-clients": "67108864"}, {}),
    ("maxmemory-clients", WARN, {"maxmemory": str(GIB)}, {"maxmemory-clients": "5%"}, {}),
    ("maxclients", FAULT, {"maxclients": "16"}, {}, {}),
    ("maxclients", WARN, {"maxclients": "64"}, {}, {}),
    ("maxclients", WARN, {"rejected_connections": "3"}, {}, {}),
    ("timeout", WARN, {}, {"timeout": "5"}, {}),
    ("tcp-backlog", WARN, {}, {"tcp-backlog": "8"}, {}),
    ("clients-cut-off", WARN, {"client_output_buffer_limit_disconnections": "2"}, {}, {}),
    ("clients-cut-off", WARN, {"evicted_clients": "1"}, {}, {}),
    ("password", FAULT, {}, {"protected-mode": "no"}, {"is_open": True}),
    ("password", WARN, {}, {"bind": "* -::*"}, {"is_open": True}),
    ("password", WARN, {}, {"bind": ""}, {"is_open": True}),
    ("tls", INFO, {}, {}, {}),
    ("tls", WARN, {}, {}, {"tls": "TLSv1.3 X", "is_verified": False}),
    (
        "tls-certificate",
        WARN,
        {"tls_server_cert_expires_in_seconds": "3600"},
        {},
        {"tls": "TLSv1.3"},
    ),
    ("role", FAULT, {"role": "slave", "master_host": "a", "master_port": "1"}, {}, {}),
    ("write-quorum", FAULT, {}, {"min-replicas-to-write": "1"}, {}),
    ("replication", WARN, {"connected_slaves": "1"}, {}, {}),
]
NEEDS = ("ttl_s", "chunk_bytes")


def examined(
    info: Mapping[str, str], config: Mapping[str, str] | None, **other: Any
) -> dict[str, Finding]:
    need = replace(NEED, **{name: other.pop(name) for name in NEEDS if name in other})
    server = replace(GOOD, info=info, config=config, **other)
    return {found.id: found for found in examine(Facts(servers=(server,), need=need))}


def test_a_good_server_has_no_finding() -> None:
    found = examined(GOOD_INFO, GOOD_CONFIG, is_near=True)
    # jemalloc's cliff is a fact of every such server, and concerns no namespace.
    assert {f.id for f in found.values() if f.severity > Severity.OK} == {"allocator"}
    assert worst(found.values()) is INFO


@pytest.mark.parametrize(("check", "severity", "info", "config", "other"), PLANTED)
def test_what_is_planted_is_found(
    check: str,
    severity: Severity,
    info: dict[str, str],
    config: dict[str, str],
    other: dict[str, Any],
) -> None:
    found = examined(GOOD_INFO | info, GOOD_CONFIG | config, **other)
    assert found[check].severity is severity, found[check]
    if severity >= WARN:
        assert found[check].why
        assert found[check].fix
    others = {f.id for f in found.values() if f.severity >= WARN} - {check}
    accompanied = {"save", "bgsave", "disable-thp"} if check == "disable-thp" else set()
    assert others <= accompanied, f"{check} sets off {others}"


def test_every_check_can_find_something() -> None:
    planted = {case[0] for case in PLANTED}
    made = {f.id for f in examined(GOOD_INFO, GOOD_CONFIG).values()}
    assert made <= planted
    assert len(planted) >= len(_RULES)


@pytest.mark.parametrize("address", ["127.0.0.1 -::1", "::1"])
def test_no_password_is_fine_on_loopback(address: str) -> None:
    found = examined(GOOD_INFO, GOOD_CONFIG | {"bind": address}, is_open=True)
    assert found["password"].severity is Severity.OK


def test_no_password_is_fine_on_a_unix_socket_alone() -> None:
    found = examined(GOOD_INFO, GOOD_CONFIG | {"bind": "*", "port": "0"}, is_open=True)
    assert found["password"].severity is Severity.OK


def test_a_node_of_ours_is_told_its_own_options() -> None:
    """A node, which has no CONFIG SET for these."""
    info = {"server_name": "kvferry-node", "redis_version": "7.2.4", "kvferry_version": "0.9.0"}
    config = {"bind": "", "io-threads": "4", "port": "1", "proto-max-bulk-len": "1048576"}
    info["maxmemory"] = str(100 << 20)
    found = examined(info, config, is_open=True, cores=2)
    assert (found["server"].severity, found["server"].seen) == (Severity.OK, "kvferry 0.9.0")
    assert "io-threads" not in found
    checks = ("bulk-length", "maxmemory", "password", "tls")
    assert {check: found[check].fix for check in checks} == {
        "bulk-length": "kvferry node --value-bytes-max 536870912",
        "maxmemory": "kvferry node --size-gb 8",
        "password": "kvferry node --password-file <path>",
        "tls": "kvferry node --tls-cert-file <path> --tls-key-file <path>",
    }


def test_older_redis_needs_io_threads_that_read() -> None:
    info = {k: v for k, v in GOOD_INFO.items() if k not in ("valkey_version", "server_name")}
    info["redis_version"] = "7.0.15"
    found = examined(info, GOOD_CONFIG | {"io-threads-do-reads": "no"}, cores=8)
    assert found["io-threads"].severity is WARN
    assert "io-threads-do-reads yes" in found["io-threads"].fix
    assert examined(info, GOOD_CONFIG | {"io-threads-do-reads": "yes"}, cores=8)[
        "io-threads"
    ].seen.startswith("io-threads 4")


@pytest.mark.parametrize(
    ("kind", "version", "answer"),
    [
        ("redis", "8.4.9", INFO),
        ("redis", "8.6.0", Severity.OK),
        ("redis", "10.0.1", Severity.OK),
        ("valkey", "8.1.4", INFO),
        ("valkey", "9.0.0", Severity.OK),
    ],
)
def test_who_avoids_copies(kind: str, version: str, answer: Severity) -> None:
    info = {"redis_version": "7.2.4", f"{kind}_version": version}
    assert examined(info, GOOD_CONFIG)["copy-avoidance"].severity is answer


def test_other_servers_are_named() -> None:
    found = examined({"redis_version": "7.2.0", "dragonfly_version": "df-v1.30.0"}, GOOD_CONFIG)
    assert (found["server"].severity, found["server"].seen) == (INFO, "dragonfly df-v1.30.0")
    assert "copy-avoidance" not in found


def test_where_config_is_refused_info_still_speaks() -> None:
    found = examined(GOOD_INFO | {"maxmemory": "0", "aof_enabled": "1"}, None)
    assert found["maxmemory"].severity is WARN
    assert found["appendonly"].severity is WARN
    hidden = found["settings"]
    assert hidden.severity is INFO
    assert re.match(r"could not be read: .*\btimeout\b", hidden.seen)
    assert not {"timeout", "save", "output-buffer"} & set(found)


def test_a_server_that_says_nothing_is_no_failure() -> None:
    found = examined({}, None, is_open=None)
    assert found["server"].severity is INFO
    assert worst(found.values()) is INFO


@pytest.mark.parametrize("value", ["", "x", "-1", "9" * 30, "0", "1e3", "\u0663", "normal 1 2 x"])
def test_no_value_breaks_a_check(value: str) -> None:
    for name in GOOD_INFO:
        examined(GOOD_INFO | {name: value}, GOOD_CONFIG, cores=2, is_open=True)
    for name in GOOD_CONFIG:
        examined(GOOD_INFO, GOOD_CONFIG | {name: value}, cores=2, is_open=True)
    for name in list(GOOD_INFO):
        examined({k: v for k, v in GOOD_INFO.items() if k != name}, GOOD_CONFIG, is_open=True)


def test_same_findings_of_many_servers_become_one() -> None:
    bad = replace(GOOD, info=GOOD_INFO | {"maxmemory": "0"})
    servers = tuple(replace(bad, address=f"node{i}") for i in range(3))
    other = replace(GOOD, address="node3")
    found = [f for f in examine(Facts(servers=(*servers, other))) if f.id == "maxmemory"]
    assert [(f.severity, f.where) for f in found] == [
        (WARN, ("node0", "node1", "node2")),
        (Severity.OK, ("node3",)),
    ]


def test_json_names_the_severity() -> None:
    found = examined(GOOD_INFO | {"maxmemory": "0"}, GOOD_CONFIG)["maxmemory"].as_json()
    assert found["severity"] == "warn"
    assert found["where"] == ["cache:6379"]
    assert found["scope"] == "server"
    assert found["fix"] == f"CONFIG SET maxmemory {24 * 1024}mb"
