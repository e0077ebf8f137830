"""How fast chunks come from a peer's pages over NIXL, against TCP.

    python -m benchmarks.over_nixl [--size-mib 4] [--count 75] [--rounds 4]

A process of its own lends the chunks; here they are read into buffers and checked, in parts of
16 MiB, as a cache asks for them. The two ways take turns. Prints GB/s of each round, medians, and
the median of the ratios. UCX_TLS says what NIXL goes over. Bytes are compared outside of the times.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import sys
import time
from collections.abc import Sequence
from statistics import median

from kvferry.cache.memory import Memory
from kvferry.config import ClientConfig
from kvferry.connectors import Space
from kvferry.connectors.one_sided.nixl_agent import NixlAgent
from kvferry.connectors.one_sided.reads import OneSidedConnector
from kvferry.connectors.peer import PeerConnector
from kvferry.sharing.peers.lending import USER, LendingNode, OneSided
from kvferry_lab.bench.intervals import Interval, in_turn, ratios
from kvferry_lab.bench.programs import python_process

__all__ = ["main"]

_MIB = 1 << 20
_PART_BYTES = 16 * _MIB
_LIMIT_S = 60.0
_IN_FLIGHT_BYTES_MAX = 2 << 30
_WORD = "word"


def _hashes(count: int) -> list[bytes]:
    return [random.Random(index).randbytes(16) for index in range(count)]


def _content(index: int, size: int) -> bytes:
    return random.Random(index).randbytes(4096) * (size // 4096)


def _space(size: int) -> Space:
    return Space("kvf:bench:", bytes(range(16)), size)


def _lend(size: int, count: int) -> None:
    """The owner: lends the chunks until its input ends."""
    memory = Memory.private(size, count * size, "LRU", hugetlb=False, prefault=True)
    reserved = memory.reserve(b"".join(_hashes(count)), 0)
    for index, page in zip(reserved.chunks, memory.views(reserved.handles), strict=True):
        page[:] = _content(index, size)
    memory.commit(reserved.id)
    node = LendingNode("127.0.0.1", [0], _WORD, {}, _IN_FLIGHT_BYTES_MAX)
    space = _space(size)
    node.lend(memory.cache, space.prefix, space.identity, size)
    one_sided = OneSided(NixlAgent(), node)
    one_sided.lend(memory)
    print(node.ports[0], flush=True)
    sys.stdin.read()
    one_sided.withdraw(memory)
    node.stop()


def _read(peer: PeerConnector, keys: Sequence[str], buffers: Sequence[memoryview]) -> float:
    """Read all; seconds."""
    step = max(1, _PART_BYTES // len(buffers[0]))
    began = time.monotonic()
    tickets = [
        peer.submit_get(keys[at : at + step], buffers[at : at + step], timeout_s=_LIMIT_S)
        for at in range(0, len(keys), step)
    ]
    for ticket in tickets:
        result = ticket.wait(_LIMIT_S)
        if result is None or not result.ok:
            raise OSError(f"not everything came: {result}")
    return time.monotonic() - began


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description="Measure reads over NIXL against TCP.")
    parser.add_argument("--size-mib", type=int, default=4, help="of a chunk")
    parser.add_argument("--count", type=int, default=75, help="chunks in each round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--lend", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    size, count = options.size_mib * _MIB, options.count
    if options.lend:
        _lend(size, count)
        return
    words = ["--lend", "--size-mib", options.size_mib, "--count", count]
    with python_process("benchmarks.over_nixl", *words) as owner:
        config = ClientConfig(
            host="127.0.0.1",
            port=int(owner.line()),
            username=USER,
            password=_WORD,
            presence="off",
        )
        over_nixl = OneSidedConnector(_space(size), config, NixlAgent())
        peers = {"tcp": PeerConnector(_space(size), config), "nixl": over_nixl}
        _measure(peers, size, count, options.rounds)
        for peer in peers.values():
            peer.close()


def _measure(peers: dict[str, PeerConnector], size: int, count: int, rounds: int) -> None:
    keys = [digest.hex() for digest in _hashes(count)]
    whole = memoryview(mmap.mmap(-1, count * size))
    buffers = [whole[at : at + size] for at in range(0, count * size, size)]
    _read(peers["nixl"], keys, buffers)
    until = time.monotonic() + _LIMIT_S
    while not peers["nixl"].stats()["one_sided_reads"]:  # it is being met
        if time.monotonic() > until:
            raise OSError("nothing came over NIXL")
        _read(peers["nixl"], keys, buffers)

    def gbps(way: str) -> float:
        whole[:] = bytes(len(whole))
        before = peers["nixl"].stats()["one_sided_bytes"]
        rate = count * size / 1e9 / _read(peers[way], keys, buffers)
        over = peers["nixl"].stats()["one_sided_bytes"] - before
        if over != (count * size if way == "nixl" else 0):
            raise OSError(f"{over} bytes came one-sided in a round of {way}")
        for index, buffer in enumerate(buffers):
            if buffer != _content(index, size):
                raise OSError("bytes that were not lent")
        return rate

    tcp, nixl = in_turn(rounds, lambda: gbps("tcp"), lambda: gbps("nixl"), warm_ups=0)
    for way, rates in (("tcp", tcp), ("nixl", nixl)):
        print(f"{way:5} {median(rates):6.2f} GB/s", *(f"{rate:.2f}" for rate in rates))
    found = Interval.of_median(ratios(nixl, tcp))
    load = os.getloadavg()[0]
    print(f"nixl / tcp {found.middle:.2f}, {found.low:.2f} to {found.high:.2f}; load {load:.0f}")


if __name__ == "__main__":
    main()
