"""One server of the pure client: what is said of it while it is away."""

from __future__ import annotations

import logging
import time

import pytest

from kvferry.base.errors import UnavailableError
from kvferry.client.pure import client as pure_client
from kvferry.client.pure.client import PureRedisClient
from kvferry.client.pure.connection import Connection
from kvferry.client.pure.dial import DialRefused
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
    monkeypatch.setattr(pure_client, "dial", dial)
    client = PureRedisClient.from_config(config)
    with caplog.at_level(logging.WARNING):
        for text in why:
            time.sleep(0.001)  # its backoff
            with pytest.raises(UnavailableError, match=text):
                client.exists("k")
    assert client.stats()["connect_failures"] == 5
    assert caplog.messages == ["cache-1:6379: refused", "cache-1:6379: no route"]
