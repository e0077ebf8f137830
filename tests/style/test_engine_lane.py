"""The installer of real engines, as far as it needs none."""

from __future__ import annotations

from engine_lane.install import requirements


def test_what_we_need_in_the_environment_of_an_engine_is_in_pyproject() -> None:
    names = [line.partition(">")[0] for line in requirements()]
    assert {"msgspec", "numpy", "prometheus-client", "uvicorn"} <= set(names)
