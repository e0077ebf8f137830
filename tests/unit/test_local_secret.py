"""The secret of this user's processes on this host, and the folder that it lies in."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvferry.base import local_secret as _local_secret
from kvferry.base.errors import ConfigError
from kvferry.base.local_secret import folder, local_proof, local_secret
from support.programs import Program

SECRET = re.compile(r"[0-9a-f]{64}")
SAYS = """
from kvferry.base.local_secret import local_secret
print("ready", flush=True)
print(local_secret(), flush=True)
"""
NOBODY = 65534


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime folder of a user who has not used kvferry yet."""
    path = tmp_path / "runtime"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    monkeypatch.setattr(_local_secret, "_known", {})
    return path


def refused() -> str:
    with pytest.raises(ConfigError) as caught:
        local_secret()
    text = str(caught.value)
    assert "p2p_secret_file" in text
    assert "\n" not in text
    return text


def test_the_first_one_makes_it_and_all_others_have_the_same(runtime: Path) -> None:
    found = local_secret()
    assert SECRET.fullmatch(found)
    assert local_secret() == found
    file = runtime / "kvferry" / "secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir()] == ["secret"]
    with Program(SAYS) as other:
        assert [other.read_line(), other.read_line()] == ["ready", found]


def test_of_many_first_ones_all_have_the_same(runtime: Path) -> None:
    with ExitStack() as stack:
        racers = [stack.enter_context(Program(RACES, runtime / "go")) for _ in range(6)]
        assert [racer.read_line() for racer in racers] == ["ready"] * 6
        (runtime / "go").touch()
        assert len({racer.read_line() for racer in racers}) == 1


RACES = """
import sys, time
from pathlib import Path
from kvferry.base.local_secret import local_secret
print("ready", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.001)
print(local_secret(), flush=True)
"""


def test_whoever_is_second_takes_what_the_first_one_made_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have seen that there is none: the one that comes first with its own wins."""
    make, others = _local_secret._make, b"a" * 64 + b"\n"

    def late(place: int, secret: bytes) -> None:
        make(place, others)
        make(place, secret)

    monkeypatch.setattr(_local_secret, "_make", late)
    assert local_secret() == "a" * 64


def test_one_that_was_removed_comes_back_and_a_new_one_is_taken_over(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, found = runtime / "kvferry" / "secret", local_secret()
    file.unlink()
    assert local_secret() == found  # who has it still
    file.unlink()
    with Program(SAYS) as other:
        assert other.read_line() == "ready"
        new = other.read_line()
    assert new != found
    assert local_secret() == new
    (runtime / "kvferry").rename(runtime / "away")
    assert local_secret() == new
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / "away"))  # another user's, to us
    assert local_secret() != new


def _link(file: Path) -> None:
    (file.parent / "other").write_text("a" * 64 + "\n")
    (file.parent / "other").chmod(0o600)
    file.symlink_to("other")


def _mode(file: Path) -> None:
    file.write_text("a" * 64 + "\n")
    file.chmod(0o640)


def _written(text: str) -> Callable[[Path], object]:
    def write(file: Path) -> None:
        file.write_text(text)
        file.chmod(0o600)

    return write


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_link, "it is a link"),
        (Path.mkdir, "it is no file"),
        (lambda file: os.mkfifo(file, 0o600), "it is no file"),
        (_mode, "other users may open it"),
        (_written(""), "it is damaged"),
        (_written("a" * 63), "it is damaged"),
        (_written("a" * 64), "it is damaged"),
        (_written("a" * 64 + "\nmore"), "it is damaged"),
        (_written("A" * 64 + "\n"), "it is damaged"),
    ],
)
def test_what_is_not_ours_alone_or_not_whole_is_refused_with_its_name(
    runtime: Path, make: Callable[[Path], object], why: str
) -> None:
    file = folder() / "secret"
    make(file)
    text = refused()
    assert why in text
    assert str(file) in text
    with pytest.raises(ConfigError):
        local_proof("a side", b"")


def test_another_users_file_is_refused() -> None:
    if os.getuid():
        pytest.skip("only root can give a file to somebody else")
    file = folder() / "secret"
    _written("a" * 64 + "\n")(file)
    os.chown(file, NOBODY, NOBODY)
    assert f"another user ({NOBODY})" in refused()


def test_a_folder_in_which_it_cannot_be_made_is_named(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    folder()
    monkeypatch.setattr(os, "link", fail)
    assert "Read-only file system" in refused()
    assert str(runtime / "kvferry" / "secret") in refused()
    assert list((runtime / "kvferry").iterdir()) == []  # nothing is left of the attempts


def test_a_folder_of_ours_that_others_may_enter_is_refused(runtime: Path) -> None:
    (runtime / "kvferry").mkdir(mode=0o755)
    assert "other users may open it" in refused()
    (runtime / "kvferry").rmdir()
    (runtime / "elsewhere").mkdir(mode=0o700)
    (runtime / "kvferry").symlink_to("elsewhere")
    assert "it is no directory" in refused()
    (runtime / "kvferry").unlink()
    (runtime / "kvferry").write_text("")
    assert str(runtime / "kvferry") in refused()


@pytest.mark.parametrize("runtime_dir", ["", "relative", "none", "open", "link", "theirs"])
def test_without_a_runtime_folder_of_ours_there_is_one_for_temporary_files(
    runtime_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What XDG_RUNTIME_DIR names is another user's after `sudo`, or open to all."""
    if Path(f"/run/user/{os.geteuid()}").is_dir():
        pytest.skip("this host has a runtime folder for this user")
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "runtime")
    (tmp_path / "theirs").mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(tmp_path / "theirs", NOBODY, NOBODY)
    elif runtime_dir == "theirs":
        pytest.skip("only root can give a folder to somebody else")
    if runtime_dir == "relative":
        monkeypatch.chdir(tmp_path)
        (tmp_path / "relative").mkdir(mode=0o700)
        named = "relative"
    else:
        named = str(tmp_path / runtime_dir) if runtime_dir else ""
    monkeypatch.setenv("XDG_RUNTIME_DIR", named)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    path = folder()
    assert path == tmp_path / "tmp" / f"kvferry-{os.geteuid()}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert SECRET.fullmatch(local_secret())


def test_a_proof_is_of_its_side_and_of_what_it_is_about() -> None:
    proofs = {local_proof(side, about) for side in ("a", "b") for about in (b"", b"x")}
    assert len(proofs) == 4
    assert all(local_secret().encode() not in proof for proof in proofs)
