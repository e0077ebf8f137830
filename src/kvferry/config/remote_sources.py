"""Nodes that requests name, and which of them may be asked.

    kv_transfer_params = {"remote_kv_source": {"kv_request_id": "...", "remote_host": "10.0.0.7",
      "remote_port": 6400}}

A router that knows who holds a prefix says so in a request. Whoever may send requests could name
any host, so only hosts are asked that the operator has allowed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence

from kvferry.base.errors import ConfigError

__all__ = ["Address", "AllowedHosts", "node_in"]

Address = tuple[str, int]

_HOST = re.compile(r"[a-z0-9._:-]{1,255}")  # names and addresses; what else there is, is neither


def node_in(params: object) -> Address | None:
    """The node that a request names in its ``kv_transfer_params``, allowed or not."""
    source = params.get("remote_kv_source") if isinstance(params, Mapping) else None
    if not isinstance(source, Mapping):
        return None
    host, port = source.get("remote_host"), source.get("remote_port")
    if not isinstance(host, str) or not isinstance(port, int | str):
        return None
    if isinstance(port, str) and not (port.isascii() and port.isdigit() and len(port) < 6):
        return None
    found = host.lower(), int(port)
    return found if _HOST.fullmatch(found[0]) and 0 < found[1] <= 65535 else None


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

    def named_in(self, params: object) -> Address | None:
        """The node that a request names; None where it names none that is allowed."""
        found = node_in(params)
        return found if found and self.allows(found[0]) else None

    def allows(self, host: str) -> bool:
        """Whether a node of this host may be asked."""
        if host in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)
