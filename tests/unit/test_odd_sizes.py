"""Words, keys and values of odd sizes: refused at once, in a sentence that is short."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest

from kvferry import ClientConfig, Credentials, RedisClient
from kvferry.base import errors
from kvferry.base.credentials import provided
from kvferry.client.pure.client import PureRedisClient
from kvferry.connectors import Space
from support.servers import free_port

LONG = "x" * 70_000
HUGE = 10**5000  # Python does not write it out
SENTENCE_MAX = 250


def refused(call: Callable[[], object], error: type[Exception] = errors.ConfigError) -> str:
    """The sentence."""
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert len(text) < SENTENCE_MAX
    return text


@pytest.mark.parametrize("client", [ClientConfig, RedisClient, PureRedisClient])
@pytest.mark.parametrize(
    "settings",
    [
        {"password": LONG},
        {"username": LONG, "password": "secret"},
        {"topology": "sentinel", "sentinel_master": "m", "sentinel_password": LONG},
        {"presence_prefix": "p" * 513},
        {"host": LONG},
    ],
    ids=lambda settings: list(settings)[-1],
)
def test_words_that_cannot_be_sent_are_refused_at_construction(
    client: Any, settings: dict[str, Any]
) -> None:
    said = refused(lambda: client(**settings))
    assert "xxx" not in said, "a secret"
    assert "bytes; use at most" in said


def test_words_at_the_limit_are_taken() -> None:
    most = "x" * 16_384
    ClientConfig(username=most, password=most)
    Credentials(most, most)


def test_credentials_that_are_too_long_say_so_to_whoever_asks() -> None:
    assert "70000 bytes" in refused(lambda: Credentials("user", LONG))
    with pytest.raises(errors.UnavailableError, match="password of the credentials has 70000"):
        provided(lambda: Credentials("user", LONG))
    with pytest.raises(errors.UnavailableError) as caught:
        provided(lambda: Credentials(None, "secret", expires_in_s=-1))
    assert str(caught.value).endswith("failed: ConfigError"), "the text of others may be a secret"


@pytest.mark.parametrize("value", [LONG, HUGE, [LONG], b"x" * 70_000, -HUGE], ids=type)
@pytest.mark.parametrize(
    "name", ["port", "timeout_s", "tls", "topology", "sentinel_master", "host", "ttl_s"]
)
def test_long_values_are_cut_in_messages(name: str, value: object) -> None:
    if isinstance(value, str) and name in ("host", "sentinel_master"):
        value += "\0"
    refused(lambda: ClientConfig(**{name: value}))  # type: ignore[arg-type]


def test_long_names_and_urls_are_cut() -> None:
    refused(lambda: ClientConfig.from_url(f"redis://h?timeout_s={LONG}"))
    with pytest.raises(errors.ConfigError, match="unknown setting 'xxx") as caught:
        ClientConfig.from_env({}, **{LONG: 1})
    assert len(str(caught.value)) < 2_000  # it lists all settings
    refused(lambda: ClientConfig.from_env({"KVFERRY_RESP_PORT": LONG}))


def test_keys_prefixes_and_lengths() -> None:
    usage = errors.UsageError
    with RedisClient("127.0.0.1", free_port()) as client, PureRedisClient() as pure:
        asked = (client.exists, pure.exists, lambda key: client.presence([key]))
        for key, call in product(("", b"", LONG, LONG.encode(), "\ud800" * 70_000), asked):
            refused(partial(call, key), usage)
        prefixes: tuple[Any, ...] = (b"p:", None, 5)
        for prefix in prefixes:
            refused(partial(client.namespace, prefix, bytes(16), 100), usage)
        for size in (0, -1, 2**38, HUGE):
            assert "use" in refused(partial(client.namespace, "p:", bytes(16), size), usage)
            refused(partial(Space, "p:", bytes(16), size), usage)
        for limit in (HUGE, 0):
            assert "use" in refused(partial(client.set, "k", b"v", ttl_s=limit), usage)
