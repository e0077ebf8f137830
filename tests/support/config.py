"""What the tests of settings and URLs share: a secret, and the refusals that may not hold it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.base.errors import ConfigError

SECRET = "s3cr3t-w0rd"


def message(call: object, *args: object, **settings: object) -> str:
    """The text of the ConfigError, after checking that no part of the trace holds the secret."""
    with pytest.raises(ConfigError) as caught:
        call(*args, **settings)  # type: ignore[operator]
    error: BaseException | None = caught.value
    while error is not None:  # hidden causes count as well: error reporters collect them
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__
    assert SECRET not in "".join(traceback.format_exception_only(caught.value))
    return str(caught.value)


def written(folder: Path) -> Callable[..., Path]:
    """What writes the configuration file of a test, and gives its path."""

    def write(text: str, mode: int = 0o600) -> Path:
        path = folder / "kvferry.yaml"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write
