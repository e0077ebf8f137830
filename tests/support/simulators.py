"""Caches of equal objects as their papers describe them, in few lines: what tests compare the index
with. Nothing here is quick, and nothing is shared with what is tested.

ARC: Megiddo, Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST'03, figure 4.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

__all__ = ["SIMULATORS", "block_hits", "prefix_hits"]

Access = Callable[[bytes], bool]


def lru(capacity: int) -> Access:
    """The least recently used one goes."""
    there: OrderedDict[bytes, None] = OrderedDict()

    def access(key: bytes) -> bool:
        hit = key in there
        there[key] = None
        there.move_to_end(key)
        if len(there) > capacity:
            there.popitem(last=False)
        return hit

    return access


def fifo(capacity: int) -> Access:
    """The oldest one goes."""
    there: OrderedDict[bytes, None] = OrderedDict()

    def access(key: bytes) -> bool:
        hit = key in there
        there.setdefault(key)
        if len(there) > capacity:
            there.popitem(last=False)
        return hit

    return access


def lfu(capacity: int) -> Access:
    """The least frequently used one goes, of those the least recently used one."""
    counts: dict[bytes, int] = {}
    by_count: dict[int, OrderedDict[bytes, None]] = {}
    least = 1

    def access(key: bytes) -> bool:
        nonlocal least
        hit = key in counts
        if hit:
            del by_count[counts[key]][key]
            least += least == counts[key] and not by_count[least]
        else:
            if len(counts) >= capacity:
                del counts[by_count[least].popitem(last=False)[0]]
            least = 1
        counts[key] = counts.get(key, 0) + 1
        by_count.setdefault(counts[key], OrderedDict())[key] = None
        return hit

    return access


def arc(capacity: int) -> Access:
    """Between recency (t1) and frequency (t2), by what of the evicted (b1, b2) is wanted again."""
    t1: OrderedDict[bytes, None] = OrderedDict()
    t2: OrderedDict[bytes, None] = OrderedDict()
    b1: OrderedDict[bytes, None] = OrderedDict()
    b2: OrderedDict[bytes, None] = OrderedDict()
    target = 0.0

    def make_room(key: bytes) -> None:
        if t1 and (len(t1) > target or (key in b2 and len(t1) == target)):
            b1[t1.popitem(last=False)[0]] = None
        else:
            b2[t2.popitem(last=False)[0]] = None

    def access(key: bytes) -> bool:
        nonlocal target
        if key in t1 or key in t2:
            t1.pop(key, None)
            t2[key] = None
            t2.move_to_end(key)
            return True
        if key in b1:
            target = min(capacity, target + max(1.0, len(b2) / len(b1)))
            make_room(key)
            del b1[key]
            t2[key] = None
            return False
        if key in b2:
            target = max(0.0, target - max(1.0, len(b1) / len(b2)))
            make_room(key)
            del b2[key]
            t2[key] = None
            return False
        if len(t1) + len(b1) == capacity:
            if len(t1) < capacity:
                b1.popitem(last=False)
                make_room(key)
            else:
                t1.popitem(last=False)
        elif len(t1) + len(t2) + len(b1) + len(b2) >= capacity:
            if len(t1) + len(t2) + len(b1) + len(b2) == 2 * capacity:
                b2.popitem(last=False)
            if len(t1) + len(t2) >= capacity:
                make_room(key)
        t1[key] = None
        return False

    return access


SIMULATORS = {"LRU": lru, "FIFO": fifo, "LFU": lfu, "ARC": arc}


def block_hits(access: Access, requests: Iterable[list[bytes]]) -> int:
    """How many keys were there, each request from its first key to its last one."""
    return sum(access(key) for keys in requests for key in keys)


def prefix_hits(access: Access, requests: Iterable[list[bytes]]) -> int:
    """How many keys were there in an unbroken run from the first one of each request."""
    total = 0
    for keys in requests:
        found = [access(key) for key in keys]
        total += found.index(False) if False in found else len(found)
    return total
