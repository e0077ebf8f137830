"""BatchResult: what it tells of a batch, and which exception it makes of a status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvferry.base import errors
from kvferry.client.batch import BatchResult, Operation, Status, Verb


def result(*statuses: Status, error: str | None = None) -> BatchResult:
    return BatchResult(bytes(statuses), [7] * len(statuses), 0.0125, error)


OK, MISS, TIMEOUT = Status.OK, Status.MISS, Status.TIMEOUT


def test_it_is_a_sequence_of_statuses() -> None:
    batch = result(OK, MISS, TIMEOUT, OK)
    assert list(batch) == [OK, MISS, TIMEOUT, OK]
    assert (len(batch), batch[1], batch[-2]) == (4, MISS, TIMEOUT)
    assert batch[0] is Status.OK
    assert MISS in batch
    assert Status.CORRUPT not in batch
    assert batch.index(TIMEOUT) == 2
    with pytest.raises(IndexError):
        batch[4]


def test_counts() -> None:
    batch = result(OK, MISS, OK, MISS, OK)
    assert (batch.count(OK), batch.count(MISS), batch.count(TIMEOUT)) == (3, 2, 0)
    assert batch.count("OK") == 0


@pytest.mark.parametrize(
    ("statuses", "prefix_len", "ok"),
    [
        ((OK, OK, OK), 3, True),
        ((OK, MISS, OK), 1, False),
        ((MISS, OK, OK), 0, False),
        ((OK, OK, TIMEOUT), 2, False),
        ((), 0, True),
    ],
)
def test_prefix(statuses: tuple[Status, ...], prefix_len: int, ok: bool) -> None:
    batch = result(*statuses)
    assert (batch.prefix_len, batch.ok) == (prefix_len, ok)


def test_repr_counts_and_times() -> None:
    assert repr(result(OK, MISS, OK)) == "<BatchResult OK=2 MISS=1 in 12.50 ms>"
    assert repr(result()) == "<BatchResult empty in 12.50 ms>"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.CORRUPT, errors.CorruptError),
        (Status.TIMEOUT, errors.DeadlineExceeded),
        (Status.UNAVAILABLE, errors.UnavailableError),
        (Status.SERVER_ERROR, errors.ServerError),
        (Status.CANCELLED, errors.BatchCancelledError),
    ],
)
def test_failures_have_exceptions_and_name_the_key(
    status: Status, kind: type[errors.KVFerryError]
) -> None:
    with pytest.raises(kind, match=r"^OOM no room \(key 2 of 4\)$") as caught:
        result(OK, MISS, status, OK, error="OOM no room").raise_for_errors()
    assert type(caught.value) is kind
    with pytest.raises(kind, match=r"^OOM no room$"):  # there is one key: which one is no question
        result(status, error="OOM no room").raise_for_errors()
    with pytest.raises(kind) as caught:
        result(status).raise_for_errors()
    assert " " in str(caught.value), "words, not the name of a status"


def test_a_size_mismatch_tells_the_size() -> None:
    with pytest.raises(errors.SizeMismatchError, match="the stored value has 7 bytes"):
        result(Status.SIZE_MISMATCH, error="OOM of another key").raise_for_errors()


def test_every_status_either_passes_or_raises() -> None:
    passed = []
    for status in Status:
        try:
            result(status).raise_for_errors()
            passed.append(status)
        except errors.KVFerryError:
            pass
    assert passed == [OK, MISS]


def test_the_first_failure_counts() -> None:
    with pytest.raises(errors.DeadlineExceeded):
        result(MISS, TIMEOUT, Status.CORRUPT).raise_for_errors()


def test_server_code_is_the_first_word() -> None:
    with pytest.raises(errors.ServerError) as caught:
        result(Status.SERVER_ERROR, error="WRONGTYPE Operation against").raise_for_errors()
    assert caught.value.server_code == "WRONGTYPE"


@pytest.mark.parametrize(
    ("status", "kind", "raised"),
    [
        (Status.UNAVAILABLE, errors.AuthError, errors.AuthError),
        (Status.UNAVAILABLE, errors.TlsError, errors.TlsError),
        (Status.UNAVAILABLE, errors.ServerError, errors.UnavailableError),
        (Status.UNAVAILABLE, None, errors.UnavailableError),
        (Status.SERVER_ERROR, errors.AuthError, errors.ServerError),  # the kind of another key
    ],
)
def test_kind_says_more_than_the_status_where_it_agrees_with_it(
    status: Status, kind: type[Exception] | None, raised: type[Exception]
) -> None:
    told = BatchResult(bytes([status]), [0], 0.0, "WRONGPASS, or TLS: whatever", kind)
    with pytest.raises(errors.KVFerryError) as caught:
        told.raise_for_errors()
    assert type(caught.value) is raised


def test_each_kind_of_native_error_has_one_exception() -> None:
    root = Path(__file__).resolve().parents[2]
    declared = (root / "native/base/errors.hpp").read_text()
    codes = re.findall(r"^ +(k\w+),", declared.partition("enum class Errc")[2].split("};")[0], re.M)
    table = (root / "bindings/errors.cpp").read_text()
    classes = dict(re.findall(r'case Errc::(k\w+):\s+return "(\w+)";', table))
    assert list(classes) == codes
    assert set(classes.values()) < set(errors.__all__)


def test_an_operation_shows_no_values() -> None:
    operation = Operation(Verb.SET, ["a", "b"], [b"secret", b"secret"])
    assert repr(operation) == "<Operation SET of 2 keys>"
