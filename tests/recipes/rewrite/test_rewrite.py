"""A rewrite changes how rows are kept, never which, of what types, or of which split; and their order only if asked."""

import json
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import CorruptShard, InputError, SettingsError
from headrace.formats import parquet
from headrace.formats.parquet import READS_MISSING_VECTORS
from headrace.run.events import Step
from laws import examples
from raised import raised
from tables import fresh, small_rows, small_source, split

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "float64": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=8)),
    "bytes": (pa.binary(), st.binary(max_size=8)),
    "date": (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    "seconds": (pa.timestamp("s"), st.integers(-(2**33), 2**33)),
    "nanoseconds": (pa.timestamp("ns", "Europe/Berlin"), INT64),
    "duration": (pa.duration("ms"), INT64),
    "decimal": (pa.decimal128(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    "list": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-9, 9), max_size=3)),
    "nested": (pa.list_(pa.list_(pa.string())), st.lists(st.lists(st.text(max_size=2), max_size=2), max_size=2)),
    "fixed": (pa.list_(pa.float32(), 2), st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2)),
    "struct": (pa.struct([("x", pa.int16()), ("y", pa.string())]), st.fixed_dictionaries({"x": st.none() | st.integers(-5, 5), "y": st.text(max_size=2)})),
}  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 40))
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5, unique=True))
    columns = {}
    for name in names:
        kind, values = VALUES[name]
        missing = [] if name == "fixed" and not READS_MISSING_VECTORS else [st.none() | values]
        values = draw(st.sampled_from([values, *missing]))
        found = draw(st.lists(values, min_size=rows, max_size=rows))
        if pa.types.is_temporal(kind):
            storage = pa.int32() if kind == pa.date32() else pa.int64()
            columns[name] = pa.array(found, storage).cast(kind)
        else:
            columns[name] = pa.array(found, kind)
    return pa.table(columns)


def rows_of(path: Path, name: str | None = None) -> pa.Table:
    loader = headrace.open(path, cache_dir=path.parent / "cache").stream(
        name, batch_size=1000, batch_format="arrow", remainder="exact"
    )
    return pa.concat_tables(list(loader)).drop_columns("valid")


def texts_of(table: pa.Table) -> list[tuple[str, ...]]:
    """The rows as a source of text writes them."""
    return [tuple(str(value) for value in row.values()) for row in table.to_pylist()]


def files_of(run: Path) -> dict[str, str]:
    return {
        path.relative_to(run).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.rglob("*"))
        if path.is_file()
        and path.name not in ("manifest.json", "config.json", ".lock")
        and "receipts" not in path.parts
    }


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(table=tables(), compression=st.sampled_from(["none", "lz4", "zstd"]), source=st.sampled_from(["parquet", "arrow"]), group=st.none() | st.integers(1, 30))  # fmt: skip
def test_every_type_comes_back_as_it_was(
    tmp_path_factory, table, compression, source, group
) -> None:
    where = fresh(tmp_path_factory.getbasetemp())
    if source == "parquet":
        pq.write_table(table, where / "a.parquet", row_group_size=7)
    else:
        with pa.ipc.new_file(str(where / "a.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    made = headrace.rewrite(where / f"a.{source}", where / "out", compression=compression, rows_per_group=group, cache_dir=where / "cache")  # fmt: skip
    expected = rows_of(where / f"a.{source}")
    found = rows_of(where / "out")

    assert expected.cast(found.schema).equals(found)
    assert [field.type for field in expected.schema] == [field.type for field in found.schema]
    if source == "arrow":  # a Parquet file has no seconds
        assert [field.type for field in table.schema] == [field.type for field in found.schema]
    assert [column["nullable"] for column in made.manifest.schema] == [
        table[name].null_count > 0 for name in table.column_names
    ]
    assert not headrace.verify(where / "out").problems


def test_vectors_that_could_not_be_read_back_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "READS_MISSING_VECTORS", False)
    table = pa.table({"x": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    with raised(headrace.InputError, remedy="install pyarrow 26"):
        headrace.rewrite(tmp_path / "a.arrow", tmp_path / "out", cache_dir=tmp_path / "cache")

    assert not list((tmp_path / "out").rglob("*.parquet"))


@pytest.mark.parametrize("extension", [".csv", ".csv.gz", ".tsv.zst", ".jsonl", ".parquet"])
def test_plain_shards_keep_names_rows_and_order(extension: str, tmp_path: Path) -> None:
    small_source(tmp_path / "raw", extension=extension, count=3, rows=20)
    headrace.rewrite(tmp_path / "raw", tmp_path / "out", cache_dir=tmp_path / "cache")
    dataset = headrace.open(tmp_path / "out")

    assert ("all",) == dataset.splits
    assert [f"data/part-{n:05d}.parquet" for n in range(3)] == list(dataset.split_index().shards)
    assert small_rows(60) == texts_of(rows_of(tmp_path / "out"))
    assert not headrace.verify(tmp_path / "out").problems


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_the_splits_of_a_prepared_dataset_stay(format_: str, tmp_path: Path) -> None:
    split(
        small_source(tmp_path / "raw", count=4, rows=50, entities=20),
        tmp_path / "prepared",
        format=format_,
    )
    before = headrace.open(tmp_path / "prepared")
    made = headrace.rewrite(tmp_path / "prepared", tmp_path / "out")
    after = headrace.open(tmp_path / "out")

    assert before.split_rows == after.split_rows
    for name in before.splits:
        assert (
            rows_of(tmp_path / "prepared", name).to_pylist()
            == rows_of(tmp_path / "out", name).to_pylist()
        )
    assert rows_of(tmp_path / "out", "oot").equals(rows_of(tmp_path / "out", "test"))
    assert before.manifest is not None
    assert before.manifest.run_id == made.manifest.metadata["source_run"]
    assert not headrace.verify(tmp_path / "out").problems


def test_text_columns_become_the_declared_types(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,x\n007,1.5\n19,NA\n")
    headrace.rewrite(
        tmp_path / "a.csv",
        tmp_path / "out",
        types={"x": "float32"},
        dialect={"null_values": ["NA"]},
        cache_dir=tmp_path / "cache",
    )

    expected = pa.schema([pa.field("n", pa.string(), nullable=False), ("x", pa.float32())])
    assert expected == headrace.open(tmp_path / "out").schema
    assert [{"n": "007", "x": 1.5}, {"n": "19", "x": None}] == rows_of(tmp_path / "out").to_pylist()


def test_the_file_is_made_to_be_decoded(tmp_path: Path) -> None:
    table = pa.table({"n": [k % 3 for k in range(9000)], "few": [f"w{k % 9}" for k in range(9000)], "many": [str(k) for k in range(9000)]})  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    run = headrace.rewrite(
        tmp_path / "a.parquet", tmp_path / "out", cache_dir=tmp_path / "cache"
    ).run
    metadata = pq.read_metadata(run / "data" / "a.parquet")
    columns = {
        metadata.row_group(0).column(c).path_in_schema: metadata.row_group(0).column(c)
        for c in range(3)
    }

    assert {"few"} == {
        name for name, column in columns.items() if "RLE_DICTIONARY" in column.encodings
    }
    assert {"UNCOMPRESSED"} == {column.compression for column in columns.values()}
    assert all(column.statistics.has_min_max for column in columns.values())
    assert [0, 0, 0] == [metadata.schema.column(c).max_definition_level for c in range(3)]


@pytest.mark.parametrize(
    ("size", "expected"), [(None, [20, 20, 20, 20, 20]), (1, [20] * 5), (10**9, [100])]
)
def test_shards_of_a_size(size: int | None, expected: list[int], tmp_path: Path) -> None:
    small_source(tmp_path / "raw", count=5, rows=20)
    run = headrace.rewrite(
        tmp_path / "raw", tmp_path / "out", shard_bytes=size, cache_dir=tmp_path / "cache"
    ).run

    assert expected == [
        pq.read_metadata(path).num_rows for path in sorted((run / "data").iterdir())
    ]
    assert small_rows(100) == texts_of(rows_of(tmp_path / "out"))


def test_one_and_two_workers_write_the_same_bytes(tmp_path: Path) -> None:
    small_source(tmp_path / "raw", count=5, rows=200)
    runs = [
        headrace.rewrite(
            tmp_path / "raw", tmp_path / f"out{n}", workers=n, cache_dir=tmp_path / "cache"
        ).run
        for n in (1, 2)
    ]

    assert files_of(runs[0]) == files_of(runs[1])
    assert runs[0].name == runs[1].name


CHILD = """
import itertools, os, signal, sys
import headrace
from headrace.run.events import Step
number = itertools.count(1)  # two threads hear: each number comes once
def hear(event):
    if isinstance(event, Step) and event.name == sys.argv[4] and next(number) == int(sys.argv[5]):
        os.kill(os.getpid(), signal.SIGKILL)
headrace.rewrite(sys.argv[1], sys.argv[2], cache_dir=sys.argv[3], workers=2, on_event=hear)
"""


@pytest.mark.slow
@pytest.mark.smoke("receipt.linked-7")
@pytest.mark.parametrize(
    ("step", "count"), [("shard.linked", 1), ("receipt.linked", 7), ("index.linked", 1)]
)
def test_a_killed_rewrite_goes_on_and_makes_the_same_bytes(
    step: str, count: int, tmp_path: Path
) -> None:
    raw = small_source(tmp_path / "raw", count=5, rows=50)
    command = [
        sys.executable,
        "-c",
        CHILD,
        str(raw),
        str(tmp_path / "out"),
        str(tmp_path / "cache"),
        step,
        str(count),
    ]
    child = subprocess.run(command, env=dict(os.environ), check=False)
    assert child.returncode == -signal.SIGKILL
    with raised(InputError, path=tmp_path / "out", remedy="prepare it first"):
        headrace.open(tmp_path / "out")
    redone: list[str] = []

    def hear(event: object) -> None:
        if (
            isinstance(event, Step)
            and event.name == "shard.linked"
            and event.subject.startswith("data/")
        ):
            redone.append(event.subject)

    made = headrace.rewrite(raw, tmp_path / "out", cache_dir=tmp_path / "cache", on_event=hear)
    undisturbed = headrace.rewrite(raw, tmp_path / "other", cache_dir=tmp_path / "cache").run

    assert {
        name: digest for name, digest in files_of(made.run).items() if "/.tmp-" not in name
    } == files_of(undisturbed)
    assert len(redone) < 5 or step == "shard.linked"
    again = headrace.rewrite(raw, tmp_path / "out", cache_dir=tmp_path / "cache")
    assert again.how == "reused"


def test_a_damaged_source_shard_is_not_rewritten(tmp_path: Path) -> None:
    prepared = split(
        small_source(tmp_path / "raw", count=2, rows=50), tmp_path / "prepared", format="parquet"
    )
    shard = next((prepared.run / "training_data" / "train").iterdir())
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 4
    shard.write_bytes(data)

    with raised(CorruptShard, path=shard, remedy="restore it or prepare the run again"):
        headrace.rewrite(tmp_path / "prepared", tmp_path / "out")


def test_two_files_of_one_stem_get_two_names(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.csv").write_text("n\n1\n")
    (tmp_path / "raw" / "a.tsv").write_text("n\n2\n")
    headrace.rewrite(tmp_path / "raw", tmp_path / "out", cache_dir=tmp_path / "cache")

    assert ("data/a.csv.parquet", "data/a.tsv.parquet") == headrace.open(
        tmp_path / "out"
    ).split_index().shards


def test_shards_of_directories_below_keep_them(tmp_path: Path) -> None:
    small_source(tmp_path / "raw" / "x", count=1)
    small_source(tmp_path / "raw" / "y", count=1)
    headrace.rewrite(
        str(tmp_path / "raw" / "*" / "*"), tmp_path / "out", cache_dir=tmp_path / "cache"
    )

    assert 2 == len(headrace.open(tmp_path / "out").split_index().shards)
    assert not headrace.verify(tmp_path / "out").problems


def test_columns_that_are_left_out_are_not_written(tmp_path: Path) -> None:
    source = small_source(tmp_path / "raw", count=2)
    rows = rows_of(source)
    name = rows.column_names[1]
    headrace.rewrite(source, tmp_path / "out", cache_dir=tmp_path / "cache", drop_columns=name)

    assert rows.drop_columns(name).to_pylist() == rows_of(tmp_path / "out").to_pylist()


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    small_source(tmp_path / "raw", count=1)
    for wrong in (
        {"compression": "gz"},
        {"rows_per_group": 0},
        {"columns": []},
        {"types": {"x": "int65"}},
        {"columns": ["no"]},
        {"drop_columns": ["no"]},
        {"columns": ["row"], "drop_columns": ["x"]},
    ):
        with pytest.raises(SettingsError):
            headrace.rewrite(
                tmp_path / "raw", tmp_path / "out", cache_dir=tmp_path / "cache", **wrong
            )
    split(small_source(tmp_path / "more", count=2, rows=50), tmp_path / "prepared")
    with raised(SettingsError, setting="types", remedy="leave them out"):
        headrace.rewrite(tmp_path / "prepared", tmp_path / "out", types={"row": "int64"})


@pytest.mark.slow
def test_the_command_rewrites_and_reports(tmp_path: Path) -> None:
    small_source(tmp_path / "raw", count=2, rows=20)
    command = [sys.executable, "-m", "headrace", "rewrite", "raw", "--out", "out", "--types", "row=int32", "--cache-dir", "cache", "--json"]  # fmt: skip
    if not (Path(headrace.__file__).parent / "__main__.py").exists():
        command[1:3] = ["-c", "from headrace.cli import main; main()"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert {"all": {"rows": 40, "shards": 2}} == {
        name: {"rows": each["rows"], "shards": each["shards"]}
        for name, each in json.loads(done.stdout)["splits"].items()
    }
    assert pa.int32() == headrace.open(tmp_path / "out").schema.field("row").type


@pytest.mark.slow
def test_a_configuration_file_rewrites_and_inspect_shows_it(tmp_path: Path) -> None:
    small_source(tmp_path / "raw", count=2, rows=20)
    (tmp_path / "c.yaml").write_text(
        "recipe: rewrite\nsource: raw\nout: out\ncompression: lz4\ncache_dir: cache\n"
    )
    main = [sys.executable, "-c", "from headrace.cli import main; main()"]
    made = subprocess.run(
        [*main, "run", "c.yaml"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    seen = subprocess.run(
        [*main, "inspect", "out"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert "rewrite" in made.stdout
    assert all(word in seen.stdout for word in ("all", "compression", "lz4", "40"))


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(table=tables(), shard_bytes=st.none() | st.integers(20, 2000), seed=st.integers(0, 3))
def test_rows_of_every_type_are_permuted(tmp_path_factory, table, shard_bytes, seed) -> None:
    where = fresh(tmp_path_factory.getbasetemp())
    table = table.append_column("row", pa.array(range(len(table))))
    pq.write_table(table.slice(0, 25), where / "a.parquet", row_group_size=7)
    pq.write_table(table.slice(25), where / "b.parquet")
    source = [where / "a.parquet", where / "b.parquet"]
    for workers in (1, 3):
        headrace.rewrite(
            source,
            where / f"out{workers}",
            shuffle_seed=seed,
            shard_bytes=shard_bytes,
            workers=workers,
            cache_dir=where / "cache",
        )
    shuffled = rows_of(where / "out1")

    assert table.select(shuffled.column_names).cast(shuffled.schema).equals(shuffled.sort_by("row"))
    assert shuffled.equals(rows_of(where / "out3"))
    assert not headrace.verify(where / "out1").problems


def test_every_block_is_a_fair_sample(tmp_path) -> None:
    for number in range(4):
        labels = pa.array(np.full(5_000, number))
        rows = pa.array(np.arange(5_000) + 5_000 * number)
        pq.write_table(pa.table({"label": labels, "row": rows}), tmp_path / f"{number}.parquet")
    shards = sorted(tmp_path.glob("*.parquet"))
    made = [
        headrace.rewrite(
            shards, tmp_path / f"out{seed}", shuffle_seed=seed, cache_dir=tmp_path / "cache"
        )
        for seed in (0, 1)
    ]
    orders = [rows_of(tmp_path / f"out{seed}")["row"].to_numpy() for seed in (0, 1)]
    files = sorted(made[0].run.rglob("part-*.parquet"))

    assert 4 == len(files)
    for file in files:
        counts = np.bincount(pq.read_table(file)["label"].to_numpy(), minlength=4)
        expected = counts.sum() / 4
        assert ((counts - expected) ** 2 / expected).sum() < 16.3  # of 3 degrees, one in a thousand
    assert abs(np.corrcoef(orders[0], np.arange(20_000))[0, 1]) < 0.03
    assert abs(np.corrcoef(orders[0], orders[1])[0, 1]) < 0.03
    assert made[0].manifest.run_id != made[1].manifest.run_id
    assert not list(made[0].run.rglob("keyed-*"))


def test_splits_stay_and_reruns_reuse(tmp_path) -> None:
    small_source(tmp_path / "raw", count=3, rows=40)
    split(tmp_path / "raw", tmp_path / "out")
    fast = headrace.rewrite(tmp_path / "out", tmp_path / "fast", shuffle_seed=0)
    before = files_of(fast.run)
    again = headrace.rewrite(tmp_path / "out", tmp_path / "fast", shuffle_seed=0)

    assert again.manifest.run_id == fast.manifest.run_id
    assert before == files_of(again.run)
    for name in headrace.open(tmp_path / "out").splits:
        source = rows_of(tmp_path / "out", name).to_pylist()
        shuffled = rows_of(tmp_path / "fast", name).to_pylist()
        assert sorted(map(repr, source)) == sorted(map(repr, shuffled))
