"""NIXL's agent of this process: memory that others may read, and reads of theirs, over UCX.

    agent = NixlAgent()                        # raises NixlMissing where the wheel is not installed
    agent.lend(address, size_bytes, owner)     # others may read that
    peer = agent.meet(connection, metadata)    # of another process's agent
    sums = agent.read(peer, [(address, target)], until)

A read goes into memory of the agent, and is copied from there. UCX cannot take a read back: one
that was given up while the peer hung has written its bytes when the peer went on, into memory that
was no longer meant for them. So no page of a cache is ever the target of a read: what comes late
goes into memory that nobody looks at, which is used again when NIXL says that the read has ended.
What is summed is what was copied.

Which transports are used is UCX's business: UCX_TLS and its other variables are the user's.

Threads: any; NIXL is called by one at a time, without the GIL. Not for a forked child.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import mmap
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from kvferry import _native
from kvferry.base.errors import UnavailableError
from kvferry.client.pure.connection import Connection
from kvferry.connectors.one_sided.agent import READ_BYTES_MAX

__all__ = ["NixlAgent", "NixlMissing"]

_SLOTS = 4
_LOOK_MIN_S, _LOOK_MAX_S = 0.0001, 0.002
# Withdrawn memory stays mapped for so long, for reads that began before; leases are shorter.
_MAPPED_S = 60.0


class NixlMissing(Exception):
    """NIXL cannot be used in this process; the text says why."""


class _Slot:
    """Memory that reads go into, and a read that was given up and has not ended."""

    def __init__(self, memory: memoryview, address: int) -> None:
        self.memory = memory
        self.address = address
        self.handle: Any = None
        self.peer: str | bytes = b""


class NixlAgent:
    """See the module, and `Agent`.

    Raises:
        NixlMissing: The wheel is not installed, or UCX does not start.
    """

    way = "over NIXL"
    near = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: dict[int, tuple[Any, object]] = {}  # by address
        self._kept: list[tuple[float, object]] = []
        try:
            api = importlib.import_module("nixl._api")
            for handler in logging.getLogger("nixl").handlers:  # stdout is for data
                if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
                    handler.setStream(sys.stderr)
            name = f"kvferry-{secrets.token_hex(8)}"
            self._agent: Any = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
            self._memory = mmap.mmap(-1, _SLOTS * READ_BYTES_MAX)
            whole = memoryview(self._memory)
            start = _address(whole)
            self._agent.register_memory([(start, len(whole), 0, "")], "DRAM")
        except ImportError as error:
            raise NixlMissing("the package nixl is not installed") from error
        except Exception as error:  # NIXL has types of its own, and a missing plug-in is a KeyError
            raise NixlMissing(f"NIXL does not start: {type(error).__name__}: {error}") from error
        self._free: SimpleQueue[_Slot] = SimpleQueue()
        self._given_up: list[_Slot] = []
        self._in_use: list[_Slot] = []
        self._left: set[str | bytes] = set()  # peers that are to be forgotten
        for at in range(0, len(whole), READ_BYTES_MAX):
            self._free.put(_Slot(whole[at : at + READ_BYTES_MAX], start + at))
        self._told()

    # --- What others may read ---

    def lend(self, address: int, size_bytes: int, owner: object) -> None:
        """See `Agent`."""
        with self._lock, _failing("memory cannot be registered"):
            if address not in self._lent:
                found = self._agent.register_memory([(address, size_bytes, 0, "")], "DRAM")
                self._lent[address] = found, owner
                self._told()

    def withdraw(self, address: int) -> None:
        """See `Agent`. It stays mapped for a while."""
        with self._lock:
            found = self._lent.pop(address, None)
            if found is not None:
                self._agent.deregister_memory(found[0])
                self._kept.append((time.monotonic() + _MAPPED_S, found[1]))
                self._told()

    def sweep(self) -> None:
        """See `Agent`."""
        with self._lock:
            self._kept = [each for each in self._kept if each[0] > time.monotonic()]

    def _told(self) -> None:
        self.metadata: bytes = self._agent.get_agent_metadata()
        self.incarnation = secrets.randbits(62) | 1

    # --- Reading what others lend ---

    def meet(self, connection: Connection, metadata: bytes) -> str | bytes:
        """See `Agent`; its name."""
        self._sweep_reads()
        with self._lock, _failing("the other side's agent is of no use"):
            peer: str | bytes = self._agent.add_remote_agent(metadata)
            self._agent.make_connection(peer)
            self._left.discard(peer)
            return peer

    def forget(self, peer: str | bytes) -> None:
        """See `Agent`; it is forgotten when the reads that were have ended."""
        with self._lock:
            self._left.add(peer)

    def read(
        self, peer: str | bytes, pieces: Sequence[tuple[int, memoryview]], until: float
    ) -> list[int]:
        """See `Agent`."""
        slot = self._slot(peer, until)
        try:
            self._transfer(peer, pieces, slot, until)
            sums, at = [], 0
            for _, target in pieces:
                sums.append(_native.checksum(slot.memory[at : at + len(target)], target))
                at += len(target)
            return sums
        finally:
            with self._lock:
                self._in_use.remove(slot)
                (self._free.put if slot.handle is None else self._given_up.append)(slot)

    def _transfer(
        self,
        peer: str | bytes,
        pieces: Sequence[tuple[int, memoryview]],
        slot: _Slot,
        until: float,
    ) -> None:
        local, remote, at = [], [], 0
        for address, target in pieces:
            local.append((slot.address + at, len(target), 0))
            remote.append((address, len(target), 0))
            at += len(target)
        assert at <= READ_BYTES_MAX
        with self._lock, _failing("a one-sided read failed"):
            here = self._agent.get_xfer_descs(local, "DRAM")
            there = self._agent.get_xfer_descs(remote, "DRAM")
            slot.handle = self._agent.initialize_xfer("READ", here, there, peer)
            state = self._agent.transfer(slot.handle)
        look_s = _LOOK_MIN_S
        while (state := self._state(slot, state)) == "PROC":
            if time.monotonic() >= until:
                raise UnavailableError("a one-sided read did not end in time")
            time.sleep(look_s)
            look_s = min(2 * look_s, _LOOK_MAX_S)
            state = ""
        if state != "DONE":
            raise UnavailableError(f"a one-sided read failed: {state}")

    def _state(self, slot: _Slot, state: str = "") -> str:
        """Of the slot's read: "PROC" while it may write there, "DONE", or what is wrong."""
        with self._lock:
            try:
                state = state or self._agent.check_xfer_state(slot.handle)
                if state != "PROC":
                    self._agent.release_xfer_handle(slot.handle)
            except Exception as error:
                state = type(error).__name__
            if state != "PROC":
                slot.handle = None
        return state

    def _slot(self, peer: str | bytes, until: float) -> _Slot:
        self._sweep_reads()
        try:
            slot = self._free.get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            raise UnavailableError("all memory for one-sided reads is in use") from None
        with self._lock:
            slot.peer = peer
            self._in_use.append(slot)
        return slot

    def _sweep_reads(self) -> None:
        """Take back the memory of reads that were given up and have ended, and forget peers."""
        with self._lock:
            given_up, self._given_up = self._given_up, []
        for slot in given_up:
            ended = self._state(slot) != "PROC"
            with self._lock:
                (self._free.put if ended else self._given_up.append)(slot)
        with self._lock:
            busy = {slot.peer for slot in (*self._given_up, *self._in_use)}
            for peer in self._left - busy:
                self._left.discard(peer)
                with suppress(Exception):  # it is none any more
                    self._agent.remove_remote_agent(peer)


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Whatever NIXL raises is UnavailableError."""
    try:
        yield
    except Exception as error:
        raise UnavailableError(f"{what}: {type(error).__name__}: {error}") from error


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
