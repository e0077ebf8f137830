"""The fingerprint of weights: content decides, and the guarantees of its module hold."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from kvferry.integrations import weights
from kvferry.integrations.weights import fingerprint, hub_place, is_known

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}


def write_safetensors(path: Path, tensors: dict[str, bytes]) -> None:
    """A file of that format, with 16-bit numbers."""
    header, offset = {}, 0
    for name, data in tensors.items():
        shape = [len(data) // 2]
        header[name] = {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file, and neither its size nor its times."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of two shards."""
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG))
    (place / "tokenizer.json").write_text("{}")
    (place / "model.safetensors.index.json").write_text("{}")
    for shard in (1, 2):
        tensors = {f"layer.{i}": os.urandom(3000) for i in range(4)}
        write_safetensors(place / f"model-0000{shard}-of-00002.safetensors", tensors)
    return place


@pytest.fixture
def big(model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same model, too big to be read whole."""
    monkeypatch.setattr(weights, "WHOLE_BYTES", 1024)
    monkeypatch.setattr(weights, "SMALL_BYTES", 1024)
    monkeypatch.setattr(weights, "BLOCK_BYTES", 16)
    monkeypatch.setattr(weights, "EDGE_BYTES", 64)
    monkeypatch.setattr(weights, "SPREAD_MAX", 8)
    return model


def shard(model: Path) -> Path:
    return model / "model-00002-of-00002.safetensors"


def test_the_same_files_elsewhere(model: Path, tmp_path: Path) -> None:
    first = fingerprint(str(model))
    assert is_known(first)
    elsewhere = tmp_path / "deep" / "copy"
    shutil.copytree(model, elsewhere)
    os.utime(shard(elsewhere), (1, 1))
    assert fingerprint(str(elsewhere)) == first
    assert fingerprint(str(elsewhere), revision="v2") == first  # a directory has no revisions
    monkey = tmp_path / "link"
    monkey.symlink_to(elsewhere)
    assert fingerprint(f"{monkey}/") == first


def test_any_byte_of_a_small_model(model: Path) -> None:
    seen = {fingerprint(str(model))}
    for offset in (0, 9, 700, shard(model).stat().st_size - 1):
        flip(shard(model), offset)
        seen.add(fingerprint(str(model)))
    assert len(seen) == 5


def test_any_byte_of_a_model_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer spans are hashed by threads; the order of pieces counts."""
    monkeypatch.setattr(weights, "_PIECE_BYTES", 1 << 10)
    file = tmp_path / "model.safetensors"
    data = os.urandom(10_000)
    file.write_bytes(data)
    seen = {fingerprint(str(tmp_path))}
    assert fingerprint(str(tmp_path)) in seen
    for offset in (0, 1023, 1024, 5000, 9999):
        flip(file, offset)
        seen.add(fingerprint(str(tmp_path)))
        flip(file, offset)
    file.write_bytes(data[1024:2048] + data[:1024] + data[2048:])
    seen.add(fingerprint(str(tmp_path)))
    assert len(seen) == 7


def test_a_changed_tensor_of_a_big_model(big: Path) -> None:
    seen = {fingerprint(str(big))}
    data = shard(big).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for tensor in range(4):
        first = start + 3000 * tensor
        changed = bytes(byte ^ 1 for byte in data[first : first + 3000])
        shard(big).write_bytes(data[:first] + changed + data[first + 3000 :])
        seen.add(fingerprint(str(big)))
    assert len(seen) == 5


def test_what_is_sampled_of_a_big_model(big: Path) -> None:
    """The header, and the middle of each tensor; a byte between the blocks is not seen."""
    before = fingerprint(str(big))
    start = 8 + int.from_bytes(shard(big).read_bytes()[:8], "little")
    for offset in (20, start + 1500, start + 3000 + 1500):
        flip(shard(big), offset)
        assert fingerprint(str(big)) != before
        flip(shard(big), offset)
        assert fingerprint(str(big)) == before
    flip(shard(big), start + 1400)
    assert fingerprint(str(big)) == before


def test_a_file_without_a_header(big: Path) -> None:
    """Of other formats the first and last bytes, and blocks at even distances."""
    other = big / "pytorch_model.bin"
    other.write_bytes(os.urandom(20_000))
    before = fingerprint(str(big))
    for offset in (0, 63, 20_000 - 64, 19_999):
        flip(other, offset)
        assert fingerprint(str(big)) != before
        flip(other, offset)
    assert fingerprint(str(big)) == before


def test_headers_that_make_no_sense(big: Path) -> None:
    seen = set()
    for text in (b"", b"[]", b"{", b'{"a": 1}', b'{"a": {"data_offsets": [5]}}', b"[" * 900):
        shard(big).write_bytes(struct.pack("<Q", len(text)) + text + bytes(5000))
        seen.add(fingerprint(str(big)))
    shard(big).write_bytes(b"\xff" * 5000)  # it claims a header of 16 EiB
    seen.add(fingerprint(str(big)))
    assert len(seen) == 7
    assert all(is_known(word) for word in seen)


def test_more_tensors_than_are_sampled(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "TENSORS_MAX", 4)
    before = fingerprint(str(big))
    data = shard(big).read_bytes()
    shard(big).write_bytes(data[:-6000] + bytes(6000))  # the last two of four tensors
    assert fingerprint(str(big)) != before


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "modeling_x.py"])
def test_settings_count(model: Path, name: str) -> None:
    before = fingerprint(str(model))
    (model / name).write_text('{"num_hidden_layers": 3}')
    assert fingerprint(str(model)) != before


def test_tokenizers_do_not_count(model: Path) -> None:
    before = fingerprint(str(model))
    for name in ("tokenizer.json", "generation_config.json", "README.md"):
        (model / name).write_text("[1]")
    assert fingerprint(str(model)) == before


def test_missing_and_added_files(model: Path) -> None:
    seen = {fingerprint(str(model))}
    data = shard(model).read_bytes()
    shard(model).unlink()
    seen.add(fingerprint(str(model)))
    shard(model).write_bytes(data[:-1])
    seen.add(fingerprint(str(model)))
    shard(model).unlink()
    shard(model).symlink_to("nowhere")
    seen.add(fingerprint(str(model)))
    shard(model).unlink()
    shard(model).with_name("model-00003-of-00002.safetensors").write_bytes(data)
    seen.add(fingerprint(str(model)))
    assert len(seen) == 5


def test_weights_one_level_below(tmp_path: Path) -> None:
    below = tmp_path / "model" / "weights"
    below.mkdir(parents=True)
    write_safetensors(below / "a.safetensors", {"a": bytes(100)})
    before = fingerprint(str(tmp_path / "model"))
    assert is_known(before)
    flip(below / "a.safetensors", 90)
    assert fingerprint(str(tmp_path / "model")) != before


def test_a_single_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(1000))
    before = fingerprint(str(file))
    assert is_known(before)
    flip(file, 500)
    assert fingerprint(str(file)) != before


@pytest.fixture
def snapshot(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model as the hub's client keeps it: links into blobs, a branch, a commit."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    home = tmp_path / "hf" / "hub" / "models--org--name"
    snapshot = home / "snapshots" / COMMIT
    for place in (snapshot, home / "blobs", home / "refs"):
        place.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        shutil.copy(file, home / "blobs" / f"{number}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    (home / "refs" / "main").write_text(COMMIT)
    (home / "refs" / "v1").write_text(COMMIT)
    return snapshot


def test_a_snapshot_of_the_hub(snapshot: Path, model: Path) -> None:
    word = fingerprint("org/name")
    assert word.startswith(COMMIT)
    assert word == fingerprint("org/name", "v1") == fingerprint("org/name", COMMIT)
    assert word == fingerprint(str(snapshot)) == fingerprint("org/name:Q4_K_M")
    assert word == fingerprint("org/name", cache_dir=str(snapshot.parents[2]))
    assert word.partition("-")[2] == fingerprint(str(model)).partition("-")[2]
    assert hub_place(str(snapshot)) == ("org/name", COMMIT)
    assert hub_place(str(model)) == ("", "")


def test_a_snapshot_that_somebody_changed(snapshot: Path) -> None:
    before = fingerprint("org/name")
    flip(shard(snapshot).resolve(), 900)
    assert fingerprint("org/name") != before


def test_other_revisions_are_others(snapshot: Path) -> None:
    unknown = fingerprint("org/name", "v2")
    assert not is_known(unknown)
    other = snapshot.with_name(COMMIT[::-1])
    shutil.copytree(snapshot, other, symlinks=True)
    (snapshot.parents[1] / "refs" / "v2").write_text(other.name)
    moved = fingerprint("org/name", "v2")
    assert is_known(moved)
    assert moved != fingerprint("org/name")


@pytest.mark.parametrize(
    "name",
    ["", "org/none", "s3://bucket/model", "a/b/c", "..", "x\0y", "\udcff", "/nowhere/at all"],
)
def test_nothing_to_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    word = fingerprint(name)
    assert not is_known(word)
    assert word == fingerprint(name)
    assert word != fingerprint(name, "other")


def test_a_big_model_is_read_in_few_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 GB of sparse files: what is read is bounded, whatever their size."""
    read = []
    real = os.pread

    def counted(descriptor: int, length: int, offset: int) -> bytes:
        data = real(descriptor, length, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    for number in range(20):
        path = tmp_path / f"model-{number:05}.safetensors"
        write_safetensors(path, {})
        header = {
            str(i): {"dtype": "U8", "shape": [1 << 25], "data_offsets": [i << 25, (i + 1) << 25]}
            for i in range(150)
        }
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(path, 8 + len(text) + (150 << 25))
    before = fingerprint(str(tmp_path))
    assert len(read) < 4000
    assert sum(read) < 16 << 20
    with (tmp_path / "model-00003.safetensors").open("r+b") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        file.seek(start + (70 << 25))
        file.write(b"\1" * (1 << 25))  # a tensor or its neighbour: every other one is sampled
        file.write(b"\1" * (1 << 25))
    assert fingerprint(str(tmp_path)) != before
