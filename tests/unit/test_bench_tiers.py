"""What the bars of the cache and the engine stand on: plain files, checked bytes."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from benchmarks.bars import Lab
from benchmarks.files import SequentialFile
from benchmarks.prompt import FRAME_BYTES, PromptKV
from kvferry.base.errors import CorruptError


@pytest.mark.parametrize("threads", [1, 3])
def test_a_sequential_file_gives_back_what_was_written(tmp_path: Path, threads: int) -> None:
    size = 8192
    memory = [mmap.mmap(-1, 7 * size) for _ in range(2)]
    source, target = (
        [memoryview(one)[at : at + size] for at in range(0, len(one), size)] for one in memory
    )
    for index, block in enumerate(source):
        block[:] = bytes([index + 1]) * size
    with SequentialFile(tmp_path / "file", direct=False, threads=threads) as disk:
        assert disk.write(source) > 0
        assert (tmp_path / "file").read_bytes() == b"".join(source)
        assert disk.read(target) > 0
        assert target == source
        (tmp_path / "file").write_bytes(b"short")
        with pytest.raises(CorruptError):
            disk.read(target)
    assert list(tmp_path.iterdir()) == []


def test_every_byte_of_a_prompt_is_compared() -> None:
    kv = PromptKV(Lab(quick=True))
    assert len(kv.keys) == len(kv.sources) == len(kv.targets) == kv.chunks
    with pytest.raises(CorruptError, match="chunk 0 is wrong"):
        kv.verify(kv.targets)
    for source, target in zip(kv.sources, kv.targets, strict=True):
        target[:] = source
    kv.verify(kv.targets)
    assert kv.frames[3][FRAME_BYTES:] == kv.sources[3]
    kv.targets[3][-1] ^= 1
    with pytest.raises(CorruptError, match="chunk 3 is wrong"):
        kv.verify(kv.targets)
    with pytest.raises(CorruptError, match="7 of 8"):
        kv.verify(kv.targets[1:])
