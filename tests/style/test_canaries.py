"""tools/canaries.py: bugs that are planted into the client are found by the simulation."""

from __future__ import annotations

from pathlib import Path

import canaries
import pytest
from canaries import CANARIES, Canary

EACH = pytest.mark.parametrize("canary", CANARIES, ids=[canary.name for canary in CANARIES])


@EACH
def test_line_is_still_there(canary: Canary) -> None:
    assert canary.plant() != (canaries.ROOT / "native" / "redis" / canary.source).read_text()


def test_line_that_is_gone_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "native" / "redis" / "a.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("twice(); twice();")
    for line in ("never();", "twice();"):
        with pytest.raises(ValueError, match="has not once"):
            Canary("a", "a.cpp", line, "", 1).plant(tmp_path)


@pytest.mark.full
@EACH
def test_bug_is_found_and_the_client_without_it_is_sound(canary: Canary) -> None:
    program = canaries.build(canary)
    found = canaries.find(program, canary.seed)
    assert found is not None
    assert canaries.find(canaries.BUILD / "kvferry-sim", found.seed, schedules=1) is None
