"""Why rows are dropped, in words, for every recipe."""

from __future__ import annotations

REASONS = {
    "null_date": "has no date",
    "unreadable_date": "date cannot be read",
    "null_group": "has no entity",
    "train_entity_after_cutoff": "entity trains, row is from the cutoff on",
    "val_entity_after_cutoff": "entity validates, row is from the cutoff on",
    "missing_label": "has no label",
    "not_sampled": "not in the sample",
    "null_time": "has no time",
    "unreadable_time": "time cannot be read",
    "time_before_1970": "time is before 1970",
    "null_entity": "has no entity",
    "unreadable_entity": "entity is no address or number",
    "null_peer": "has no peer",
    "unreadable_peer": "peer is no address or number",
    "unreadable_value": "value is no finite number",
    "missing_value": "has no value",
    "negative_value": "value is below 0",
    "zero_value": "value is 0",
    "no_split_key": "the conversation key is missing or empty",
    "too_short": "one token has nothing to predict",
    "too_long": "no sequence of the row fits a bin, or its answer would be cut away",
    "sampled_out": "not in the sample",
    "key_in_test": "its conversation key is in test",
    "key_in_valid": "its conversation key is in valid",
    "weight": "left out so that token shares are as the weights",
    "entity_failed": "its entity does not pass",
    "bad_time": "time cannot be read",
    "off_grid": "time is between two steps",
    "duplicate_time": "another row has its time",
    "trimmed": "before the first or behind the last value",
    "not_listed": "its entity was not asked for",
    "bin_without_label": "its bin has no label to train on",
}


def in_words(reason: str) -> str:
    """What a reason means; one that is not known here by its name."""
    from headrace.recipes.packed_sequences.chats.rejects import REASONS as OF_CHATS

    return REASONS.get(reason) or OF_CHATS.get(reason) or reason.replace("_", " ")
