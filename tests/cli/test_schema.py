"""The published schema takes what `headrace run` takes, and refuses names and words that it refuses."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from headrace.cli.settings_file import RUN_KEYS, schema_of
from headrace.recipe import recipes

ROOT = Path(__file__).parents[2]
SCHEMA = schema_of(sorted(recipes()))
SPLIT = {
    "recipe": "temporal_split",
    "source": "raw",
    "out": "out",
    "time": "time",
    "entity": "customer",
    "split_date": "2025-01-01",
}
SOUND: list[dict[str, Any]] = [
    SPLIT,
    {
        **SPLIT,
        "source": ["a", "b"],
        "dialect": {"null_values": "NA"},
        "targets": ["x"],
        "types": {"x": "float32"},
        "workers": 2,
    },
    {
        "recipe": "rewrite",
        "source": "raw",
        "columns": None,
        "compression": "zstd",
        "engine": "ray",
        "address": "auto",
    },
    {
        "recipe": "histories",
        "source": "pings",
        "max_row_bytes": "8MiB",
        "dialect": {"time_format": "iso"},
        "memory_limit": 1 << 30,
    },
    {"recipe": "packed_sequences", "blend": "chats.jsonl", "pack_size": 4096},
    {"recipe": "packed_sequences", "blend": [{"name": "a", "path": "a.jsonl", "weight": 2}]},
    {"recipe": "packed_sequences", "blend": {"train": ["a.jsonl"], "test": ["b.jsonl"]}},
    {
        "recipe": "series",
        "source": "timeseries",
        "target": "flow",
        "future_features": "rain",
        "preprocessing_configs": {
            "target": {"strategy": "unified", "pipeline": [{"step": "StandardScaler"}]}
        },
    },
]


def yaml_blocks() -> list[dict[str, Any]]:
    """Every configuration that the documentation shows."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [
        yaml.safe_load(each)
        for page in pages
        for each in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    found = [each for each in blocks if isinstance(each, dict) and "recipe" in each]
    return json.loads(json.dumps(found, default=str))  # dates are text to editors


def problems(record: dict[str, Any]) -> list[str]:
    return [each.message for each in jsonschema.Draft202012Validator(SCHEMA).iter_errors(record)]


def test_it_is_a_schema_that_refers_to_nothing_outside() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(SCHEMA)))

    assert references
    assert all(
        each.startswith("#/$defs/") and each.removeprefix("#/$defs/") in SCHEMA["$defs"]
        for each in references
    )


@pytest.mark.parametrize("record", SOUND, ids=lambda record: record["recipe"])
def test_sound_configurations_are_taken(record: dict[str, Any]) -> None:
    assert [] == problems(record)


def test_every_configuration_of_the_documentation_is_taken() -> None:
    shown = yaml_blocks()

    assert shown
    for record in shown:
        assert [] == problems(record), record


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipe": "temporal_splitt"}, "is not one of"),
        ({"sourc": "raw"}, "'sourc' was unexpected"),
        ({"layout": "shards"}, "is not one of"),
        ({"train_ratio": "much"}, "is not of type 'number'"),
        ({"workers": 0}, "is not valid under any of the given schemas"),
    ],
)
def test_what_a_run_refuses_is_refused(change: dict[str, Any], words: str) -> None:
    assert any(words in each for each in problems({**SPLIT, **change}))


def test_every_setting_of_every_recipe_and_of_the_run_is_known() -> None:
    for name, recipe in recipes().items():
        assert {*recipe.settings().model_fields, "recipe", *RUN_KEYS} == set(
            SCHEMA["$defs"][name]["properties"]
        )
