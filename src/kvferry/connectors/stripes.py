"""The pieces of values that lie in another instance's memory, and reads of many of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvferry.connectors.agent import READ_BYTES_MAX

__all__ = ["Stripe", "grouped", "stripe_extents"]

# As in native/codec/stripe.hpp.
_STRIPE_BYTES, _STRIPE_UNIT = 4 << 20, 4 << 10


class Stripe(NamedTuple):
    """A piece of a value: where it lies there, and where it goes."""

    value: int
    address: int
    target: memoryview


def grouped(stripes: Sequence[Stripe]) -> Iterator[list[Stripe]]:
    """In groups that one read brings."""
    group: list[Stripe] = []
    size = 0
    for stripe in stripes:
        size += len(stripe.target)
        if group and size > READ_BYTES_MAX:
            yield group
            group, size = [], len(stripe.target)
        group.append(stripe)
    if group:
        yield group


def stripe_extents(size_bytes: int) -> list[tuple[int, int]]:
    """Offsets and lengths of the stripes of a value, as native/codec/stripe.hpp has them."""
    count = _divide_up(size_bytes, _STRIPE_BYTES)
    stripe = size_bytes
    if count > 1:
        stripe = _divide_up(_divide_up(size_bytes, count), _STRIPE_UNIT) * _STRIPE_UNIT
    return [(at, min(stripe, size_bytes - at)) for at in range(0, size_bytes, stripe)]


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)
