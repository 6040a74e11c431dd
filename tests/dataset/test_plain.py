"""Plain shards stream like prepared ones: every row once, from any format, through an index that follows the files."""

import json
import os
from collections import Counter

import pyarrow as pa
import pytest

import headrace
from headrace.errors import InputError
from headrace.formats import delimited, jsonl, write
from headrace.stream.ranks.topology import Topology
from raised import raised
from tables import HEADER, small_rows, small_source, split, split_rows, write_bytes, write_rows

EXTENSIONS = [
    f".{word}{packed}" for word in ("csv", "tsv", "jsonl") for packed in ("", ".gz", ".zst")
]


def rows_of(dataset, *, batch_size=7, **options):
    loader = dataset.stream(batch_size=batch_size, batch_format="arrow", **options)
    return [
        tuple(row.values()) for batch in loader for row in batch.drop_columns("valid").to_pylist()
    ]


@pytest.mark.parametrize("extension", [*EXTENSIONS, ".parquet", ".json"])
def test_every_row_is_streamed_in_order_from_every_format(extension, tmp_path):
    small_source(tmp_path / "raw", extension=extension, count=3, rows=20)
    dataset = headrace.open(tmp_path / "raw", types="text", cache_dir=tmp_path / "cache")

    assert small_rows(60) == rows_of(dataset)
    assert ("all",) == dataset.splits
    assert {"all": 60} == dataset.split_rows
    assert dataset.manifest is None


@pytest.mark.parametrize("extension", [".csv", ".tsv.gz", ".jsonl", ".parquet"])
def test_shuffled_ranks_see_every_row_once(extension, tmp_path):
    small_source(tmp_path / "raw", extension=extension, count=5, rows=33)
    dataset = headrace.open(tmp_path / "raw", types="text", cache_dir=tmp_path / "cache")

    delivered = Counter()
    for rank in range(3):
        loader = dataset.stream(
            batch_size=4,
            batch_format="numpy",
            shuffle=True,
            topology=Topology(rank=rank, world_size=3),
        )
        for batch in loader:
            delivered.update(batch["row"][batch["valid"]].tolist())

    assert Counter(str(number) for number in range(165)) == delivered


def test_a_plain_directory_and_a_prepared_run_hold_the_same_rows(tmp_path):
    prepared = split(small_source(tmp_path / "raw"), tmp_path / "out", types="text")
    run = headrace.open(tmp_path / "out")
    plain = headrace.open(
        prepared.run / "training_data" / "train", types="text", cache_dir=tmp_path / "cache"
    )

    ours = [
        tuple(row.values())
        for batch in run.stream("train", batch_size=9, batch_format="arrow")
        for row in batch.drop_columns("valid").to_pylist()
    ]

    assert split_rows(prepared.run, "train") == ours
    assert ours == rows_of(plain)


@pytest.mark.parametrize("extension", [".csv", ".jsonl"])
def test_text_is_cut_into_blocks_on_record_borders(extension, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "BLOCK_ROWS", 7)
    for module in (delimited, jsonl):
        monkeypatch.setattr(module, "BLOCK_BYTES", 300)
    rows = [
        (f"{number:03d}", "a\nb" if extension == ".csv" else "é", 'say "x"')
        for number in range(100)
    ]
    write_rows(tmp_path / f"a{extension}", HEADER, rows)
    dataset = headrace.open(tmp_path / f"a{extension}", cache_dir=tmp_path / "cache")
    index = dataset.split_index()

    assert rows == rows_of(dataset)
    assert len(index.rows) > 10
    assert int(index.rows.max()) <= 7
    assert (index.offset[1:] == index.offset[:-1] + index.length[:-1]).all()


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "a.tsv.zst"])
def test_blank_lines_byte_order_mark_and_line_ends_are_no_rows(name, tmp_path):
    separator = b"\t" if "tsv" in name else b","
    write_bytes(tmp_path / name, b"\xef\xbb\xbfx,y\r\n\r\n1,2\r\n\r\n3,4".replace(b",", separator))

    assert [("1", "2"), ("3", "4")] == rows_of(
        headrace.open(tmp_path / name, types="text", cache_dir=tmp_path / "cache")
    )


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_blank_lines_in_json_lines_are_no_rows(name, tmp_path):
    write_bytes(tmp_path / name, b'\xef\xbb\xbf\n{"x": 1}\n\n  \n{"x": 2}\n \t\r\n')

    assert [(1,), (2,)] == rows_of(
        headrace.open(tmp_path / name, types="text", cache_dir=tmp_path / "cache")
    )


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet"])
def test_shards_without_rows_are_empty_and_named(name, tmp_path, caplog):
    write_rows(tmp_path / name, ("x",), [])
    dataset = headrace.open(tmp_path / name, types="text", cache_dir=tmp_path / "cache")
    assert [f"1 of 1 files has no rows and is skipped: {name}"] == caplog.messages

    assert [] == rows_of(dataset)
    assert {"all": 0} == dataset.split_rows


def test_declared_types_and_nulls_reach_the_batch(tmp_path):
    write_rows(tmp_path / "a.csv", ("id", "x", "n"), [("007", "1.5", "3"), ("008", "?", "4")])
    dataset = headrace.open(
        tmp_path / "a.csv",
        types={"x": "float32", "n": "int64"},
        dialect={"null_values": ["?"]},
        cache_dir=tmp_path / "cache",
    )
    again = headrace.open(
        tmp_path / "a.csv",
        types={"x": "float32", "n": "int64"},
        dialect={"null_values": ["?"]},
        cache_dir=tmp_path / "cache",
    )

    assert [("007", 1.5, 3), ("008", None, 4)] == rows_of(dataset) == rows_of(again)
    assert [pa.string(), pa.float32(), pa.int64()] == dataset.schema.types


def test_types_of_unknown_columns_or_words_are_refused(tmp_path):
    write_rows(tmp_path / "a.csv", ("x",), [("1",)])
    with raised(headrace.SettingsError, setting="types", column="y"):
        headrace.open(tmp_path / "a.csv", types={"y": "int64"}, cache_dir=tmp_path / "cache")
    with pytest.raises(headrace.SettingsError, match="'decimal': no such type"):
        headrace.open(tmp_path / "a.csv", types={"x": "decimal"}, cache_dir=tmp_path / "cache")


def test_a_value_that_is_not_of_its_declared_type_is_an_error_of_the_input_and_no_damage(tmp_path):
    write_bytes(tmp_path / "a.csv", b"x,y\n1,a\nmany,b\n")
    dataset = headrace.open(
        tmp_path / "a.csv", types={"x": "float32"}, cache_dir=tmp_path / "cache"
    )

    with pytest.raises(
        InputError,
        match=r"a\.csv: block 0 .*row 2, column 'x' is 'many': it is declared float, which cannot hold it; correct it",
    ):
        list(dataset.stream(batch_size=2))


def test_a_glob_a_list_and_a_directory_are_the_same_rows(tmp_path):
    raw = small_source(tmp_path / "raw", extension=".csv", count=3, rows=10)
    sources = [raw, str(raw / "part-*.csv"), sorted(raw.iterdir())]

    assert all(
        small_rows(30) == rows_of(headrace.open(each, types="text", cache_dir=tmp_path / "cache"))
        for each in sources
    )


def test_the_index_is_kept_until_a_file_changes(tmp_path):
    raw = small_source(tmp_path / "raw", extension=".csv", count=2, rows=10)
    first = headrace.open(raw, types="text", cache_dir=tmp_path / "cache")
    kept = sorted((tmp_path / "cache").iterdir())
    again = headrace.open(raw, types="text", cache_dir=tmp_path / "cache")

    assert first.split_index().identity == again.split_index().identity
    assert kept == sorted((tmp_path / "cache").iterdir())

    write_rows(raw / "part-00001.csv", HEADER, small_rows(11, first=10))
    changed = headrace.open(raw, types="text", cache_dir=tmp_path / "cache")

    assert {"all": 21} == changed.split_rows
    assert small_rows(21) == rows_of(changed)
    assert 2 == len(list((tmp_path / "cache").iterdir()))


def test_a_damaged_cache_is_made_again(tmp_path):
    raw = small_source(tmp_path / "raw", extension=".csv", count=2, rows=10)
    headrace.open(raw, types="text", cache_dir=tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:100])

    assert small_rows(20) == rows_of(headrace.open(raw, types="text", cache_dir=tmp_path / "cache"))
    assert whole == kept.read_bytes()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    raw = small_source(tmp_path / "raw", extension=".csv", count=1, rows=10)
    (tmp_path / "file").write_text("")

    assert small_rows(10) == rows_of(
        headrace.open(raw, types="text", cache_dir=tmp_path / "file" / "cache")
    )


def test_the_split_must_be_named_where_there_are_several(tmp_path):
    split(small_source(tmp_path / "raw"), tmp_path / "out")
    with raised(headrace.InputError, setting="split", remedy='split="train"'):
        headrace.open(tmp_path / "out").stream(batch_size=1)


def test_what_cannot_be_opened_says_why(tmp_path):
    for path, message in [
        (tmp_path / "none", "no such file or directory"),
        (tmp_path / "*.csv", "no such file, directory or match"),
        (tmp_path, "holds no finished run"),
        ([], "the list of files is empty"),
    ]:
        with pytest.raises(headrace.InputError, match=message):
            headrace.open(path, cache_dir=tmp_path / "cache")
    write_rows(tmp_path / "a.csv", ("x", "y"), [("1", "2")])
    write_rows(tmp_path / "b.csv", ("x", "z"), [("1", "2")])
    with pytest.raises(headrace.InputError, match=r"b\.csv: lacks y; adds z"):
        headrace.open(tmp_path, cache_dir=tmp_path / "cache")


def test_an_unfinished_run_is_not_taken_for_plain_shards(tmp_path):
    run = split(small_source(tmp_path / "raw"), tmp_path / "out").run
    (run / "manifest.json").unlink()

    for path in (run, tmp_path / "out"):
        with raised(headrace.InputError, path=path, remedy="prepare it first"):
            headrace.open(path, cache_dir=tmp_path / "cache")


def test_a_file_that_shrank_after_it_was_opened_is_an_error(tmp_path):
    path = write_rows(tmp_path / "a.csv", HEADER, small_rows(50))
    dataset = headrace.open(path, cache_dir=tmp_path / "cache")
    os.truncate(path, path.stat().st_size // 2)

    with pytest.raises(headrace.errors.CorruptShard, match=r"a\.csv"):
        rows_of(dataset)


def test_a_state_of_plain_shards_resumes(tmp_path):
    raw = small_source(tmp_path / "raw", extension=".jsonl", count=3, rows=20)
    loader = headrace.open(raw, types="text", cache_dir=tmp_path / "cache").stream(
        batch_size=7, shuffle=True, batch_format="numpy"
    )
    whole = [row for batch in loader for row in batch["row"].tolist()]
    loader.set_epoch(0)
    part = iter(loader)
    head = [row for _ in range(3) for row in next(part)["row"].tolist()]
    state = json.loads(json.dumps(loader.state_dict()))
    part.close()
    fresh = headrace.open(raw, types="text", cache_dir=tmp_path / "cache").stream(
        batch_size=5, shuffle=True, batch_format="numpy"
    )
    fresh.load_state_dict(state)

    assert whole == head + [row for batch in fresh for row in batch["row"].tolist()]
