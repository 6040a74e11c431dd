"""Keys follow from seed and purpose, and JSON has one canonical form."""

import pytest

from headrace.digest import canonical_json, derive_key


def test_derived_keys_differ_by_purpose_and_part() -> None:
    keys = {
        derive_key(1, "a"),
        derive_key(1, "b"),
        derive_key(2, "a"),
        derive_key(1, "a", 0),
        derive_key(1, "a", 1),
    }

    assert len(keys) == 5


def test_canonical_json_refuses_nan() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": float("nan")})
