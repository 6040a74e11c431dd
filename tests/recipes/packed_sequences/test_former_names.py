"""One vocabulary for all recipes: the former names and words are taken for one release, with a warning."""

from pathlib import Path
from typing import Any

import pytest

from headrace import PackedSequences
from headrace.errors import SettingsError


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ({"train_ratio": 0.9, "valid_ratio": 0.09}, {"train_ratio": 0.9, "val_ratio": 0.09}),
        ({"split_key": "task"}, {"entity": "task"}),
        ({"special_text": "reject"}, {"special_text": "drop"}),
        ({"nothing_trained": "reject"}, {"nothing_trained": "drop"}),
    ],
)
def test_former_names_mean_the_same_and_warn(former: dict[str, Any], now: dict[str, Any]) -> None:
    name, word = list(now.items())[-1]
    with pytest.warns(FutureWarning, match=f"is now '{word if name in former else name}'"):
        found = PackedSequences(blend="a.jsonl", **former)

    assert PackedSequences(blend="a.jsonl", **now) == found


def test_val_and_valid_are_one_split_of_a_blend(tmp_path: Path) -> None:
    train, held = [{"name": "a", "path": "a.jsonl"}], [{"name": "b", "path": "b.jsonl"}]
    by_val = PackedSequences(blend={"train": train, "val": held})

    assert by_val == PackedSequences(blend={"train": train, "valid": held})
    assert ["train", "valid"] == by_val.asked_splits
    (tmp_path / "blend.json").write_text('{"val": [{"name": "b", "path": "b.jsonl"}]}')
    (source,) = PackedSequences(blend=tmp_path / "blend.json").blend.valid
    assert (tmp_path / "b.jsonl",) == source.path
    with pytest.raises(SettingsError, match="both val and valid"):
        PackedSequences(blend={"train": train, "val": held, "valid": held})
