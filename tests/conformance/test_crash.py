"""Writers that are killed at any moment: readers find whole values or none, and no pending."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from kvferry import Status
from kvferry.connectors.file import FileConnector
from support.connectors import space_of

SIZE_BYTES = 700_001
KEYS = 4
KILLS = 25
KILLS_MAX = 20 * KILLS  # where a writer is killed before it got a processor

WRITER = """
import sys, itertools
from kvferry.connectors import Space
from kvferry.connectors.file import FileConnector
path, prefix, identity, size, keys = sys.argv[1:]
size, keys = int(size), int(keys)
store = FileConnector(Space(prefix, bytes.fromhex(identity), size), path)
print("up", flush=True)
for stamp in itertools.count(int.from_bytes(__import__("os").urandom(3))):
    page = stamp.to_bytes(7) * (size // 7)
    store.batch_set([f"k{n}" for n in range(keys)], [page] * keys)
"""


def test_a_killed_writer_leaves_whole_values_or_none(tmp_path: Path) -> None:
    size = SIZE_BYTES // 7 * 7
    space = space_of(size)
    path = tmp_path / "kv"
    arguments = [str(path), space.prefix, space.identity.hex(), str(size), str(KEYS)]
    moments = random.Random(7)
    found = kills = 0
    neighbour = FileConnector(space, path)  # so that nobody who opens it is alone there
    while kills < KILLS or found <= KILLS:
        kills += 1
        assert kills <= KILLS_MAX, "nothing is ever written"
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"up\n"
            time.sleep(moments.uniform(0, 0.03))
            writer.kill()
        with FileConnector(space, path) as store:
            target = bytearray(size)
            for n in range(KEYS):
                status = store.batch_get([f"k{n}"], [target])[0]
                assert status in (Status.OK, Status.MISS)  # a kill loses nothing that was written
                if status is Status.OK:
                    found += 1
                    assert target == target[:7] * (size // 7), "a mixture"
            left = [name.name for name in (path / "tmp").iterdir() if name.suffix != ".owner"]
            assert left == []
            files = sum(file.stat().st_size for file in path.glob("??/*"))
            assert store.usage().used_bytes == files
    neighbour.close()
