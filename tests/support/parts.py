"""A pytest plugin: which tests are part of `make test`, and which of `make test-full` alone.

The latter get the mark `full`, by the folder in which they lie:

faults, security    in `make test` with one client, one server and one way, native x Valkey x TCP;
                    of those with others, a sample
cli, harness,       a sample
integration
engines             none
all other folders   in `make test`, but for tests that have the mark in their source

A sample is one test of so many, always the same ones. A pytest without -m runs both parts. Tests
with the marks `engines`, `gpu` and `soak` are of verbs of their own, and left out where -m does not
name them.
"""

from __future__ import annotations

import re
import zlib

import pytest

SAMPLES = {"cli": 4, "faults": 8, "harness": 8, "integration": 4, "security": 8}  # one of so many
MATRICES = {"faults", "security"}
VERBS = ("engines", "gpu", "soak")
# In ids of parameters: other clients, servers and ways. As fixtures: servers of other ways.
OTHERS = {"asyncio", "cluster", "pure", "redis7", "sentinel", "tls", "unix"}
OTHER_FIXTURES = {
    "certs",
    "cluster",
    "fresh_cluster",
    "fresh_sentinels",
    "proxied_cluster",
    "redis7",
    "sentinels",
    "tls_cluster",
    "tls_server",
}


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    apart = [verb for verb in VERBS if verb not in config.option.markexpr]
    items[:] = [item for item in items if not any(map(item.get_closest_marker, apart))]
    for item in items:
        if is_left_out(item):
            item.add_marker(pytest.mark.full)
    items.sort(key=lambda item: item.path.parent.name != "engines")  # minutes each: they go first


def is_left_out(item: pytest.Item) -> bool:
    """Whether `make test` leaves it to `make test-full`."""
    folder = item.path.parent.name
    if folder == "engines":
        return True
    fixtures = set(getattr(item, "fixturenames", ()))
    if folder not in SAMPLES or (folder in MATRICES and not is_of_others(item.name, fixtures)):
        return False
    return zlib.crc32(item.nodeid.encode()) % SAMPLES[folder] != 0


def is_of_others(name: str, fixtures: set[str]) -> bool:
    """Whether a test of that name is of another client, server or way than make test tries."""
    words = set(re.split(r"[^a-z0-9]+", name.partition("[")[2]))
    if "server" in fixtures:  # which asks for one of them by name
        fixtures = fixtures - {"redis7"}
    return bool(OTHERS & words or OTHER_FIXTURES & fixtures)
