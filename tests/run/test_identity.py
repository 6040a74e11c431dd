"""Settings that a recipe got later leave the runs that were made before them where they are."""

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.digest import canonical_json, sha256_hex
from headrace.run.settings import RecipeSettings


def digest_of(settings: RecipeSettings) -> str:
    return sha256_hex(canonical_json(settings.identity_settings()))[:16]


@pytest.mark.parametrize(
    ("more", "digest"),
    [
        ({}, "0068ed6bcd12288e"),
        ({"duplicates": "drop"}, "5980c2059eecacfd"),
        ({"content": ["a"]}, "c3f1dcd4c1db1342"),
        ({"exclude_ngram": 5}, "0068ed6bcd12288e"),
    ],
)
def test_rewrites_are_the_runs_that_they_were(
    tmp_path: Path, more: dict[str, Any], digest: str
) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")

    assert digest == digest_of(headrace.Rewrite(source=tmp_path, **more))


@pytest.mark.parametrize(
    "recipe", [headrace.TemporalSplit, headrace.PackedSequences, headrace.Series, headrace.Rewrite]
)
def test_what_came_later_is_a_setting_with_a_default(recipe: type[RecipeSettings]) -> None:
    fields = recipe.model_fields
    for name in (name for group in recipe.later for name in group):
        assert not fields[name].is_required()
