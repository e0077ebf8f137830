"""Nodes that requests name, and which of them may be asked.

    kv_transfer_params = {"remote_kv_source": {"kv_request_id": "...", "remote_host": "10.0.0.7",
      "remote_port": 6400}}

A router that knows who holds a prefix says so in a request. Whoever may send requests could name
any host, so only hosts are asked that the operator has allowed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from kvferry.base.errors import ConfigError

__all__ = ["Address", "AllowedHosts"]

Address = tuple[str, int]

_HOST = re.compile(r"[a-z0-9._:-]{1,255}")  # names and addresses; what else there is, is neither


class AllowedHosts:
    """Hosts that requests may name: names and addresses as they stand, and networks.

    Raises:
        ConfigError: A text is neither.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._names = {host.lower() for host in hosts if "/" not in host}
        for name in self._names:
            if not _HOST.fullmatch(name) or name.isdigit():
                raise ConfigError("remote_kv_sources has names, addresses and networks: 10.0.0.0/8")
        try:
            self._networks = [ipaddress.ip_network(host) for host in hosts if "/" in host]
        except ValueError as error:
            raise ConfigError(f"remote_kv_sources: {error}") from None

    def allows(self, host: str) -> bool:
        """Whether a node of this host may be asked."""
        if host in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)
