"""A store that trickles: a relay in a process of its own, before a real store.

    with Trickle(port) as trickle:
        trickle.port

Requests and short replies pass at once; what comes in larger pieces, values that is, passes in
drops: whoever asks for one waits for a long time, and is not refused.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from kvferry_lab.bench.programs import LineProcess

__all__ = ["Trickle"]

_HOST = "127.0.0.1"
_PIECE_BYTES = 1 << 16
_SHORT_BYTES = 4096
_DROP_BYTES, _DROP_S = 1024, 0.05


class Trickle(LineProcess):
    """The relay.

    Args:
        port: Of the store on this host.

    Attributes:
        port: Where it is reached.
    """

    def __init__(self, port: int) -> None:
        super().__init__([sys.executable, "-m", __name__, str(port)], name=__name__, stop_s=0.5)
        self.port = int(self.first_line())


async def _relay(store_port: int) -> None:
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_store, to_store = await asyncio.open_connection(_HOST, store_port)
        for task in (_pass(reader, to_store, False), _pass(from_store, writer, True)):
            tasks.add(asyncio.ensure_future(task))

    server = await asyncio.start_server(connected, _HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until our parent ends


async def _pass(source: asyncio.StreamReader, to: asyncio.StreamWriter, in_drops: bool) -> None:
    with suppress(OSError):
        while piece := await source.read(_PIECE_BYTES):
            size = _DROP_BYTES if in_drops and len(piece) > _SHORT_BYTES else len(piece)
            for at in range(0, len(piece), size):
                to.write(piece[at : at + size])
                await to.drain()
                if size < len(piece):
                    await asyncio.sleep(_DROP_S)
    to.close()


if __name__ == "__main__":
    asyncio.run(_relay(int(sys.argv[1])))
