"""The settings of a node: which place wins, what is refused, and that no secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvferry.base.errors import ConfigError
from kvferry.config.node import ListenAddress, NodeSettings, NodeUser
from support.secrets import secret

PASSWORD = secret("node-config")


def test_the_call_wins_over_the_file_and_that_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "kvferry.yaml"
    file.write_text("node: {size_gb: 2, password: two, policy: arc}\n")
    environ = {"KVFERRY_NODE_SIZE_GB": "9", "KVFERRY_NODE_LISTEN": "127.0.0.1:1,unix:/tmp/x"}
    settings = NodeSettings.load(file, environ=environ, password="three")
    assert (settings.size_gb, settings.password, settings.eviction_policy) == (2, "three", "ARC")
    assert settings.addresses == (
        ListenAddress(host="127.0.0.1", port=1),
        ListenAddress(path="/tmp/x"),
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"listen": ("host",)}, "listen: 'host' is not valid"),
        ({"listen": ("::1:80",)}, "[::1]:6400"),
        ({"listen": ("127.0.0.1:70000",)}, "is not valid"),
        ({"listen": ()}, "listen is empty"),
        ({"listen": ("*:6400",)}, "0.0.0.0:6400 is reachable from other hosts"),
        ({"listen": ("node-1:6400",)}, "is reachable from other hosts"),
        ({"size_gb": 0}, "size_gb=0 is not valid"),
        ({"password": PASSWORD, "password_file": "/x"}, "keep one"),
        ({"users_file": "/x", "password": PASSWORD}, "users_file says who may do what"),
        ({"read_only": True}, "read_only is gone: name a users_file"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NodeSettings(**given)  # type: ignore[arg-type]
    assert told in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_a_password_makes_one_user_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    for settings in (
        NodeSettings(password=PASSWORD, listen=("0.0.0.0:1",)),
        NodeSettings(password_file=str(file), listen=("0.0.0.0:1",)),
    ):
        (user,) = settings.users()
        assert user == NodeUser(
            name="default", password=PASSWORD, read=("",), write=("",), admin=True
        )
        assert PASSWORD not in repr(settings) + repr(user)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "- {name: a}", "{", "- a"),
        "- {name: a, password: WORD, wrote: [x]}",
        "- {name: a, password: '', read: [WORD]}",
    ],
)
def test_a_file_of_users_is_read_strictly_and_not_quoted(tmp_path: Path, text: str) -> None:
    file = tmp_path / "users.yaml"
    file.write_text(text.replace("WORD", PASSWORD))
    with pytest.raises(ConfigError) as caught:
        NodeSettings(users_file=str(file)).users()
    assert str(file) in str(caught.value)
    assert PASSWORD not in str(caught.value)
