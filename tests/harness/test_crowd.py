"""The hostile cluster of the security tests."""

from __future__ import annotations

import socket

from security.crowd import Crowd


def test_who_connects_while_it_closes_leaves_no_socket() -> None:
    for _ in range(200):
        with Crowd() as crowd:
            sockets = [socket.create_connection((crowd.host, crowd.port)) for _ in range(8)]
        for connection in sockets:
            connection.close()
