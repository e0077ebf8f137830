"""How long a prefix several pools can restore together, from which of their pages are stored.

A model with more than one kind of state (attention and Mamba, or a sliding window) needs a page of
each at certain places of the prefix. Which places is the pool's policy, by its name in SGLang:

- ``all_pages``: every page of the prefix;
- ``trailing_pages``: the last ones of it, as many as the transfer names;
- ``block_groups``: none; the pool says how many pages its leading complete groups stand for.

A prefix is restorable if every pool with one of the first two policies allows it, which need not
hold for the shorter ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PoolNeed", "restorable_prefixes"]


@dataclass(frozen=True)
class PoolNeed:
    """What is known of one pool.

    Attributes:
        name: Of the pool.
        policy: See the head of this module.
        pages: Whether each page of the prefix is stored; of ``block_groups``, each key of its own.
        trailing: How many pages ``trailing_pages`` needs.
        block_pages: How many pages of the prefix a block stands for (``block_groups``).
        group_pages: How many keys a block has (``block_groups``).
    """

    name: str
    policy: str
    pages: Sequence[bool]
    trailing: int = 1
    block_pages: int = 0
    group_pages: int = 0


def restorable_prefixes(
    kv_pages: int, needs: Sequence[PoolNeed]
) -> tuple[list[int], dict[str, int]]:
    """All lengths that can be restored, and for each pool the longest that it allows by itself.

    Args:
        kv_pages: How many leading pages the KV pool has.
        needs: Of all other pools.

    Returns:
        Lengths in pages, ascending, and by the pool's name the longest, where that is not 0. A
        policy that is not known allows nothing.
    """
    lengths = list(range(1, kv_pages + 1))
    longest: dict[str, int] = {}
    for need in needs:
        if need.policy == "block_groups":
            if covered := min(kv_pages, _groups(need) * need.block_pages):
                longest[need.name] = covered
            continue
        allowed = _allowed(need, kv_pages)
        if allowed:
            longest[need.name] = allowed[-1]
        kept = set(allowed)
        lengths = [length for length in lengths if length in kept]
    return lengths, longest


def _allowed(need: PoolNeed, kv_pages: int) -> list[int]:
    pages = list(need.pages[:kv_pages])
    pages += [False] * (kv_pages - len(pages))
    missing = next((index for index, there in enumerate(pages) if not there), kv_pages)
    if need.policy == "all_pages":
        return list(range(1, missing + 1))
    if need.policy != "trailing_pages":
        return []
    allowed, run = [], 0
    for length, there in enumerate(pages, 1):
        run = run + 1 if there else 0
        if run >= min(max(1, need.trailing), length):
            allowed.append(length)
    return allowed


def _groups(need: PoolNeed) -> int:
    size = need.group_pages
    if size < 1:
        return 0
    whole = len(need.pages) // size
    complete = (all(need.pages[i * size : (i + 1) * size]) for i in range(whole))
    return next((index for index, there in enumerate(complete) if not there), whole)
