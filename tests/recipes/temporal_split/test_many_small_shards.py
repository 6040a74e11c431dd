"""A split of many small shards: groups of them are read and written as one, by the same laws."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.errors import InputError
from headrace.formats import grouped
from raised import raised

COUNT = 40


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(grouped, "MANY_SHARDS", 8)
    monkeypatch.setattr(grouped, "_ONE_IN", 6)


def row_of(number):
    return {
        "time": f"2024-{1 + number % 12:02d}-{1 + number % 28:02d}",
        "entity": f"e{number % 11}",
        "value": number / 4,
        "note": f'n"{number}',
    }


def write_shard(path, rows):
    names = list(row_of(0))
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)) + "\n")
        return
    lines = [",".join(names)]
    for row in rows:
        note = row["note"].replace('"', '""')
        lines.append(f'{row["time"]},{row["entity"]},{row["value"]},"{note}"')
    path.write_text("\n".join(lines) + ("\n" if rows and rows[0]["value"] % 1 else ""))


def write_source(directory, ending, count=COUNT):
    directory.mkdir()
    for number in range(count):
        rows = [row_of(number)] * (1 + number % 2)
        write_shard(directory / f"part-{number:04d}.{ending}", rows)
    return directory


def settings_of(source, **options):
    options = {"time": "time", "entity": "entity", "split_date": "2024-09-01", **options}
    return headrace.TemporalSplit(source=str(source), **options)


def rows_by_split(out):
    dataset = headrace.open(out)
    found = {}
    for split in dataset.splits:
        rows = []
        for batch in dataset.stream(split, batch_size=16, batch_format="arrow"):
            rows += pa.table(batch).drop_columns("valid").to_pylist()
        found[split] = rows
    return found


def data_files(out):
    return sorted(
        path
        for path in (out / "splits").resolve().parent.rglob("part-*.*")
        if "training_data" in path.parts
    )


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("options", [{}, {"duplicates": "drop"}, {"columns": ["time", "entity"]}])
def test_groups_give_the_rows_that_single_shards_give(tmp_path, monkeypatch, ending, options):
    source = write_source(tmp_path / "raw", ending)
    settings = settings_of(source, **options)
    prepared = headrace.prepare(settings, tmp_path / "grouped")
    headrace.verify(tmp_path / "grouped")
    monkeypatch.setattr(grouped, "MANY_SHARDS", 1000)
    singly = headrace.prepare(settings, tmp_path / "single")

    assert rows_by_split(tmp_path / "single") == rows_by_split(tmp_path / "grouped")
    assert singly.manifest.dropped == prepared.manifest.dropped
    assert COUNT == prepared.manifest.source["files"]
    assert len(data_files(tmp_path / "grouped")) < len(data_files(tmp_path / "single"))


def test_groups_are_the_same_with_any_number_of_workers(tmp_path):
    settings = settings_of(write_source(tmp_path / "raw", "csv"))
    runs = [headrace.prepare(settings, tmp_path / f"{w}", workers=w).manifest for w in (1, 3)]
    assert runs[0].index_digest == runs[1].index_digest


def test_lineage_names_each_source_shard(tmp_path):
    source = write_source(tmp_path / "raw", "csv")
    headrace.prepare(settings_of(source, lineage="columns"), tmp_path / "out")
    rows = [row for rows in rows_by_split(tmp_path / "out").values() for row in rows]
    assert {path.name for path in source.iterdir()} >= {row["source_shard"] for row in rows}
    assert all(row["source_row"] < 2 for row in rows)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("time,entity,value,note\nnever,e1,1,x\n", {"column": "time", "value": "never"}),
        ("time,entity,value,note\n,e1,1,x\n", {"column": "time"}),
        ("time,entity,value,note\n2024-01-01,,1,x\n", {"column": "entity"}),
        ("time,entity,value,note\n2024-01-01,e1,1\n", {}),
        ('time,entity,value,note\n2024-01-01,e1,1,"x\n', {}),
        ("time,entity,value,note\n2024-01-01,e1,1,x\r2024-01-01,e1,1,x\n", {}),
    ],
)
def test_a_bad_shard_in_a_group_is_named_by_its_own_path(tmp_path, text, fields):
    source = write_source(tmp_path / "raw", "csv")
    bad = source / "part-0017.csv"
    bad.write_text(text)
    with raised(InputError, path=bad, **fields):
        headrace.prepare(
            settings_of(source, bad_rows="error", null_entity="error"), tmp_path / "out"
        )


def test_shards_of_other_forms_in_a_group_are_both_named(tmp_path):
    source = write_source(tmp_path / "raw", "csv")
    (source / "part-0019.csv").write_text("time,entity,value,note\n2024-01-01T00:00:00Z,e1,1,x\n")
    with raised(InputError, column="time") as caught:
        headrace.prepare(settings_of(source), tmp_path / "out")
    assert "part-0019.csv" in str(caught.value)
    assert "of form" in str(caught.value)


def test_a_value_of_another_type_is_named_in_its_own_shard(tmp_path):
    source = write_source(tmp_path / "raw", "csv")
    bad = source / "part-0017.csv"
    bad.write_text("time,entity,value,note\n2024-01-01,e1,odd,x\n")
    with raised(InputError, path=bad, column="value", value="odd"):
        headrace.prepare(settings_of(source, types={"value": "float64"}), tmp_path / "out")


def test_the_first_unreadable_time_is_told_with_its_shard(tmp_path, caplog):
    source = write_source(tmp_path / "raw", "csv")
    (source / "part-0017.csv").write_text("time,entity,value,note\nnever,e1,1,x\n")
    notes = []
    headrace.prepare(settings_of(source, bad_rows="drop"), tmp_path / "out", on_event=notes.append)
    assert any("part-0017.csv" in str(note) and "never" in str(note) for note in notes)


def test_shards_without_rows_are_named(tmp_path):
    source = write_source(tmp_path / "raw", "csv")
    (source / "part-0017.csv").write_text("time,entity,value,note\n")
    (source / "part-0018.csv").write_text("")
    prepared = headrace.prepare(settings_of(source), tmp_path / "out")
    assert ["part-0017.csv", "part-0018.csv"] == prepared.manifest.source["empty_shards"]


def test_shards_that_differ_are_widened_in_groups(tmp_path, monkeypatch):
    source = write_source(tmp_path / "raw", "jsonl")
    for number in range(5, 30, 3):
        row = {**row_of(number), "extra": number, "note": None}
        (source / f"part-{number:04d}.jsonl").write_text(json.dumps(row))
    settings = settings_of(source, schema_drift="widen")
    headrace.prepare(settings, tmp_path / "grouped")
    headrace.verify(tmp_path / "grouped")
    monkeypatch.setattr(grouped, "MANY_SHARDS", 1000)
    headrace.prepare(settings, tmp_path / "single")
    assert rows_by_split(tmp_path / "single") == rows_by_split(tmp_path / "grouped")


def test_groups_that_did_not_change_are_linked(tmp_path):
    source = write_source(tmp_path / "raw", "csv")
    headrace.prepare(settings_of(source), tmp_path / "first")
    write_shard(source / f"part-{COUNT:04d}.csv", [row_of(3)])
    write_shard(source / "part-0011.csv", [row_of(5), row_of(7)])
    headrace.prepare(
        settings_of(source, assignment_from=str(tmp_path / "first")), tmp_path / "second"
    )
    headrace.verify(tmp_path / "second")
    inodes = {path.stat().st_ino for path in data_files(tmp_path / "first")}
    files = data_files(tmp_path / "second")
    linked = [path for path in files if path.stat().st_ino in inodes]
    assert len(files) // 2 < len(linked) < len(files)


NAMES = st.lists(st.text("abcdef0123", min_size=1, max_size=6), min_size=12, unique=True)


def groups_of(names):
    firsts = grouped.first_of_groups(names, [10] * len(names))
    return {
        tuple(names[first:stop])
        for first, stop in zip(firsts, [*firsts[1:], len(names)], strict=True)
    }


@given(NAMES, st.data())
def test_a_shard_that_comes_changes_only_the_group_around_it(names, data):
    names = sorted(names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped, "MANY_SHARDS", 4)
        patch.setattr(grouped, "_ONE_IN", 3)
        gone = data.draw(st.sampled_from(names))
        before = groups_of([name for name in names if name != gone])
        after = groups_of(names)
        assert sorted(name for group in after for name in group) == names
        assert len(after - before) <= 2
        assert len(before - after) <= 1


def test_small_shards_are_rewritten_in_groups(tmp_path, monkeypatch):
    source = write_source(tmp_path / "raw", "csv")
    headrace.rewrite(source, tmp_path / "grouped", cache_dir=str(tmp_path / "cache"))
    headrace.verify(tmp_path / "grouped")
    monkeypatch.setattr(grouped, "MANY_SHARDS", 1000)
    headrace.rewrite(source, tmp_path / "single", cache_dir=str(tmp_path / "cache"))
    assert rows_by_split(tmp_path / "single") == rows_by_split(tmp_path / "grouped")
    for name, count in (("single", COUNT), ("grouped", COUNT // 2)):
        files = list((tmp_path / name / "splits").resolve().parent.rglob("part-*.parquet"))
        assert (len(files) == count) if name == "single" else (len(files) < count)
    assert os.listdir(tmp_path / "grouped")
