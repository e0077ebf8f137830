"""An adapter is what was read when the engine loaded it, or its requests are not cached."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvferry.integrations.vllm import lora_adapters as adapters
from kvferry.integrations.vllm.connector.request_hashes import request_hashes
from kvferry.integrations.vllm.connector.scheduler import SchedulerHalf
from kvferry.integrations.vllm.lora_adapters import Adapters, watch
from kvferry.integrations.weights import fingerprint
from support.vllm_shapes import EngineRequest, SchedulerStep

Way = tuple[str, Callable[[], object]]

SIZE = 8
TOKENS = list(range(40))
COMMITS = ("a" * 40, "b" * 40)


@dataclass
class Lora:
    """A ``vllm.lora.request.LoRARequest``."""

    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False


def write(folder: Path, content: bytes, name: str = "adapter_model.safetensors") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_bytes(b"{}")
    (folder / name).write_bytes(content)
    return folder


def hashes(lora: Any, of_engine: Adapters) -> bytes | None:
    """Of a request with an adapter; None: it is not cached."""
    made = request_hashes(EngineRequest("r", TOKENS, lora_request=lora), SIZE, adapters=of_engine)
    return None if made is None else made.of(TOKENS)


# --- Loaded anew: what has to be seen ---


def one_folder_down(place: Path) -> Way:
    folder = write(place / "adapter", b"old", "weights/model.safetensors")
    return str(folder), partial(write, folder, b"new", "weights/model.safetensors")


def one_folder_down_beside_weights(place: Path) -> Way:
    folder = write(write(place / "adapter", b"top"), b"old", "more/model.safetensors")
    return str(folder), partial(write, folder, b"new", "more/model.safetensors")


def same_size_and_time(place: Path) -> Way:
    folder = write(place / "adapter", b"old")
    file = folder / "adapter_model.safetensors"

    def change() -> None:
        before = file.stat()
        file.write_bytes(b"new")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    return str(folder), change


def another_file_moved_there(place: Path) -> Way:
    folder, other = write(place / "adapter", b"old"), write(place / "other", b"new")
    name = "adapter_model.safetensors"
    for file in (folder / name, other / name):
        os.utime(file, ns=(1, 1))
    return str(folder), partial((other / name).rename, folder / name)


def a_link_that_leads_elsewhere(place: Path) -> Way:
    write(place / "one", b"old")
    write(place / "two", b"new")
    (place / "current").symlink_to("one")

    def change() -> None:
        (place / "next").symlink_to("two")
        (place / "next").rename(place / "current")

    return str(place / "current"), change


def a_new_commit_on_the_hub(place: Path) -> Way:
    home = place / "hub" / "models--org--adapter"
    for commit, content in zip(COMMITS, (b"old", b"new"), strict=True):
        write(home / "snapshots" / commit, content)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMITS[0])
    return "org/adapter", partial((home / "refs" / "main").write_text, COMMITS[1])


WAYS = [
    one_folder_down,
    one_folder_down_beside_weights,
    same_size_and_time,
    another_file_moved_there,
    a_link_that_leads_elsewhere,
    a_new_commit_on_the_hub,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_adapter_that_is_loaded_anew_has_names_of_its_own(
    way: Callable[[Path], Way],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And as long as it is not, nobody knows what the engine has."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    path, change = way(tmp_path)
    engine = Adapters()
    old = hashes(Lora("x", 1, path), engine)
    assert old is not None
    assert hashes(Lora("x", 1, path), engine) == old
    change()
    assert hashes(Lora("x", 1, path), engine) is None
    assert hashes(Lora("x", 1, path), engine) is None
    assert caplog.text.count("not those that were loaded: its requests are not cached") == 1
    new = hashes(Lora("x", 2, path), engine)
    assert new is not None
    assert new[:16] != old[:16]
    assert hashes(Lora("x", 3, path, load_inplace=True), engine) == new


def test_an_adapter_is_read_once_for_each_load(tmp_path: Path) -> None:
    read: list[str] = []

    def counted(path: str) -> str:
        read.append(path)
        return fingerprint(path)

    loaded = Adapters(counted)
    folder = str(write(tmp_path / "adapter", b"large"))
    for number in (1, 1, 1, 2, 2):
        assert loaded.of(Lora("x", number, folder)) is not None
    assert len(read) == 2


def test_files_that_change_while_they_are_read_are_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "adapter", b"old")

    def slow(path: str) -> str:
        digest = fingerprint(path)
        write(folder, b"newer")
        return digest

    assert Adapters(slow).of(Lora("x", 1, str(folder))) is None
    assert "cannot be read here: its requests are not cached" in caplog.text


# --- What vLLM says of its loads ---


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's core, which loads what `before_load` has left there."""

    class EngineCore:
        before_load: Callable[[], object] = staticmethod(lambda: None)

        def add_lora(self, lora_request: Any) -> bool:
            self.before_load()
            return True

        def remove_lora(self, lora_id: int) -> bool:
            return True

    module = ModuleType("vllm.v1.engine.core")
    module.EngineCore = EngineCore  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.core", module)
    return EngineCore()


def test_what_is_replaced_between_the_load_and_the_first_request_is_not_taken_for_it(
    core: Any, tmp_path: Path
) -> None:
    loaded = watch(Adapters())
    lora = Lora("x", 1, str(write(tmp_path / "adapter", b"old")))
    core.add_lora(lora)
    write(tmp_path / "adapter", b"other")
    assert loaded.of(lora) is None
    core.remove_lora(1)
    core.add_lora(lora)
    load = loaded.of(lora)
    assert load is not None
    assert load.digest == fingerprint(lora.lora_path)
    assert load.holds()


def test_what_is_replaced_during_the_load_is_unknown(
    core: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = watch(Adapters())
    folder = write(tmp_path / "adapter", b"old")
    core.before_load = lambda: write(folder, b"other")
    lora = Lora("x", 1, str(folder))
    core.add_lora(lora)
    assert loaded.of(lora) is None
    assert "changed while it was loaded: its requests are not cached" in caplog.text


def test_what_the_load_itself_fetches_from_the_hub_is_known(
    core: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    home = tmp_path / "hub" / "models--org--adapter"

    def fetch() -> None:
        write(home / "snapshots" / COMMITS[0], b"fetched")
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text(COMMITS[0])

    loaded = watch(Adapters())
    core.before_load = fetch
    lora = Lora("x", 1, "org/adapter")
    core.add_lora(lora)
    load = loaded.of(lora)
    assert load is not None
    assert load.digest.startswith(COMMITS[0])


def test_in_the_place_of_another_one(core: Any, tmp_path: Path) -> None:
    """The number stays, and what runs with the old one does not hold any more."""
    loaded = watch(Adapters())
    one, two = write(tmp_path / "one", b"old"), write(tmp_path / "two", b"new")
    core.add_lora(Lora("x", 1, str(one)))
    old = loaded.of(Lora("x", 1, str(one)))
    assert old is not None
    core.add_lora(Lora("x", 1, str(two)))  # vLLM has one of this number, and loads nothing
    assert loaded.of(Lora("x", 1, str(two))) is None
    assert old.holds()
    core.add_lora(Lora("x", 1, str(two), load_inplace=True))
    new = loaded.of(Lora("x", 1, str(two), load_inplace=True))
    assert new is not None
    assert new.digest != old.digest
    assert not old.holds()


def test_a_load_that_fails_leaves_what_was_there(core: Any, tmp_path: Path) -> None:
    loaded = watch(Adapters())
    one, two = write(tmp_path / "one", b"old"), write(tmp_path / "two", b"new")
    core.add_lora(Lora("x", 1, str(one)))
    core.before_load = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        core.add_lora(Lora("x", 1, str(two), load_inplace=True))
    load = loaded.of(Lora("x", 1, str(one)))
    assert load is not None
    assert load.digest == fingerprint(str(one))


def test_other_weights_under_a_name_that_vllms_cache_knows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What vLLM has of a request may be of the weights before; what it has nothing of is not."""
    loaded = Adapters()
    folder = str(write(tmp_path / "adapter", b"old"))
    first = loaded.of(Lora("x", 1, folder))
    assert first is not None
    assert first.is_fit(64)
    write(tmp_path / "adapter", b"other")
    second = loaded.of(Lora("x", 2, folder))
    assert second is not None
    assert not second.is_fit(64)
    assert second.is_fit(0)
    assert caplog.text.count("other weights were loaded as LoRA adapter 'x'") == 1
    another = loaded.of(Lora("y", 3, folder))
    assert another is not None
    assert another.is_fit(64)


def test_the_core_is_watched_once_and_nobody_is_kept_for_it(core: Any) -> None:
    first, second = watch(Adapters()), watch(Adapters())
    watched = type(core).add_lora
    assert watch(second) is second
    assert type(core).add_lora is watched
    del first, second
    gc.collect()
    assert not [each for each in adapters._watching if not each.loads]


# --- Beside the scheduler ---


class NobodyKnows:
    """A finder of an empty cache."""

    shared = bytes(8)

    def find(self, prompt: Any) -> int:
        return 0

    def now(self, prompt: Any) -> int | None:
        return 0

    def renewed(self, ended: bytes, own: bytes) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def half() -> Iterator[SchedulerHalf]:
    hasher = partial(request_hashes, adapters=Adapters())
    made = SchedulerHalf(NobodyKnows(), chunk_size=SIZE, block_size=4, limit_s=9.0, hasher=hasher)
    yield made
    made.close()


def saved(half: SchedulerHalf, name: str, lora: Any, local_tokens: int = 0) -> Callable[[], int]:
    """How many chunks the first step of a request saves, which is taken when this is called."""
    asked = EngineRequest(name, TOKENS, lora_request=lora)
    assert half.matched(asked, local_tokens) == 0
    step = SchedulerStep().new(name, list(range(10)), local_tokens, len(TOKENS) - local_tokens)
    return lambda: len(half.work(step).saves)


def test_nothing_is_saved_that_other_weights_may_have_computed(
    half: SchedulerHalf, tmp_path: Path
) -> None:
    lora = Lora("x", 1, str(write(tmp_path / "adapter", b"old")))
    assert saved(half, "one", lora)() == 1
    step = saved(half, "two", lora)
    write(tmp_path / "adapter", b"other")
    assert step() == 0, "vLLM reads the files in this step, or did so before"
    anew = Lora("x", 2, lora.lora_path)
    assert saved(half, "three", anew, local_tokens=16)() == 0, "vLLM's own may be of the old ones"
    assert saved(half, "four", anew)() == 1
