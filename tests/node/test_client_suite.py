"""Tests of the client against real servers, run against a node: those that use its commands."""

from __future__ import annotations

# ruff: noqa: F401
from integration.test_client_raw import (
    client as raw_client,
)
from integration.test_client_raw import (
    test_an_abandoned_batch_does_no_harm,
)
from integration.test_client_values import (
    client,
    test_a_batch_of_every_size,
    test_a_key_may_come_twice,
    test_a_thousand_keys,
    test_buffers_are_let_go,
    test_every_kind_of_memory_is_filled_and_sent,
    test_keys_and_buffers_come_in_any_row,
    test_keys_are_bytes_and_text_is_utf8,
    test_neighbours_are_separate_buffers,
    test_one_source_may_go_to_many_keys,
    test_ping_and_server_info,
    test_prefix_saves_the_transfer,
    test_prefix_stops_at_the_first_hole,
    test_time_to_live,
    test_time_to_live_of_the_settings,
    test_values_of_every_size_come_back,
    test_values_replace_each_other,
    test_what_can_only_be_read_can_be_sent,
)
