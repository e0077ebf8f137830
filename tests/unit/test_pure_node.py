"""One server of the pure client: what is said of it while it is away."""

from __future__ import annotations

import logging
import time

import pytest

from kvferry.client.pure import node as pure_node
from kvferry.client.pure.connection import Connection
from kvferry.client.pure.dial import DialRefused
from kvferry.client.pure.node import PureNode
from kvferry.config import ClientConfig
from kvferry.config.tuning import ClientTuning


def test_a_server_that_stays_away_is_told_once_however_often_it_is_tried(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = ["refused", "refused", "refused", "no route", "no route"]
    answers = iter(why)

    def dial(config: ClientConfig, deadline: float) -> Connection:
        raise DialRefused(next(answers))

    config = ClientConfig(
        host="cache-1", tuning=ClientTuning(reconnect_min_s=1e-6, reconnect_max_s=1e-6)
    )
    stats = dict.fromkeys(("connects", "connect_failures", "disconnects"), 0)
    monkeypatch.setattr(pure_node, "dial", dial)
    node = PureNode(config, stats)
    with caplog.at_level(logging.WARNING):
        for text in why:
            time.sleep(0.001)  # its backoff
            with pytest.raises(DialRefused, match=text):
                node.connect(time.monotonic() + 1)
    assert stats["connect_failures"] == 5
    assert caplog.messages == ["cache-1:6379: refused", "cache-1:6379: no route"]
