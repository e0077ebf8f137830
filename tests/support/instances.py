"""Many instances in one process, each with a reporter of its own: for tests of a controller.

    python instances.py '{"first": 0, "count": 64, "chunks": 40000, "pull": "...", "reply": "..."}'

It ends when its standard input does. Every instance holds chunks of its own and the first
`SHARED` chunks that all of them hold. A line on standard output says when it has begun; a line on
standard input that is a number makes that many changes.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterable, Sequence

from kvferry.sharing.membership import (
    Command,
    HeldIdentity,
    MemoryUsage,
    Quota,
    Renewed,
    Reporter,
    Result,
    WorkDone,
)

__all__ = ["SHARED", "held_by"]

SHARED = 32
_IDENTITY = HeldIdentity(bytes(range(16)), "many", 256)


def held_by(number: int, chunks: int) -> bytes:
    """The hashes of an instance: what all hold, then its own."""
    shared = random.Random("shared").randbytes(16 * SHARED)
    return shared + random.Random(number).randbytes(16 * (chunks - SHARED))


class Held:
    """What one instance holds; it does nothing."""

    actions: tuple[str, ...] = ()

    def __init__(self, hashes: bytes) -> None:
        self.hashes = hashes

    quotas: Sequence[Quota] = ()

    def heard(self, renewed: Sequence[Renewed], began: float) -> None:
        """See `Holdings`."""

    def limit(self, quotas: Sequence[Quota]) -> None:
        """See `Holdings`."""

    def identities(self) -> Sequence[HeldIdentity]:
        """See `Holdings`."""
        return (_IDENTITY,)

    def usage(self) -> MemoryUsage:
        """See `Holdings`."""
        return MemoryUsage(1 << 40, len(self.hashes))

    def work(self) -> WorkDone:
        """See `Holdings`."""
        return WorkDone()

    def held(self, identity: bytes) -> Iterable[bytes]:
        """See `Holdings`."""
        return (self.hashes,)

    def obey(self, command: Command) -> Result:
        """See `Holdings`."""
        return Result(command.job, False)


def main() -> None:
    """Run until the end of standard input."""
    asked = json.loads(sys.argv[1])
    reporters = []
    for number in range(asked["first"], asked["first"] + asked["count"]):
        reporter = Reporter(
            Held(held_by(number, asked["chunks"])),
            instance=f"many-{number}",
            pull=asked["pull"],
            reply=asked["reply"],
            address=f"127.0.0.1:{10_000 + number}",
        )
        reporter.start()
        reporters.append(reporter)
    print("begun", flush=True)
    pick = random.Random("changes")
    for line in sys.stdin:
        for _ in range(int(line)):
            fresh = pick.randbytes(16 * 64)
            reporter = pick.choice(reporters)
            reporter.added(_IDENTITY.digest, fresh)
            reporter.removed(_IDENTITY.digest, fresh)
    os._exit(0)  # like an instance that is killed


if __name__ == "__main__":
    main()
