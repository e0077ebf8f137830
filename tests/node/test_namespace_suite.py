"""Tests of namespaces (frames, stripes, generations) run against a node."""

from __future__ import annotations

# ruff: noqa: F401
from integration.test_namespace import (
    client,
    test_a_missing_stripe_is_a_miss,
    test_a_striped_value_of_another_length_is_not_taken,
    test_a_value_of_another_identity_is_refused_by_name,
    test_a_value_of_another_length_is_not_taken,
    test_another_identity_is_not_taken,
    test_another_programs_value_is_corrupt_and_goes,
    test_batches_report_each_key_and_the_prefix,
    test_each_cause_of_a_refusal_is_counted_and_named,
    test_every_byte_is_guarded,
    test_exists_and_delete_mean_the_whole_value,
    test_keys_and_prefixes,
    test_mixed_generations_are_a_miss_until_one_is_complete,
    test_pages_are_filled_in_place,
    test_time_to_live_holds_for_every_stripe,
    test_two_writers_of_one_content_agree,
)
