"""Settings that a recipe got later leave the runs that were made before them where they are."""

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.digest import canonical_json, sha256_hex
from headrace.run.settings import RecipeSettings

SPLIT = {
    "source": "raw",
    "time": "day",
    "entity": "who",
    "split_date": "2025-01-01",
    "train_ratio": 0.8,
}
SERIES: dict[str, Any] = {
    "source": "raw",
    "target": "flow",
    "features": ["rain"],
    "preprocessing_configs": {},
}


def digest_of(settings: RecipeSettings) -> str:
    return sha256_hex(canonical_json(settings.identity_settings()))[:16]


@pytest.mark.parametrize(
    ("more", "digest"),
    [
        ({}, "ad24e638312f15e3"),
        ({"gap": "3d"}, "503f29d1fea84a34"),
        ({"label_horizon": "3d"}, "a5b4f3e71ea0b332"),
        ({"duplicates": "drop"}, "8fbdb34b9ffe0e4b"),
        ({"content": ["a"]}, "a599aaea1bd1f8ac"),
        ({"duplicates": "group", "near": 0.8}, "1a9636d021b9a4ee"),
        ({"exclude_ngram": 5}, "ad24e638312f15e3"),
        ({"seed": 7}, "763106ae9a65ac6b"),
    ],
)
def test_splits_are_the_runs_that_they_were(more: dict[str, Any], digest: str) -> None:
    assert digest == digest_of(headrace.TemporalSplit(**SPLIT, **more))


@pytest.mark.parametrize(
    ("more", "digest"),
    [
        ({}, "3dafb9ae2d87332c"),
        ({"duplicates": "drop"}, "4ae8b4da56244b06"),
        ({"seed": 7}, "41d646fcab918c25"),
    ],
)
def test_series_are_the_runs_that_they_were(more: dict[str, Any], digest: str) -> None:
    assert digest == digest_of(headrace.Series(**SERIES, **more))


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
