"""What lies in a store is opened, streamed and verified as what lies on a disk."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_proxy import FaultProxy, Faults
from store_cases import rows_of, split_of, upload, write_raw

import headrace
from headrace.dataset import plain
from headrace.dataset.plain import publish_index
from headrace.dataset.pointer import pointer_record
from headrace.errors import CorruptShard, InputError, StoreError
from headrace.formats import parquet
from headrace.storage.places import path_of, place_of
from raised import raised


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A prepared dataset on a disk."""
    raw = write_raw(tmp_path / "raw")
    types = {"row": "int64", "x": "float32"}
    headrace.prepare(split_of(str(raw), format="parquet", types=types), tmp_path / "out", workers=1)
    return tmp_path / "out"


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_prepared_dataset_streams_the_same_rows_in_the_same_order(
    s3: str, prepared: Path, shuffle: bool
) -> None:
    upload(prepared, f"{s3}/out")
    local, remote = headrace.open(prepared), headrace.open(f"{s3}/out")

    assert remote.split_rows == local.split_rows
    for split in ("train", "val", "oot"):
        assert rows_of(remote, split, shuffle=shuffle, seed=3) == rows_of(
            local, split, shuffle=shuffle, seed=3
        )


def test_a_run_directory_and_a_chosen_run_open(s3: str, prepared: Path) -> None:
    upload(prepared, f"{s3}/out")
    run = next(each.name for each in (prepared / "runs").iterdir())

    assert headrace.open(f"{s3}/out/runs/{run}").split_rows == headrace.open(prepared).split_rows
    assert headrace.open(f"{s3}/out", run=run).split_rows == headrace.open(prepared).split_rows
    with raised(InputError, setting="run", value="nothing"):
        headrace.open(f"{s3}/out", run="nothing")


@pytest.mark.slow
@pytest.mark.smoke("csv.gz", "parquet")
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "tsv", "jsonl", "parquet", "arrow"])
def test_plain_shards_of_every_format_stream(s3: str, tmp_path: Path, suffix: str) -> None:
    raw = write_plain(tmp_path / "raw", suffix)
    upload(raw, f"{s3}/data/deep")
    expected = rows_of(headrace.open(raw, cache_dir=tmp_path / "a"), None)

    for place in (
        f"{s3}/data/deep",
        f"{s3}/data/*/part-*.{suffix}",
        [f"{s3}/data/deep/part-{n}.{suffix}" for n in (0, 1)],
    ):
        assert rows_of(headrace.open(place, cache_dir=tmp_path / "b"), None) == expected
    assert (
        len(rows_of(headrace.open(f"{s3}/data/deep/part-1.{suffix}"), None)) == len(expected) // 2
    )


def write_plain(directory: Path, suffix: str) -> Path:
    directory.mkdir()
    for shard in range(2):
        rows = [{"a": str(shard * 100 + each), "b": f"text {each}"} for each in range(40)]
        table, path = pa.Table.from_pylist(rows), directory / f"part-{shard}.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path, row_group_size=9)
        elif suffix == "arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=11)
        elif suffix == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            comma = "\t" if suffix == "tsv" else ","
            text = f"a{comma}b\n" + "".join(f"{row['a']}{comma}{row['b']}\n" for row in rows)
            path.write_bytes(
                gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode()
            )
    return directory


def test_a_changed_shard_gives_a_new_index(s3: str, tmp_path: Path) -> None:
    place = path_of(f"{s3}/data/part-0.csv")
    place_of(place).put_new(b"a,b\n1,2\n")
    before = headrace.open(f"{s3}/data", cache_dir=tmp_path)
    place_of(place).replace(b"a,b\n3,4\n")  # as many bytes, within one second
    after = headrace.open(f"{s3}/data", cache_dir=tmp_path)

    assert [{"a": 3, "b": 4, "valid": True}] == rows_of(after, None)
    assert before.contents != after.contents
    with pytest.raises(
        CorruptShard, match=r"part-0\.csv: changed after it was indexed; open the dataset again"
    ):
        rows_of(before, None)


@pytest.mark.slow
@pytest.mark.smoke("False-csv", "True-parquet")
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_shard_replaced_before_it_is_read_is_refused(
    s3: str, tmp_path: Path, suffix: str, cached: bool
) -> None:
    raw = write_plain(tmp_path / "raw", suffix)
    upload(raw, f"{s3}/data")
    dataset = headrace.open(f"{s3}/data", cache_dir=tmp_path / "cache")
    place_of(path_of(f"{s3}/data/part-1.{suffix}")).replace((raw / f"part-0.{suffix}").read_bytes())
    if suffix == "parquet":
        parquet._open_files.drop(f"{s3}/data/part-1.parquet")  # as in a new process
    options = {"cache": "files", "cache_dir": tmp_path / "copies"} if cached else {}

    with pytest.raises(CorruptShard, match=rf"part-1\.{suffix}"):
        rows_of(dataset, None, **options)


def test_only_the_needed_columns_and_row_groups_are_fetched(
    proxied: tuple[str, FaultProxy], tmp_path: Path
) -> None:
    bucket, proxy = proxied
    os.makedirs(tmp_path / "raw")
    wide = pa.table(
        {"narrow": pa.array(range(4000)), "wide": [os.urandom(1000) for _ in range(4000)]}
    )
    pq.write_table(
        wide, tmp_path / "raw" / "part-0.parquet", row_group_size=1000, compression="none"
    )
    upload(tmp_path / "raw", f"{bucket}/data")
    dataset = headrace.open(f"{bucket}/data", cache_dir=tmp_path / "cache")
    proxy.begin(Faults())

    rows = rows_of(dataset, None, columns=["narrow"])

    assert [row["narrow"] for row in rows] == list(range(4000))
    assert proxy.seen.requests == {"GET": 4}  # the footer is known from opening
    assert proxy.seen.body_bytes < 0.05 * 4_000_000


@pytest.mark.slow
def test_a_flipped_bit_is_never_delivered(s3: str, prepared: Path) -> None:
    upload(prepared, f"{s3}/out")
    dataset = headrace.open(f"{s3}/out")

    def read() -> pa.Table:
        return dataset.block_reader("train")(0, None)

    expected = read()
    run = next((prepared / "runs").iterdir())
    shard = run / dataset.split_index("train").shards[0]
    data = bytearray(shard.read_bytes())
    place = path_of(s3) / "out" / shard.relative_to(prepared).as_posix()
    outcomes = set()
    pages = pq.read_metadata(shard).row_group(0)
    end = sum(pages.column(place).total_compressed_size for place in range(pages.num_columns))
    for at in range(8, end, 131):
        data[at] ^= 16
        place_of(place).replace(bytes(data))
        data[at] ^= 16
        parquet._open_files.drop(str(place))  # as in a new process
        try:
            outcomes.add("same" if read() == expected else "wrong")
        except CorruptShard as error:
            outcomes.add(
                "replaced"
                if "replaced" in str(error) or shard.name not in str(error)
                else "refused"
            )

    assert outcomes in (
        {"refused"},
        {"refused", "same"},
    )  # a bit of a page's header may say nothing


@pytest.mark.slow
def test_text_shards_are_checked_whole_when_first_touched(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")
    headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=1)
    upload(tmp_path / "out", f"{s3}/out")
    run = next((tmp_path / "out" / "runs").iterdir())
    shard = sorted((run / "training_data" / "train").iterdir())[0]
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    place_of(path_of(s3) / "out" / shard.relative_to(tmp_path / "out").as_posix()).replace(
        bytes(data)
    )

    with pytest.raises(CorruptShard, match=shard.name):
        rows_of(headrace.open(f"{s3}/out"), "train")
    assert headrace.verify(f"{s3}/out").problems


def test_a_shard_that_is_replaced_while_it_is_read_is_an_error(s3: str, tmp_path: Path) -> None:
    place = path_of(f"{s3}/data/part-0.parquet")
    for value in (1, 2):
        pq.write_table(
            pa.table({"a": [value] * 100}), tmp_path / f"{value}.parquet", row_group_size=10
        )
    place_of(place).put_new(tmp_path / "1.parquet")
    dataset = headrace.open(f"{s3}/data", cache_dir=tmp_path / "cache")
    read = dataset.block_reader()
    first = read(0, None)
    place_of(place).replace((tmp_path / "2.parquet").read_bytes())

    assert first["a"].to_pylist() == [1] * 10
    with raised(
        CorruptShard,
        path=f"{s3}/data/part-0.parquet",
        row="row group 1",
        remedy="open the dataset again",
    ) as caught:
        read(1, None)
    assert "was replaced while it was read" in str(caught.value)


def test_a_missing_shard_is_named(s3: str, prepared: Path) -> None:
    upload(prepared, f"{s3}/out")
    dataset = headrace.open(f"{s3}/out")
    gone = (
        path_of(s3)
        / "out"
        / dataset.root.relative_to(path_of(f"{s3}/out")).as_posix()
        / dataset.split_index("val").shards[0]
    )
    place_of(gone).delete()

    with pytest.raises(CorruptShard, match=gone.name):
        rows_of(dataset, "val")


def test_a_reader_travels_to_another_process(s3: str, prepared: Path) -> None:
    upload(prepared, f"{s3}/out")
    read = headrace.open(f"{s3}/out").block_reader("train")

    assert pickle.loads(pickle.dumps(read))(0, ["row"]) == read(0, ["row"])


def test_the_tabular_dataset_reads_a_store(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw", shards=2, suffix="parquet")
    upload(raw, f"{s3}/raw")
    config = {"label_name": "row", "tab_field_list": ["x"]}

    def rows(place: str | Path) -> list[tuple[int, float]]:
        return [
            (int(row["row"]), float(row["x"]))
            for row in headrace.PipelineIterableDataset(config, place)
        ]

    assert rows(f"{s3}/raw") == rows(raw)


def test_nothing_to_open_is_said(s3: str) -> None:
    with pytest.raises(InputError, match=r"s3://.*/nothing"):
        headrace.open(f"{s3}/nothing")


@pytest.mark.slow
def test_verify_finds_the_dataset_whole(s3: str, prepared: Path) -> None:
    """A copy made by hand lacks the one object that a run directly into the store writes: it is named."""
    upload(prepared, f"{s3}/out")
    (missing,) = headrace.verify(f"{s3}/out").problems
    manifest = headrace.open(prepared).manifest
    assert manifest is not None
    run_id = manifest.run_id
    place_of(path_of(f"{s3}/out/splits.json")).put_new(
        json.dumps(pointer_record(run_id, manifest)).encode()
    )

    verdict = headrace.verify(f"{s3}/out")

    assert "splits.json: is missing" in missing
    assert verdict.problems == []
    assert len(verdict.checks) == len(headrace.verify(prepared).checks)


def _in_child(place: str, told: multiprocessing.connection.Connection) -> None:
    try:
        told.send(headrace.open(place).split_rows["train"])
    except StoreError as error:
        told.send(str(error))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_how_to_be_started(s3: str, prepared: Path) -> None:
    upload(prepared, f"{s3}/out")
    dataset = headrace.open(f"{s3}/out")
    answers = {}
    for how in ("fork", "spawn"):
        context = multiprocessing.get_context(how)
        here, there = context.Pipe()
        child = context.Process(target=_in_child, args=(f"{s3}/out", there))
        child.start()
        answers[how] = here.recv() if here.poll(120) else "nothing"
        child.join(120)

    assert "forkserver" in str(answers["fork"])
    assert answers["spawn"] == dataset.split_rows["train"]


def test_an_epoch_asks_once_for_each_row_group_and_for_no_byte_twice(
    proxied: tuple[str, FaultProxy], tmp_path: Path
) -> None:
    bucket, proxy = proxied
    raw = write_raw(tmp_path / "raw", suffix="parquet")
    upload(raw, f"{bucket}/raw")
    dataset = headrace.open(f"{bucket}/raw", cache_dir=tmp_path / "cache")
    blocks = len(dataset.split_index(None).rows)
    columns = ("row", "entity", "time", "x")
    for wanted in (columns, ("row", "entity")):
        proxy.begin(Faults("slow_start", 1.0, delay_s=0.005))
        rows = [
            row["row"]
            for batch in dataset.stream(
                None,
                batch_size=7,
                batch_format="rows",
                shuffle=True,
                columns=wanted,
                read_threads=3,
            )
            for row in batch
        ]

        assert sorted(rows) == list(range(len(rows)))
        assert proxy.seen.requests == {"GET": blocks}
        assert len(set(proxy.seen.ranges)) == blocks > 12
        assert proxy.seen.most_at_once <= 3
    assert proxy.seen.body_bytes < sum(path.stat().st_size for path in raw.iterdir()) / 2


@pytest.mark.slow
def test_an_index_is_published_in_the_bucket_and_used_while_it_fits(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raw = write_plain(tmp_path / "raw", "parquet")
    upload(raw, f"{s3}/data/deep")
    expected = rows_of(headrace.open(raw, cache_dir=tmp_path / "a"), None)
    sources = [f"{s3}/data/deep", f"{s3}/data/*/part-*.parquet", f"{s3}/data/deep/part-1.parquet"]
    for source in sources:
        published = publish_index(source, cache_dir=tmp_path / "b")
        assert ("beside", "written") == (published.location, published.how)
        assert "kept" == publish_index(source, cache_dir=tmp_path / "c").how
    with monkeypatch.context() as patch:
        patch.setattr(plain, "build", lambda *_: pytest.fail("the shards are read"))
        found = [rows_of(headrace.open(each, cache_dir=tmp_path / "d"), None) for each in sources]
    assert [expected, expected, expected[len(expected) // 2 :]] == found
    assert [] == caplog.messages

    pq.write_table(pq.read_table(raw / "part-0.parquet").slice(0, 20), raw / "part-0.parquet")
    place_of(path_of(f"{s3}/data/deep/part-0.parquet")).replace(
        (raw / "part-0.parquet").read_bytes()
    )
    assert 60 == len(rows_of(headrace.open(sources[0], cache_dir=tmp_path / "e"), None))
    assert 1 == len(caplog.messages)
    assert "is out of date" in caplog.messages[0]


@pytest.mark.parametrize("more", [{}, {"pack": 64}])
def test_more_threads_wait_for_a_store_than_for_a_disk(
    s3: str, tmp_path: Path, more: dict[str, int]
) -> None:
    table = pa.table({"input_ids": [[number] * 5 for number in range(40)]})
    (tmp_path / "raw").mkdir()
    pq.write_table(table, tmp_path / "raw" / "a.parquet")
    upload(tmp_path / "raw", f"{s3}/tokens")

    def threads(place: str | Path, **settings: int) -> int:
        dataset = headrace.open(place, cache_dir=tmp_path / "cache")
        return dataset.stream(batch_size=2, **more, **settings).options.threads  # type: ignore[arg-type]

    assert threads(f"{s3}/tokens") == 64
    assert threads(f"{s3}/tokens", read_threads=3) == threads(tmp_path / "raw", read_threads=3) == 3
    assert 2 <= threads(tmp_path / "raw") <= 8
