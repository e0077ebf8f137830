"""The fingerprint of a model's weights: short, quick, and the same wherever the same files lie.

    fingerprint("/models/tiny")          -> "files-<32 hex digits>"
    fingerprint("org/name", "v1.1")      -> "<commit>-<32 hex digits>", from the local hub cache

Two engines may share KV only if they run the same weights, and the name of a model does not say
so: a directory is trained on, a branch moves. So the fingerprint is of what the files hold. Where
they lie, when they were written and who owns them do not enter it, so machines that have copies of
the same files agree.

What enters it: of every weights file at the top of the directory (``*.safetensors``, ``*.bin``,
``*.pt``, ``*.pth``, ``*.gguf``; one level below if there is none at the top, and in the folder of
an adapter) its name, its size and content as below; and the whole content of the configuration
files that change what a model computes (``config.json``, ``params.json``, quantisation and
processor files, indexes of shards, ``*.py``). Tokenizer and generation settings do not enter it: KV
is a function of token ids.

What is guaranteed. Let the weights files have `WHOLE_BYTES` in all or less: then every byte counts.
Else a file of up to `SMALL_BYTES` counts whole, and of a larger one these bytes count:

- a safetensors file: its header (names, types, shapes, offsets of all tensors), and `BLOCK_BYTES`
  out of the middle of every tensor, as long as there are at most `TENSORS_MAX` in the model; of
  more tensors, as many at even distances. Training, merging an adapter or quantising changes whole
  tensors, so a model in which any of the sampled tensors was changed that way is another one.
- any other file: its first and last `EDGE_BYTES`. The end of a ``torch.save`` file is a zip
  directory with a CRC-32 of every tensor.
- of both, `SPREAD_MAX` blocks at even distances over all such files.

So a change of a few bytes somewhere in a big file, by a failing disk or an attacker, may go unseen.
It needs a few thousand small reads whatever the size of the model, asked of the disk all at once.

Nothing here raises for odd input, and nothing asks a network: what cannot be read is written down
as unreadable, and a model of which nothing can be read has the fingerprint ``unknown-...`` of its
name and revision (`is_known`). An adapter tells its user then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvferry.base.threads import Workers

__all__ = ["files_of", "fingerprint", "hub_place", "is_known", "place_of"]

WHOLE_BYTES = 256 << 20
SMALL_BYTES = 64 << 10
BLOCK_BYTES = 2048
EDGE_BYTES = 64 << 10
TENSORS_MAX = 2048
SPREAD_MAX = 256
_PIECE_BYTES = 4 << 20  # what is longer is hashed in pieces, by as many threads as there are cores
_HEADER_BYTES_MAX = 64 << 20
_CONFIG_BYTES_MAX = 16 << 20
_FILES_MAX = 4096

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SETTINGS = re.compile(
    r"(config|params|adapter_config|(hf_)?quant(ize|ization)?_config"
    r"|(video_)?(pre)?processor_config|.*\.index)\.json|.*\.py"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def fingerprint(model: str, revision: str | None = None, *, cache_dir: str | None = None) -> str:
    """Say in one word which weights a model has; see the head of this module.

    Args:
        model: A directory, a file, or the name of a model on the hub.
        revision: Branch, tag or commit on the hub. Files have none.
        cache_dir: Where the hub's files are; else as the hub's own client finds it.
    """
    name, wanted = str(model), str(revision or "main")
    if not name:
        return _unknown(name, wanted)
    try:
        place = place_of(name, wanted, cache_dir)
        if place is None:
            return _unknown(name, wanted)
        commit = hub_place(str(place))[1]
        files = files_of(place)
        if not files:
            return f"{commit}-none" if commit else _unknown(name, wanted)
        return f"{commit or 'files'}-{_digest(files, place if place.is_dir() else place.parent)}"
    except (OSError, ValueError):  # e.g. a name with a NUL, a directory that may not be listed
        return _unknown(name, wanted)


def place_of(model: str, revision: str = "main", cache_dir: str | None = None) -> Path | None:
    """The directory or file of a model: its own, or the snapshot in the hub's cache; None: neither.

    Raises:
        OSError, ValueError: It cannot be looked for.
    """
    place = Path(model)
    if place.is_file() or place.is_dir():
        return place
    return _hub_snapshot(model, revision, cache_dir)


def is_known(word: str) -> bool:
    """Whether a fingerprint is of content, and not only of a name."""
    return not word.startswith("unknown-")


def hub_place(directory: str) -> tuple[str, str]:
    """The model's name on the hub and its commit, if a directory is a snapshot in a hub's cache;
    else two empty texts."""
    place = Path(directory).absolute()
    model = place.parent.parent.name
    in_cache = place.parent.name == "snapshots" and model.startswith("models--")
    if not in_cache or not _COMMIT.fullmatch(place.name):
        return "", ""
    return model.removeprefix("models--").replace("--", "/"), place.name


def _unknown(name: str, revision: str) -> str:
    text = f"{name}\0{revision}".encode(errors="surrogatepass")
    return f"unknown-{hashlib.sha256(text).hexdigest()[:32]}"


# --- Where the files are ---


def _hub_snapshot(name: str, revision: str, cache_dir: str | None) -> Path | None:
    repository = name.partition(":")[0].strip("/")  # behind a colon: which GGUF file
    if not repository or repository.count("/") > 1:
        return None
    home = _hub_cache(cache_dir) / f"models--{repository.replace('/', '--')}"
    commit = revision
    if not _COMMIT.fullmatch(revision):
        try:
            commit = (home / "refs" / revision).read_text().strip()
        except (OSError, ValueError):
            return None
    snapshot = home / "snapshots" / commit
    return snapshot if _COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def _hub_cache(cache_dir: str | None) -> Path:
    for place in (cache_dir, os.getenv("HF_HUB_CACHE"), os.getenv("HUGGINGFACE_HUB_CACHE")):
        if place:
            return Path(place).expanduser()
    home = os.getenv("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    cache = os.getenv("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def files_of(place: Path) -> list[Path]:
    """What counts in a directory, sorted by its name there; a file counts itself.

    Raises:
        OSError: It may not be listed.
    """
    if not place.is_dir():
        return [place]
    top = sorted(place.iterdir())
    weights = [path for path in top if path.suffix in _WEIGHTS and not path.is_dir()]
    if not weights or any(path.name.startswith("adapter_") for path in top):
        below = (path for path in place.glob("*/*") if path.suffix in _WEIGHTS)
        weights = sorted([*weights, *(path for path in below if not path.is_dir())])
    settings = [path for path in top if _SETTINGS.fullmatch(path.name) and not path.is_dir()]
    return sorted({*weights[:_FILES_MAX], *settings[:_FILES_MAX]})


# --- What they hold ---


@dataclass
class _File:
    """A file that counts; `descriptor` is -1 when it cannot be read."""

    name: str
    size: int
    descriptor: int
    is_weights: bool
    is_safetensors: bool

    def read(self, offset: int, length: int) -> bytes:
        if self.descriptor < 0:
            return b""
        try:
            return os.pread(self.descriptor, max(0, length), offset)
        except OSError:
            return b""


def _digest(paths: Sequence[Path], place: Path) -> str:
    files = [_opened(path, place) for path in paths]
    try:
        return _digest_of(files)
    finally:
        for file in files:
            if file.descriptor >= 0:
                os.close(file.descriptor)


def _opened(path: Path, place: Path) -> _File:
    name, weights = path.relative_to(place).as_posix(), path.suffix in _WEIGHTS
    size = descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        size = os.fstat(descriptor).st_size
    except OSError:
        pass
    return _File(name, size, descriptor, weights, path.suffix == ".safetensors")


def _digest_of(files: Sequence[_File]) -> str:
    total = sum(file.size for file in files if file.is_weights and file.size > 0)
    limit = WHOLE_BYTES if total <= WHOLE_BYTES else SMALL_BYTES
    sampled: list[_File] = []
    spans: list[tuple[_File, int, int]] = []
    for file in files:
        if file.size <= (limit if file.is_weights else _CONFIG_BYTES_MAX):
            spans.append((file, 0, file.size))
        else:
            sampled.append(file)
            spans += [(file, *span) for span in _edges(file)]
    spans += _tensors(sampled)
    spans += _spread(sampled)
    for file, offset, length in spans:  # the disk looks for all of them at once
        if file.descriptor >= 0 and length > 0:
            _will_need(file, offset, length)
    state = hashlib.sha256()
    for file in files:
        readable = "" if file.descriptor >= 0 else " unreadable"
        state.update(f"{len(file.name)} {file.name} {file.size}{readable}\n".encode())
    long = [piece for span in spans if span[2] > _PIECE_BYTES for piece in _pieces(*span)]
    with Workers(min(8, os.cpu_count() or 1), "weights") as pool:
        digests = iter(list(pool.map(_hash_piece, long)))
    for file, offset, length in spans:
        if length > _PIECE_BYTES:
            parts = [next(digests) for _ in _pieces(file, offset, length)]
        else:
            parts = [file.read(offset, length)]
        state.update(f"{len(parts)} {sum(map(len, parts))}@{offset}\n".encode())
        for part in parts:
            state.update(part)
    return state.hexdigest()[:32]


def _pieces(file: _File, offset: int, length: int) -> Iterator[tuple[_File, int, int]]:
    for start in range(offset, offset + length, _PIECE_BYTES):
        yield file, start, min(_PIECE_BYTES, offset + length - start)


def _hash_piece(piece: tuple[_File, int, int]) -> bytes:
    file, offset, length = piece
    return hashlib.sha256(file.read(offset, length)).digest()


def _will_need(file: _File, offset: int, length: int) -> None:
    with contextlib.suppress(OSError):
        os.posix_fadvise(file.descriptor, offset, length, os.POSIX_FADV_WILLNEED)


def _edges(file: _File) -> Iterator[tuple[int, int]]:
    if file.is_safetensors:
        yield 0, _header_bytes(file)
        return
    yield 0, EDGE_BYTES
    yield max(0, file.size - EDGE_BYTES), EDGE_BYTES


def _header_bytes(file: _File) -> int:
    told = 8 + int.from_bytes(file.read(0, 8), "little")
    return told if told <= min(_HEADER_BYTES_MAX, file.size) else EDGE_BYTES


def _tensors(files: Sequence[_File]) -> list[tuple[_File, int, int]]:
    """A block out of the middle of each tensor, or of as many as may be read."""
    spans = []
    for file in files:
        if file.is_safetensors:
            length = _header_bytes(file)
            for start, end in _tensor_ranges(file.read(8, length - 8)):
                if 0 <= start < end and length + end <= file.size:
                    offset = max(start, (start + end - BLOCK_BYTES) // 2)
                    spans.append((file, length + offset, min(BLOCK_BYTES, end - offset)))
    if len(spans) <= TENSORS_MAX:
        return spans
    return [spans[i * len(spans) // TENSORS_MAX] for i in range(TENSORS_MAX)]


def _tensor_ranges(header: bytes) -> list[tuple[int, int]]:
    try:
        tensors = json.loads(header)
        ranges = [
            (int(info["data_offsets"][0]), int(info["data_offsets"][1]))
            for name, info in tensors.items()
            if name != "__metadata__"
        ]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return []  # no header: the blocks at even distances have to do
    return sorted(ranges)


def _spread(files: Sequence[_File]) -> Iterator[tuple[_File, int, int]]:
    """Blocks at even distances over the files, as if they were one."""
    total = sum(file.size for file in files)
    step = max(BLOCK_BYTES, total // SPREAD_MAX)
    for file in files:
        for offset in range(0, file.size, step):
            yield file, offset, BLOCK_BYTES
        yield file, max(0, file.size - BLOCK_BYTES), BLOCK_BYTES
