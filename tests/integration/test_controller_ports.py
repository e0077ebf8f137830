"""The ports of the controller, without the rest of it."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import pytest

from kvferry.config.controller import ControllerConfig
from kvferry.sharing.controller.jobs import Jobs
from kvferry.sharing.controller.journal import Journal
from kvferry.sharing.controller.members import Members
from kvferry.sharing.controller.ports import Ports
from kvferry.sharing.controller.quotas import Quotas


@pytest.mark.parametrize("turns", range(6))
def test_who_connects_while_it_closes_leaves_no_socket(turns: int) -> None:
    """A connection that is accepted right before the end; what is left fails the test."""
    config = ControllerConfig(
        host="127.0.0.1", monitor_ports=dict.fromkeys(("pull", "reply", "heartbeat"), 0)
    )
    journal = Journal()
    ports = Ports(config, Members(journal), Jobs(journal), Quotas(journal))
    ports.open()
    with ExitStack() as stack:
        for port in ports.ports.values():
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        time.sleep(turns / 5000)
        ports.close()
    assert ports.counts["connections"] == 0
