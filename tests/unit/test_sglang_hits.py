"""How long a prefix several pools can restore together."""

from __future__ import annotations

import pytest

from kvferry.integrations.sglang.hits import PoolNeed, restorable_prefixes

YES, NO = True, False


def test_the_main_pool_alone_restores_every_length() -> None:
    assert restorable_prefixes(3, []) == ([1, 2, 3], {})
    assert restorable_prefixes(0, [PoolNeed("indexer", "all_pages", [])]) == ([], {})


def test_all_pages_ends_at_the_first_hole() -> None:
    need = PoolNeed("indexer", "all_pages", [YES, YES, NO, YES])
    assert restorable_prefixes(4, [need]) == ([1, 2], {"indexer": 2})


def test_trailing_pages_leaves_holes_between_lengths() -> None:
    need = PoolNeed("mamba", "trailing_pages", [NO, YES, NO, NO, YES])
    assert restorable_prefixes(5, [need]) == ([2, 5], {"mamba": 5})


def test_a_window_must_be_whole_and_a_short_prefix_has_a_short_one() -> None:
    need = PoolNeed("swa", "trailing_pages", [YES, YES, NO, YES, YES, YES], trailing=3)
    assert restorable_prefixes(6, [need]) == ([1, 2, 6], {"swa": 6})


def test_pools_have_to_agree_on_a_length() -> None:
    window = PoolNeed("swa", "trailing_pages", [NO, YES, NO, YES], trailing=1)
    indexer = PoolNeed("indexer", "all_pages", [YES, YES, YES, NO])
    assert restorable_prefixes(4, [window, indexer]) == ([2], {"swa": 4, "indexer": 3})


@pytest.mark.parametrize(
    ("pages", "covered"),
    [([YES] * 4, 8), ([YES, YES, YES, NO], 4), ([NO, YES, YES, YES], 0), ([YES] * 5, 8)],
)
def test_block_groups_tell_what_they_cover_and_gate_nothing(
    pages: list[bool], covered: int
) -> None:
    need = PoolNeed("c4", "block_groups", pages, block_pages=4, group_pages=2)
    lengths, longest = restorable_prefixes(9, [need])
    assert lengths == list(range(1, 10))
    assert longest == ({"c4": covered} if covered else {})


def test_a_policy_nobody_knows_allows_nothing() -> None:
    assert restorable_prefixes(3, [PoolNeed("new", "odd_pages", [YES] * 3)]) == ([], {})


def test_too_few_pages_are_pages_that_are_not_there() -> None:
    assert restorable_prefixes(3, [PoolNeed("indexer", "all_pages", [YES])]) == (
        [1],
        {"indexer": 1},
    )
