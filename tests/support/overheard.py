"""A pytest plugin: no test may let a secret be said. See secrets.py for which are known.

Heard is what tests print and log (at every level, also what they capture themselves), warnings, the
output of child processes and the command lines that the package gives them, errors of batches, the
counters and the repr of clients and settings, and exceptions: their texts, and the local variables
of this package's functions on their way, as error reporters collect them.

A test in which a secret was said fails in its teardown, with the stream that it was in. Secrets
become known by themselves: those of settings, credentials and servers.
"""

from __future__ import annotations

import functools
import logging
import reprlib
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import kvferry
from kvferry import BatchResult, ClientConfig, Credentials, RedisClient
from kvferry.base.errors import KVFerryError
from kvferry.client.pure.client import PureRedisClient
from support import secrets, summary

PACKAGE = str(Path(kvferry.__file__).parent)
TITLE = "secrets that were said beside the tests"
FRAMES_MAX = 40
BYTES_MAX = 4096
# Where settings are made of what the caller wrote: there it must stand in variables, and the caller
# has it in one as well. Behind them it may stand in none.
SETTLING_FILES = ("credentials.py", "settings.py")
SETTLING_PACKAGE = "config"
SETTLING_NAMES = ("__init__", "from_url", "from_env", "from_file", "load_client_config")


class _Ears(logging.Handler):
    """What was said since the last search."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self._heard: list[tuple[str, str]] = []

    def hear(self, stream: str, text: str) -> None:
        self._heard.append((stream, text))

    def search(self) -> list[str]:
        heard, self._heard = self._heard, []
        found = ((stream, secrets.find(text)) for stream, text in heard)
        return list(dict.fromkeys(f"{stream}: {what}" for stream, what in found if what))

    def emit(self, record: logging.LogRecord) -> None:
        self.hear(f"log of {record.name}", f"{record.getMessage()} {record.args!r}")
        if record.exc_info and record.exc_info[1]:
            self.hear_exception(record.exc_info[1])

    def hear_exception(self, error: BaseException) -> None:
        """Its text and its causes', with the variables of our functions."""
        seen: set[int] = set()
        left: list[BaseException | None] = [error]
        while left:
            if (error_ := left.pop()) is None or id(error_) in seen:
                continue
            seen.add(id(error_))
            left += [error_.__cause__, error_.__context__]
            if isinstance(error_, KVFerryError):
                self.hear(f"text of {type(error_).__name__}", f"{error_} {error_!r}")
            self.hear_frames(frame for frame, _ in traceback.walk_tb(error_.__traceback__))

    def hear_frames(self, frames: Iterable[FrameType]) -> None:
        for frame in frames:
            code = frame.f_code
            file = Path(code.co_filename)
            settling = file.name in SETTLING_FILES or file.parent.name == SETTLING_PACKAGE
            settling |= code.co_name in SETTLING_NAMES
            if settling or not code.co_filename.startswith(PACKAGE):
                continue
            for name, value in tuple(frame.f_locals.items()):
                where = f"variable {name} of {code.co_qualname}() in {file.name}"
                self.hear(where, _shown(value))


class _Repr(reprlib.Repr):
    """As long as an error reporter would have it; values of megabytes are not rendered."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 4096
        self.maxdict = self.maxlist = self.maxtuple = 64

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, bytes | bytearray | memoryview):
            try:
                return repr(bytes(memoryview(x).cast("B")[:BYTES_MAX]))
            except (TypeError, ValueError):  # released, or not contiguous
                return "<bytes>"
        return super().repr_instance(x, level)


_repr = _Repr()
_ears = _Ears()


def _shown(value: object) -> str:
    try:
        return _repr.repr(value)
    except Exception as problem:  # an object of a test that does not like to be shown
        return f"<{type(problem).__name__}>"


# What is listened to, by replacing functions for as long as pytest runs.


def _listen(patches: pytest.MonkeyPatch) -> None:
    def after(owner: Any, name: str, told: Callable[..., None]) -> None:
        """Call ``told(result, *arguments)`` after a function."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            told(result, *args)
            return result

        patches.setattr(owner, name, wrapper)

    def before(owner: Any, name: str, told: Callable[..., None]) -> None:
        """Call ``told(*arguments)`` before a function."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            told(*args)
            return function(*args, **kwargs)

        patches.setattr(owner, name, wrapper)

    before(KVFerryError, "__init__", _on_error)
    before(pytest.RaisesExc, "__exit__", _on_expected)
    after(BatchResult, "__init__", _on_result)
    after(ClientConfig, "_check", _on_config)  # msgspec calls its __post_init__ past the class
    after(Credentials, "__post_init__", _on_credentials)
    after(pytest.CaptureFixture, "readouterr", _on_captured)
    after(subprocess.Popen, "communicate", _on_output)
    before(subprocess.Popen, "__init__", _on_command)
    before(RedisClient, "close", _on_close)
    before(PureRedisClient, "close", _on_close)


def _on_error(*_: object) -> None:
    frame: FrameType | None = sys._getframe(2)
    frames: list[FrameType] = []
    while frame is not None and len(frames) < FRAMES_MAX:
        frames.append(frame)
        frame = frame.f_back
    _ears.hear_frames(frames)


def _on_expected(_self: object, _type: object, error: BaseException | None, *_: object) -> None:
    if error is not None:
        _ears.hear_exception(error)


def _on_result(_: None, result: BatchResult, *_args: object) -> None:
    if result.error:
        _ears.hear("error of a BatchResult", result.error)


def _on_config(_: None, config: ClientConfig) -> None:
    for text in (config.password, config.sentinel_password):
        secrets.register(text)
    _ears.hear("repr of a ClientConfig", f"{config!r} {config.address}")


def _on_credentials(_: None, credentials: Credentials) -> None:
    secrets.register(credentials.password)
    _ears.hear("repr of Credentials", repr(credentials))


def _on_captured(captured: Any, *_: object) -> None:
    _ears.hear("what a test captured", f"{captured.out}{captured.err}")


def _on_output(output: tuple[str | bytes | None, ...], *_: object) -> None:
    for piece in output:
        text = piece.decode(errors="replace") if isinstance(piece, bytes) else piece
        _ears.hear("output of a process", text or "")


def _on_command(_: object, command: object = (), *_args: object) -> None:
    if sys._getframe(2).f_code.co_filename.startswith(PACKAGE):
        _ears.hear("command line of a process", repr(command))


def _on_close(client: Any) -> None:
    try:
        _ears.hear("repr of a client", f"{client!r} {client}")
        if getattr(client, "_native", None) is not None:  # else this process was forked
            _ears.hear("counters of a client", f"{client.stats()} {client.nodes()}")
    except Exception as error:
        _ears.hear_exception(error)


_patches = pytest.MonkeyPatch()


def pytest_configure() -> None:
    _listen(_patches)
    logging.getLogger().addHandler(_ears)
    logging.getLogger("kvferry").setLevel(logging.DEBUG)  # what would be said to who asks for all


def pytest_unconfigure() -> None:
    logging.getLogger().removeHandler(_ears)
    _patches.undo()


# Warnings are told when their test is over.
_late: list[str] = []


def pytest_warning_recorded(warning_message: warnings.WarningMessage, nodeid: str) -> None:
    if what := secrets.find(str(warning_message.message)):
        _late.append(f"ERROR {nodeid} lets a secret be said\na warning: {what}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    _late.extend(f"ERROR after the last test: {what}" for what in _ears.search())
    for what in _late:
        summary.add(session.config, TITLE, what)
    if summary.lines(session.config, TITLE):  # also what workers heard
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None:
        _ears.hear_exception(call.excinfo.value)
    if report.when == "teardown":
        for name, text in report.sections:
            _ears.hear(name, text)
        if (found := _ears.search()) and report.passed:
            report.outcome = "failed"
            report.sections.clear()  # not to be said again
            report.longrepr = "\n".join([f"{item.nodeid} lets a secret be said", *found])
    return report
