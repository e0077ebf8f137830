"""Credentials and the functions that provide them: what is taken, and that nothing is told."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest

import kvferry
from kvferry.base.credentials import Credentials, provided
from kvferry.base.errors import UnavailableError
from support.config import SECRET, message


def test_the_secret_is_shown_nowhere() -> None:
    credentials = kvferry.Credentials("app", SECRET, expires_in_s=900)
    assert repr(credentials) == "Credentials(username='app', expires_in_s=900)"
    assert SECRET not in f"{credentials}"
    assert pickle.loads(pickle.dumps(credentials)) == credentials
    assert provided(lambda: credentials) is credentials


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ((SECRET.encode(), "p"), "username"),
        (("u", SECRET.encode()), "password"),
        (("u", None), "password"),
        (("u", SECRET + "\ud800"), "password"),
        (("u", SECRET, 0), "above 0"),
        (("u", SECRET, float("inf")), "above 0"),
        (("u", SECRET, "900"), "above 0"),
    ],
)
def test_bad_credentials_are_refused(values: tuple[Any, ...], advice: str) -> None:
    assert advice in message(Credentials, *values)


def _raises() -> Credentials:
    raise LookupError(f"no token for {SECRET}")


@pytest.mark.parametrize(
    ("provider", "said"), [(_raises, "LookupError"), (lambda: ("u", SECRET), "a tuple")]
)
def test_a_provider_that_fails_is_told_by_kind(provider: Callable[[], Any], said: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        provided(provider)
    assert said in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None
