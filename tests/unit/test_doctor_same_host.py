"""What the doctor says of the way to a server on this host, from facts alone."""

from __future__ import annotations

from kvferry_lab.doctor.examine import examine
from kvferry_lab.doctor.facts import Facts, Finding, HostFacts, SameHostFacts, ServerFacts, Severity

NONE = "the server has no Unix socket"
REDIS = ServerFacts(info={"redis_version": "7.2.4"}, is_near=True)


NODE = ServerFacts(info={"kvferry_version": "0.9.0", "redis_version": "7.2.4"}, is_near=True)


def found(
    same_host: SameHostFacts | None,
    wmem: str = "212992",
    congestion: str = "cubic",
    server: ServerFacts = REDIS,
) -> dict[str, Finding]:
    host = HostFacts(
        sysctls={
            "net.core.wmem_default": wmem,
            "net.ipv4.tcp_congestion_control": congestion,
        }
    )
    facts = Facts(servers=(server,), host=host, same_host=same_host)
    return {finding.id: finding for finding in examine(facts)}


def test_nothing_is_said_of_a_server_elsewhere() -> None:
    assert not {"same-host", "unix-buffer", "pacing"} & found(None, congestion="bbr").keys()


def test_the_socket_and_what_it_brings() -> None:
    finding = found(SameHostFacts(unix_path="/run/r.sock", tcp_bytes_s=5e9, unix_bytes_s=8e9))
    assert finding["same-host"].severity is Severity.OK
    assert finding["same-host"].seen == (
        "over the Unix socket /run/r.sock; GET over the socket 8.00 GB/s, over TCP 5.00 (1.60 x)"
    )
    assert "GB/s" not in found(SameHostFacts(unix_path="/run/r.sock"))["same-host"].seen


def test_a_server_without_one_is_given_the_lines() -> None:
    finding = found(
        SameHostFacts(why=NONE, tcp_bytes_s=5e9, unix_bytes_s=8e9, is_other_server=True)
    )["same-host"]
    assert finding.severity is Severity.INFO
    assert "of a server started for this 8.00 GB/s" in finding.seen
    assert finding.fix.startswith("unixsocket /run/redis/redis.sock\nunixsocketperm 700 ")


def test_other_reasons_are_said_and_cannot_be_mended_there() -> None:
    finding = found(SameHostFacts(why="the server may not be asked"))["same-host"]
    assert finding.seen == "over TCP: the server may not be asked"
    assert (finding.severity, finding.fix) == (Severity.INFO, "")


def test_a_small_send_buffer_is_a_note() -> None:
    facts = SameHostFacts(unix_path="/run/r.sock")
    assert found(facts)["unix-buffer"].fix.startswith("sysctl -w net.core.wmem_default=1048576")
    assert found(facts, str(1 << 20))["unix-buffer"].severity is Severity.OK
    assert "unix-buffer" not in found(facts, "")


def test_pacing_over_loopback_is_a_note_where_data_goes_over_tcp() -> None:
    assert "congctl" in found(SameHostFacts(why=NONE), congestion="bbr")["pacing"].fix
    assert "pacing" not in found(SameHostFacts(unix_path="/run/r.sock"), congestion="bbr")
    assert "pacing" not in found(SameHostFacts(why=NONE))


def test_a_node_of_ours_sees_to_its_own_sockets() -> None:
    findings = found(SameHostFacts(why=NONE), congestion="bbr", server=NODE)
    assert not {"unix-buffer", "pacing"} & findings.keys()
    assert findings["same-host"].fix.startswith("kvferry node --listen unix:")
