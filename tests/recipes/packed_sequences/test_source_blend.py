"""What can be given as a blend, and how it is understood."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace import PackedSequences
from headrace.errors import InputError, SettingsError
from headrace.packing.blend import is_blend_file
from raised import raised


def written(path: Path, record: Any) -> Path:
    path.write_text(json.dumps(record))
    return path


def datasets(blend: Any) -> list[tuple[str, list[str]]]:
    return [
        (source.name, [str(path) for path in source.path])
        for source in PackedSequences(blend=blend).blend.datasets
    ]


def test_a_path_to_data_is_a_blend_of_one_dataset_named_after_it(tmp_path: Path) -> None:
    assert [("chats", ["raw/chats.jsonl.gz"])] == datasets("raw/chats.jsonl.gz")
    assert [("my-chats", ["my chats.parquet", "b.parquet"])] == datasets(
        ["my chats.parquet", "b.parquet"]
    )


def test_a_json_file_is_a_blend_only_if_it_looks_like_one(tmp_path: Path) -> None:
    blend = written(tmp_path / "blend.json", {"datasets": [{"name": "a", "path": "a.jsonl"}]})
    array = written(tmp_path / "array.json", [{"messages": []}])
    row = written(tmp_path / "row.json", {"messages": []})

    assert [True, False, False] == [is_blend_file(path) for path in (blend, array, row)]
    assert "array" == datasets(array)[0][0]


def test_paths_in_a_blend_file_are_relative_to_it(tmp_path: Path) -> None:
    blend = written(
        tmp_path / "blend.json",
        {"datasets": [{"name": "a", "path": ["x/*.jsonl", "/abs/y.jsonl"]}]},
    )

    assert [("a", [str(tmp_path / "x/*.jsonl"), "/abs/y.jsonl"])] == datasets(blend)


def test_other_preparations_text_field_is_a_mapping(tmp_path: Path) -> None:
    source = {
        "name": "a",
        "path": "a.jsonl",
        "weight": 2,
        "text_field": "body",
        "split": None,
        "subset": None,
    }
    blend = written(tmp_path / "blend.json", {"train": [source]})

    (found,) = PackedSequences(blend=blend).blend.train
    assert ({"text": "body"}, 2.0) == (dict(found.mapping), found.weight)


def test_parts_of_hub_data_sets_are_refused_with_what_to_do(tmp_path: Path) -> None:
    blend = written(
        tmp_path / "blend.json", {"datasets": [{"name": "a", "path": "org/a", "split": "train"}]}
    )

    with raised(SettingsError, setting="split", value="train", remedy="download it"):
        PackedSequences(blend=blend)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"datasets": [{"name": "a", "path": "a"}], "train": [{"name": "b", "path": "b"}]},
            "both datasets and train",
        ),
        ({"datasets": [{"name": "a", "path": "a", "weight": 0}]}, "all weights of datasets are 0"),
        ({"datasets": [{"name": "a", "path": "a", "weihgt": 3}]}, "weihgt"),
    ],
)
def test_a_blend_that_cannot_be_meant_is_refused(tmp_path: Path, record: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        PackedSequences(blend=written(tmp_path / "blend.json", record))


def test_a_dataset_that_is_a_text_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "blend.json", {"datasets": ["a.jsonl"]})
    with raised(SettingsError, path=path, setting="datasets", value="a.jsonl"):
        PackedSequences(blend=path)


def test_a_broken_blend_file_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "blend.json"
    path.write_text('{"datasets": [')

    with raised(InputError, path=path, remedy="correct it"):
        PackedSequences(blend=path)
