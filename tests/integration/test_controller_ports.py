"""The ports of the controller, in a loop of the test's own."""

from __future__ import annotations

import asyncio
import socket
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
    """A connection that is accepted in the turn before the end; what is left fails the test."""

    async def run(stack: ExitStack) -> None:
        config = ControllerConfig(
            host="127.0.0.1", monitor_ports=dict.fromkeys(("pull", "reply", "heartbeat"), 0)
        )
        journal = Journal()
        ports = Ports(config, Members(journal), Jobs(journal), Quotas(journal))
        await ports.open()
        for port in ports.ports.values():
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await ports.close()

    with ExitStack() as stack:
        asyncio.run(run(stack))
