"""The lane of real engines: stand-ins that load, a whole wheel, and the versions of the guide."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from engine_lane.recipes import RECIPES
from engine_lane.stand_ins import make_stand_ins, needs_of
from engine_lane.wheel import make_wheel

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "engines.md"
NO_DEVICE = 100


def test_the_guide_has_the_versions_that_the_lane_installs() -> None:
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| `([\w.-]+)` \|", GUIDE.read_text(), re.MULTILINE)
    named = {name: (recipe.engine, recipe.version) for name, recipe in RECIPES.items()}
    assert {name: (engine, version) for engine, version, name in rows} == named


def test_versions_are_pinned_where_they_are_installed() -> None:
    for name, recipe in RECIPES.items():
        installed = " ".join((*recipe.requires, *recipe.bare))
        assert f"=={recipe.version}" in installed, name
        assert f"torch=={recipe.torch}\n" in recipe.overrides()


@pytest.mark.skipif(not shutil.which("cc") or not shutil.which("readelf"), reason="no compiler")
def test_stand_ins_let_a_library_load(tmp_path: Path) -> None:
    """A library that needs two others, with and without symbol versions, is left without them."""
    build(tmp_path, "libplain.so.1", "int plain_call(void) { return 1; }")
    versions = tmp_path / "map"
    versions.write_text("LIB_1 { global: old_call; };\nLIB_2 { global: new_call; } LIB_1;\n")
    both = "int old_call(void) { return 2; } int new_call(void) { return 3; }"
    build(tmp_path, "libversions.so.2", both, f"-Wl,--version-script,{versions}")
    code = (
        "#include <string.h>\nint plain_call(void); int old_call(void); int new_call(void);\n"
        "int all(char *p) { return plain_call() + old_call() + new_call() + (int)strlen(p); }"
    )
    needs = ("-l:libplain.so.1", "-l:libversions.so.2", f"-L{tmp_path}", "-Wl,-rpath,$ORIGIN")
    library = build(tmp_path, "libuser.so", code, *needs)
    for name in ("libplain.so.1", "libversions.so.2"):
        (tmp_path / name).unlink()
    versions.unlink()
    assert make_stand_ins(tmp_path) == ["libplain.so.1", "libversions.so.2"]
    assert make_stand_ins(tmp_path) == []  # nothing is missing now
    assert {"old_call", "new_call"} <= needs_of(tmp_path / "libversions.so.2").defined
    assert ctypes.CDLL(str(library)).all(b"four") == 3 * NO_DEVICE + 4


def build(folder: Path, name: str, code: str, *flags: str) -> Path:
    """Compile a shared library."""
    source = folder / f"{name}.c"
    source.write_text(code)
    target = ("-o", str(folder / name), str(source))
    subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", *target, *flags], check=True)
    source.unlink()
    return folder / name


def test_the_wheel_is_whole(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    place = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
        archive.extractall(place)
    # `bench client` of such a package ended with "kvferry-floor is not built".
    for name in ("delay", "floor", "load"):
        assert modes.get(f"kvferry/bin/kvferry-{name}", 0) & 0o111 == 0o111, name
    record = next(place.glob("*.dist-info/RECORD")).read_text().splitlines()
    assert sorted(line.split(",")[0] for line in record) == sorted(names)
    (info,) = place.glob("*.dist-info")
    points = {
        (point.group, point.name): point.value for point in Distribution.at(info).entry_points
    }
    assert points == {
        ("console_scripts", "kvferry"): "kvferry.cli.main:main",
        ("vllm.general_plugins", "kvferry"): "kvferry.integrations.vllm.plugin:register",
    }
    # Without the finder of an editable install, which would win over any path.
    code = (
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in type(f).__module__]\n"
        "import kvferry, kvferry._native as n; print(kvferry.__file__, n.__file__)"
    )
    environment = {"PYTHONPATH": str(place), "PATH": ""}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert [Path(word).is_relative_to(place) for word in said.stdout.split()] == [True, True]
