"""A pytest plugin: what a test leaves unclosed is a failure of that test.

A file, socket or coroutine that nobody closed warns when it is collected, and warnings are errors.
When that is would be luck, and the test that runs then would be blamed. So what a test has made is
collected at its end; what was there before the first test is kept out of it, which makes it quick.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _what_is_left_is_collected() -> Iterator[None]:
    """Set up before all other fixtures of a test, and so torn down behind them."""
    yield
    gc.collect()
