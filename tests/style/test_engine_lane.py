"""The installer of real engines, as far as it needs none."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_lane.install import InstallError, patch_file, requirements
from engine_lane.recipes import Patch


def test_what_we_need_in_the_environment_of_an_engine_is_in_pyproject() -> None:
    names = [line.partition(">")[0] for line in requirements()]
    assert {"msgspec", "numpy", "prometheus-client", "uvicorn"} <= set(names)


def test_a_patch_leaves_the_installers_cache_as_it_is(tmp_path: Path) -> None:
    """Environments share files with the cache by hard links; another one may have patched it."""
    cached, file = tmp_path / "cached.py", tmp_path / "site" / "module.py"
    cached.write_text("if old:\n    pass\n")
    file.parent.mkdir()
    file.hardlink_to(cached)
    patch = Patch("module.py", "if old:", "if new:")
    patch_file(file.parent, patch)
    assert file.read_text() == "if new:\n    pass\n"
    assert cached.read_text() == "if old:\n    pass\n"
    patch_file(file.parent, patch)  # there already
    assert file.read_text() == "if new:\n    pass\n"
    with pytest.raises(InstallError, match=r"module\.py is not what the recipe's patch is for"):
        patch_file(file.parent, Patch("module.py", "if other:", "if new one:"))
