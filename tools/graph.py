"""graph: the ways round in a graph of files that lead to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

__all__ = ["ways_round"]

T = TypeVar("T")


def ways_round(leads: Mapping[T, Sequence[T]]) -> Iterator[list[T]]:
    """Yield circles, each from its first step back to it; none if there is none."""
    done: set[T] = set()
    for start in leads:
        if way := _round_trip(start, leads, done, []):
            yield way


def _round_trip(step: T, leads: Mapping[T, Sequence[T]], done: set[T], way: list[T]) -> list[T]:
    """The first circle that `step` leads into; empty: none that was not found before."""
    if step in way:
        return [*way[way.index(step) :], step]
    if step in done:
        return []
    done.add(step)
    return next(
        (found for to in leads[step] if (found := _round_trip(to, leads, done, [*way, step]))), []
    )
