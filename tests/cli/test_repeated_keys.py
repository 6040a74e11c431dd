"""A key that stands twice in a file of settings, a blend or a chat has no meaning: it is refused where it stands."""

import json
from pathlib import Path

import pytest

from headrace.cli.settings_file import one_setting, read_config
from headrace.errors import InputError, SettingsError
from headrace.packing.blend import blend_of
from headrace.packing.chats.layouts import sample_of
from headrace.packing.chats.reader import BrokenRow, read_rows
from headrace.packing.chats.rejections import RowRejected
from headrace.series.windows.datamodule import SeriesDataModule
from raised import raised
from tables import write_bytes

CONFIGS = {
    "at the top": ("out: a\nseed: 1\nout: b\n", "out", 3),
    "quoted": ('out: a\n"out": b\n', "out", 2),
    "inside": ("x:\n  a: 1\n  b: [{c: 1, c: 2}]\n", "c", 3),
    "JSON": ('{"out": "a",\n "out": "b"}', "out", 2),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_setting_that_stands_twice_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    text, key, line = CONFIGS[name]
    path = tmp_path / "config.yaml"
    path.write_text(text)

    with pytest.raises(SettingsError, match=rf"(?s)the key '{key}' appears twice.*line {line}"):
        read_config(path)
    with pytest.raises(SettingsError, match=rf"(?s)the key '{key}' appears twice.*line {line}"):
        SeriesDataModule(path, out=tmp_path, input_length=1, output_length=1, batch_size=1)
    with raised(SettingsError, setting="settings", remedy="quote it"):
        one_setting("x={a: 1, a: 2}")


def test_merged_mappings_of_yaml_may_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: [*b, *a], x: 3}\n")

    assert {"x": 3, "y": 2} == read_config(path)["c"]


def test_merges_of_merges_do_not_multiply_and_only_mappings_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 30)))  # fmt: skip
    assert {"x": 1} == read_config(path)["a29"]

    path.write_text("a: &a 3\nb: {<<: *a}\n")
    with raised(SettingsError, path=path, remedy="fix the file"):
        read_config(path)


def test_a_blend_holds_a_key_once(tmp_path: Path) -> None:
    path = tmp_path / "blend.json"
    path.write_text('{"datasets": [{"name": "a", "path": "b", "weight": 1, "weight": 2}]}')

    with pytest.raises(InputError, match=r"blend\.json: .*the key 'weight' appears twice"):
        blend_of(path)


ROW = '{"messages": [{"role": "user", "content": "a", "con\\u0074ent": "b"}]}'


@pytest.mark.parametrize("form", ["jsonl", "json", "json objects"])
def test_a_chat_holds_a_key_once(tmp_path: Path, form: str) -> None:
    good = json.dumps({"messages": [{"role": "user", "content": "a"}]})
    text = f"[{good}, {ROW}, {good}]" if form == "json" else f"{good}\n{ROW}\n{good}\n"
    path = write_bytes(tmp_path / f"chats.{form.split()[0]}", text.encode())
    (batch,) = read_rows(path)

    assert [None, "repeated_key", None] == [getattr(row, "reason", None) for row in batch.rows]
    assert isinstance(batch.rows[1], BrokenRow)
    assert "'content' appears twice" in batch.rows[1].detail
    assert batch.where(1).endswith(f"chats.{form.split()[0]}: {batch.unit} 2")


@pytest.mark.parametrize("text", ['[{"role": "user", "role": "assistant", "content": "a"}]', '[{"role": "user", "content": NaN}]'])  # fmt: skip
def test_json_inside_a_text_is_read_strictly(text: str) -> None:
    with pytest.raises(RowRejected, match="appears twice|NaN is not"):
        sample_of({"messages": text})
