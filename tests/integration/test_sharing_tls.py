"""Instances that read each other over TLS: who is let in, and by which settings."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry.base.errors import ConfigError, TlsError
from kvferry.config import ClientConfig
from kvferry.connectors.peer import PeerConnector
from kvferry.sharing.peers.peer_tier import open_peer
from support.certificates import Certificate, Certificates
from support.engines import check, expected, prompt
from support.sharing import PROMPT, finds, from_peers, instances, meets, running_controller


def tls_of(certs: Certificates, shown: Certificate) -> dict[str, Any]:
    return {
        "p2p_tls_cert_file": shown.cert_file,
        "p2p_tls_key_file": shown.key_file,
        "p2p_tls_ca_file": certs.ca_file,
    }


@pytest.mark.parametrize("presence", [False, pytest.param(True, marks=pytest.mark.presence)])
def test_who_shows_a_certificate_of_ours_reads_over_tls_without_a_secret(
    certs: Certificates, presence: bool
) -> None:
    with running_controller() as controller, instances(controller) as opened:
        tls = tls_of(certs, certs.server)
        one = opened("one", p2p_bind="0.0.0.0", **tls)  # beyond this host
        other = opened("other", **tls)
        tokens = prompt(PROMPT)
        one.store(tokens, expected(tokens))
        meets(other, "one")
        finds(other, tokens)
        assert check(other, tokens) == PROMPT
        assert from_peers(other) == PROMPT
        assert {type(tier.tier.connector) for tier in other.tiers} == {PeerConnector}


def test_who_shows_none_or_a_strangers_reads_nothing_and_waits_for_nothing(
    certs: Certificates,
) -> None:
    with running_controller() as controller, instances(controller) as opened:
        one = opened("one", **tls_of(certs, certs.server))
        tokens = prompt(PROMPT)
        one.store(tokens, expected(tokens))
        stranger = opened("stranger", enable_p2p=False)
        [member] = [m for m in controller.members.living() if m.instance == "one"]
        host, _, port = member.facts.address.rpartition(":")
        unknown = {
            "tls_cert_file": certs.unknown.cert_file,
            "tls_key_file": certs.unknown.key_file,
        }
        trusts: dict[str, Any] = {"tls": True, "tls_ca_file": certs.ca_file}
        for tls in ({}, trusts, {**trusts, **unknown}):
            config = ClientConfig(host=host, port=int(port), **tls)
            stranger.tiers.append(open_peer(stranger, "one", config))
            assert check(stranger, tokens) == 0


def test_tls_of_instances_is_whole_or_refused(certs: Certificates) -> None:
    whole = tls_of(certs, certs.server)
    with running_controller() as controller, instances(controller) as opened:
        for name in whole:
            with pytest.raises(ConfigError, match="set both"):
                opened("one", **{key: value for key, value in whole.items() if key != name})
        with pytest.raises(TlsError, match="nothing-there"):
            opened("one", **{**whole, "p2p_tls_ca_file": "nothing-there"})
