"""A hostile cluster: one socket that is as many nodes as it likes, one for each loopback address.

    with Crowd(nodes=1000) as crowd:                # CLUSTER SLOTS names a thousand
    with Crowd(redirect=crowd_address) as crowd:    # every GET is MOVED somewhere else

It serves any number of connections from one thread, and counts them.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Self

from support.resp import bulk
from support.scripted import Close, Command, Connection, MiniStore

SLOTS = 16384
CLOSE_TIMEOUT_S = 20.0


def loopback(index: int) -> str:
    """One of sixteen million addresses of this host."""
    return f"127.{1 + index // 65536 % 200}.{index // 256 % 256}.{index % 256}"


class Crowd:
    """See the module.

    Args:
        nodes: How many the map names; each has its share of the slots.
        redirect: What a GET is answered with, given the number of the answer; None: honestly.
        slots: The reply to CLUSTER SLOTS instead of that of ``nodes``.
    """

    def __init__(
        self,
        nodes: int = 1,
        redirect: Callable[[int], bytes] | None = None,
        slots: bytes | None = None,
    ) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.connections = self.most_at_once = 0
        self._open = 0
        self._nodes, self._redirect, self._slots = nodes, redirect, slots
        self._answers = itertools.count()
        self._store = MiniStore()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._accept, "0.0.0.0", 0, backlog=4096)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(CLOSE_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        self._loop.close()

    async def _end(self) -> None:
        for listener in self._server.sockets:
            self._loop.remove_reader(listener.fileno())
        await self._turns()  # what was accepted begins to be served, or nobody would close it
        self._server.close()
        served = asyncio.all_tasks() - {asyncio.current_task()}
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)
        for writer in self._writers:  # also of a task that was cancelled before it began
            writer.transport.abort()
        await self._turns()  # and what was closed is

    @staticmethod
    async def _turns() -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self.connections)
        self.connections += 1
        self._open += 1
        self.most_at_once = max(self.most_at_once, self._open)
        try:
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                writer.write(self._answer(Command(words, connection)))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has left, or we close
        finally:
            self._open -= 1
            self._writers.discard(writer)
            writer.transport.abort()  # at once: nobody reads what is left to send

    def _answer(self, command: Command) -> bytes:
        match command.name:
            case b"CLUSTER":
                return self._map() if self._slots is None else self._slots
            case b"GET" if self._redirect is not None:
                return self._redirect(next(self._answers))
            case b"READONLY" | b"ASKING":
                return b"+OK\r\n"
        answer = self._store(command)
        assert answer is None or isinstance(answer, bytes), Close
        return answer or b"-ERR unknown command\r\n"

    def _map(self) -> bytes:
        share = SLOTS // self._nodes
        return slots_reply(
            (index * share, share, loopback(index).encode(), self.port)
            for index in range(self._nodes)
        )


def slots_reply(ranges: Iterable[tuple[int, int, bytes, int]]) -> bytes:
    """CLUSTER SLOTS of (first slot, count, host, port)."""
    entries = [
        b"*3\r\n:%d\r\n:%d\r\n*3\r\n%b:%d\r\n%b"
        % (first, first + count - 1, bulk(host), port, bulk(b"%040d" % first))
        for first, count, host, port in ranges
    ]
    return b"*%d\r\n%b" % (len(entries), b"".join(entries))
