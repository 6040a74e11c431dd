"""A run without some entities has the other rows in their order, and every file that held none of theirs as it was."""

import csv
import gzip
import json
import os
import signal
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forks import server
from recipe_runs import recipes_over

import headrace
from headrace.cli.entities import entity_names
from headrace.dataset.entities import entity_column
from headrace.dataset.open import find_run
from headrace.errors import CorruptShard, InputError, RunBusy, SettingsError
from headrace.formats.text_columns import as_text
from headrace.run.forget import FORGOTTEN
from headrace.split.allocate import hash_entities
from raised import raised

NAMES = ("customer-alpha", "customer-beta", "customer-late", "nobody at all")
SETTINGS = {
    "time": "when",
    "entity": "who",
    "split_date": "2024-07-01",
    "train_ratio": 0.6,
    "val_in_test": "keep",
}


def source(root: Path, kind: str, shards: int = 9, rows: int = 80) -> Path:
    """Shards of a few entities each; NAMES are in some shards only."""
    root.mkdir()
    dice = np.random.default_rng(4)
    for shard in range(shards):
        pool = [f"c{shard}-{each}" for each in range(6)] + (
            ["customer-alpha"] if shard in (1, 4) else []
        )
        pool += ["customer-beta"] if shard == 5 else []
        table = [
            {
                "who": pool[dice.integers(len(pool))],
                "when": f"2024-{1 + dice.integers(12):02d}-{1 + dice.integers(28):02d}T05:00:00",
                "x": int(dice.integers(1000)),
                "note": 'said "yes", then\nleft' if row % 7 == 0 else "",
            }
            for row in range(rows)
        ]
        if shard == 7:  # an entity of the test split alone
            table += [
                {"who": "customer-late", "when": "2024-09-01T05:00:00", "x": row, "note": ""}
                for row in range(5)
            ]
        if kind == "parquet":
            pq.write_table(
                pa.Table.from_pylist(table), root / f"part-{shard}.parquet", row_group_size=30
            )
            continue
        if kind.startswith("jsonl"):
            text = "".join(json.dumps(row) + "\n" for row in table)
        else:
            text = "who,when,x,note\r\n" + "".join(
                f"{row['who']},{row['when']},{row['x']},{json.dumps(row['note'])[:1] + row['note'].replace(chr(34), chr(34) * 2) + chr(34)}\r\n"
                for row in table
            )
        data = text.encode()
        (root / f"part-{shard}.{kind}").write_bytes(
            gzip.compress(data) if kind.endswith("gz") else data
        )
    return root


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def prepared(tmp_path: Path, kind: str, layout: str = "sharded", **settings):
    split = headrace.TemporalSplit(
        source=str(source(tmp_path / "raw", kind)), layout=layout, **SETTINGS, **settings
    )
    return headrace.prepare(split, tmp_path / "out")


def rows_of(run: Path) -> dict[str, list[dict]]:
    """The rows of each split in their natural order."""
    dataset = headrace.open(run)
    return {
        split: [
            row
            for block in range(len(dataset.split_index(split).rows))
            for row in dataset.block_reader(split)(block, None).to_pylist()
        ]
        for split in dataset.splits
    }


def files_of(run: Path) -> dict[str, Path]:
    return {
        path.relative_to(run).as_posix(): path
        for path in run.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "parquet"])
@pytest.mark.parametrize("layout", ["sharded", "single"])
def test_the_other_rows_stay_in_their_order_and_untouched_shards_are_the_same_files(
    tmp_path, kind, layout
):
    before = prepared(tmp_path, kind, layout)
    old_rows, old_files = rows_of(before.run), files_of(before.run)

    done = headrace.forget(tmp_path / "out", NAMES)
    expected = {
        split: [row for row in rows if row["who"] not in NAMES] for split, rows in old_rows.items()
    }
    gone = {split: len(old_rows[split]) - len(rows) for split, rows in expected.items()}
    assert rows_of(done.run) == expected
    assert (4, 3, sum(gone.values()), "computed") == (
        done.entities,
        done.matched,
        done.rows,
        done.how,
    )
    assert min(gone["train"] + gone["val"], gone["test"]) > 0
    assert done.bytes <= 1.1 * done.bytes_before
    assert [] == headrace.verify(tmp_path / "out").problems == headrace.verify(before.run).problems

    held = {
        shard for split, rows in old_rows.items() for shard in shards_holding(before.run, split)
    }
    shards = [name for name in old_files if name.startswith(("training_data/", "oot_data/"))]
    new_files = files_of(done.run)
    assert done.shards == len([name for name in held if not name.startswith("oot")])
    for name in set(shards) - held:
        assert new_files[name].samefile(old_files[name]), name
    for name in held & set(new_files):
        assert not new_files[name].samefile(old_files[name]), name


def shards_holding(run: Path, split: str) -> set[str]:
    """Shards with rows of the entities, with their second names."""
    dataset = headrace.open(run)
    index = dataset.split_index(split)
    found = set()
    for block in range(len(index.rows)):
        if set(dataset.block_reader(split)(block, ["who"])["who"].to_pylist()) & set(NAMES):
            path = run / index.shards[int(index.shard_of_block[block])]
            found |= {name for name, each in files_of(run).items() if each.samefile(path)}
    return found


@pytest.mark.slow
def test_the_manifest_counts_the_rows_and_nothing_names_the_entities(tmp_path):
    before = prepared(tmp_path, "csv")
    done = headrace.forget(tmp_path / "out", NAMES)
    _, manifest = find_run(tmp_path / "out")
    receipt = json.loads((done.run / FORGOTTEN).read_bytes())

    assert manifest.run_id != before.manifest.run_id
    assert {**before.manifest.dropped, "forgotten": done.rows} == manifest.dropped
    assert (before.manifest.source, before.manifest.config_digest) == (
        manifest.source,
        manifest.config_digest,
    )
    assert 3 == manifest.metadata["forgotten"][0]["entities"] == len(receipt["entities"])
    assert before.manifest.run_id == manifest.metadata["forgotten"][0]["run"] == receipt["of"]
    assert (
        done.rows
        == receipt["rows"]
        == sum(each["rows_before"] - each["rows"] for each in receipt["shards"])
    )
    assert before.manifest.metadata["train_entities"] + before.manifest.metadata[
        "val_entities"
    ] - 2 == (manifest.metadata["train_entities"] + manifest.metadata["val_entities"])
    for name, path in files_of(done.run).items():
        assert not any(each.encode() in path.read_bytes() for each in NAMES), name


@pytest.mark.slow
@pytest.mark.parametrize("duplicates", ["count", "group", "drop"])
def test_repeated_content_is_counted_again_and_the_run_can_be_certified(tmp_path, duplicates):
    raw = source(tmp_path / "raw", "csv")
    twice = [
        f"{name},2024-0{1 + n % 9}-05T05:00:00,{n % 40},same\r\n"
        for n in range(90)
        for name in ("customer-alpha", f"c1-{n % 5}")
    ]
    (raw / "part-9.csv").write_text("who,when,x,note\r\n" + "".join(twice))
    split = headrace.TemporalSplit(
        source=str(raw), duplicates=duplicates, content=["x", "note"], **SETTINGS
    )
    before = headrace.prepare(split, tmp_path / "out").manifest
    done = headrace.forget(tmp_path / "out", NAMES)

    assert [] == headrace.verify(tmp_path / "out").problems
    assert done.run.name in json.dumps(headrace.certify(tmp_path / "out"))
    after = find_run(tmp_path / "out")[1]
    if duplicates == "count":
        assert sum(before.metadata["duplicates"]["repeated"].values()) > sum(
            after.metadata["duplicates"]["repeated"].values()
        )


def test_columns_types_compression_and_rows_of_groups_are_kept(tmp_path):
    before = prepared(tmp_path, "parquet", compression="zstd")
    done = headrace.forget(tmp_path / "out", NAMES)
    for name in shards_holding(before.run, "train"):
        old, new = (pq.ParquetFile(run / name) for run in (before.run, done.run))

        assert old.schema_arrow.equals(new.schema_arrow, check_metadata=True)
        assert {"ZSTD"} == {
            new.metadata.row_group(0).column(at).compression
            for at in range(new.metadata.num_columns)
        }


@pytest.mark.slow
def test_erased_twice_is_erased_once_and_more_can_be_erased_later(tmp_path):
    before = prepared(tmp_path, "jsonl")
    first = headrace.forget(tmp_path / "out", NAMES[:1])
    again = headrace.forget(tmp_path / "out", NAMES[:1])
    second = headrace.forget(tmp_path / "out", NAMES[1:], old_run="delete")

    assert ("nothing", 0, first.run) == (again.how, again.rows, again.run)
    assert not first.run.exists()
    assert (before.manifest.run_id,) == second.other_runs
    _, manifest = find_run(tmp_path / "out")
    assert first.rows + second.rows == manifest.dropped["forgotten"]
    assert 2 == len(manifest.metadata["forgotten"])
    assert [] == headrace.verify(tmp_path / "out").problems
    expected = {
        split: [row for row in rows if row["who"] not in NAMES]
        for split, rows in rows_of(before.run).items()
    }
    assert expected == rows_of(second.run)


@pytest.mark.slow
def test_a_shard_of_erased_entities_alone_is_gone(tmp_path):
    raw = source(tmp_path / "raw", "csv")
    (raw / "part-9.csv").write_text("who,when,x,note\r\n" + "customer-alpha,2024-01-01,1,\r\n" * 5)
    headrace.prepare(headrace.TemporalSplit(source=str(raw), **SETTINGS), tmp_path / "out")
    old = set(files_of(find_run(tmp_path / "out")[0]))
    done = headrace.forget(tmp_path / "out", NAMES)

    assert {"part-00009.csv"} == {
        Path(name).name for name in old - set(files_of(done.run)) if name.endswith("csv")
    }
    assert [] == headrace.verify(tmp_path / "out").problems


@pytest.mark.slow
@pytest.mark.parametrize("copied", [True, False])
def test_second_names_of_a_touched_shard_are_of_the_new_one(tmp_path, copied):
    before = prepared(tmp_path, "csv")
    if copied:  # a copy without links has files of their own under the second names
        for path in sorted((before.run / "oot_data").iterdir()):
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
    done = headrace.forget(tmp_path / "out", NAMES)

    for path in sorted((done.run / "oot_data").iterdir()):
        assert path.read_bytes() == (done.run / "training_data" / "test" / path.name).read_bytes()
    assert [] == headrace.verify(tmp_path / "out").problems


@pytest.mark.slow
def test_a_rewrite_of_plain_shards_and_of_a_run_forgets(tmp_path):
    raw = source(tmp_path / "raw", "parquet")
    headrace.rewrite(raw, tmp_path / "fast")
    with raised(SettingsError, setting="entity_column"):
        headrace.forget(tmp_path / "fast", NAMES)
    before = rows_of(find_run(tmp_path / "fast")[0])
    done = headrace.forget(tmp_path / "fast", NAMES, entity_column="who")

    assert {"all": [row for row in before["all"] if row["who"] not in NAMES]} == rows_of(done.run)
    assert [] == headrace.verify(tmp_path / "fast").problems

    headrace.prepare(headrace.TemporalSplit(source=str(raw), **SETTINGS), tmp_path / "out")
    headrace.rewrite(tmp_path / "out", tmp_path / "faster")
    done = headrace.forget(
        tmp_path / "faster", NAMES
    )  # the entity is that of the run that was rewritten
    assert 3 == done.matched


def test_what_cannot_be_erased_is_refused(tmp_path):
    run = prepared(tmp_path, "csv").run
    for names in ("one text", [3]):
        with raised(SettingsError, setting="entities"):
            headrace.forget(tmp_path / "out", names)
    with raised(SettingsError, path=run, remedy="give the directory that has it in runs/"):
        headrace.forget(run, NAMES)
    with raised(InputError, path=tmp_path / "raw", remedy="prepare it first"):
        headrace.forget(tmp_path / "raw", NAMES)
    with pytest.raises(SettingsError, match="old_run is 'remove'"):
        headrace.forget(tmp_path / "out", NAMES, old_run="remove")


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([7, 8, 9] * 20),
        pa.array([7, 8, 9] * 20, pa.decimal128(9, 2)),
        pa.array([7, 8, 9] * 20, pa.date32()),
        pa.array([7, 8, 9] * 20, pa.timestamp("us", "Europe/Berlin")),
        pa.array(["7", "8", "9"] * 20).dictionary_encode(),
    ],
    ids=lambda each: str(each.type),
)
def test_entities_of_any_type_are_erased_by_their_text_one_or_all(tmp_path, ids):
    (tmp_path / "raw").mkdir()
    whens = [f"2024-{1 + row % 12:02d}-11" for row in range(60)]
    pq.write_table(pa.table({"who": ids, "when": whens}), tmp_path / "raw" / "rows.parquet")
    headrace.prepare(
        headrace.TemporalSplit(source=str(tmp_path / "raw"), **SETTINGS), tmp_path / "out"
    )
    names = as_text(pa.chunked_array([ids]), (), "who").unique().to_pylist()
    before = sum(headrace.open(tmp_path / "out").split_rows.values())
    first = headrace.forget(tmp_path / "out", (name for name in names[:1]))
    every = headrace.forget(tmp_path / "out", names, old_run="delete")

    assert (first.matched, every.matched, first.rows + every.rows) == (1, 2, before)
    assert 0 == sum(headrace.open(tmp_path / "out").split_rows.values())
    assert [] == headrace.verify(tmp_path / "out").problems


def test_an_entity_of_a_file_is_a_whole_line(tmp_path):
    (tmp_path / "gone.txt").write_bytes("a\x0cb\r\nc\u2028d\n\na\x0cb\n".encode())

    assert ["z", "a\x0cb", "c\u2028d"] == entity_names(["z"], tmp_path / "gone.txt")


@pytest.mark.slow
def test_a_damaged_shard_is_not_written_again(tmp_path):
    run = prepared(tmp_path, "csv").run
    name = next(iter(shards_holding(run, "train")))
    data = bytearray((run / name).read_bytes())
    data[-3] ^= 1
    (run / name).write_bytes(data)

    with raised(headrace.errors.CorruptShard, path=run / name, remedy="restore it"):
        headrace.forget(tmp_path / "out", NAMES)
    assert run == find_run(tmp_path / "out")[0]


STEPS = {"shard.written": 2, "shard.linked": 2, "receipt.linked": 2}
STEPS |= {"index.linked": 1, "manifest.linked": 1, "links.made": 1}


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_leaves_the_old_run_and_a_second_call_finishes(tmp_path, step):
    before = prepared(tmp_path, "csv")
    arguments = (str(tmp_path / "out"), list(NAMES), os.environ["HOME"], step, STEPS[step])
    child = server().start("forgetting:child", *arguments, output=tmp_path / "output")
    assert -signal.SIGKILL == child.wait().code

    assert before.run == find_run(tmp_path / "out")[0]
    assert [] == headrace.verify(tmp_path / "out").problems
    tasks = Counter()
    done = headrace.forget(
        tmp_path / "out",
        NAMES,
        on_event=lambda event: tasks.update([getattr(event, "name", type(event).__name__)]),
    )
    assert [] == headrace.verify(tmp_path / "out").problems
    expected = {
        split: [row for row in rows if row["who"] not in NAMES]
        for split, rows in rows_of(before.run).items()
    }
    assert expected == rows_of(done.run)
    if step == "receipt.linked":
        assert tasks["receipt.linked"] == done.shards - 2


@pytest.mark.slow
def test_every_recipe_says_whose_its_rows_are_and_forgets_or_says_why_not(tmp_path):
    recipes = recipes_over(tmp_path / "source", rows=300, shards=3)
    columns = {"temporal_split": "id", "series": "entity", "histories": "src_id"}
    for name, recipe in recipes.items():
        made = recipe()
        if name == "histories":
            made = made.model_copy(update={"format": "arrow"})
        run = headrace.prepare(made, tmp_path / name).run
        if name in columns:
            assert columns[name] == entity_column(headrace.open(run))
        else:
            with raised(SettingsError, setting="entity_column"):
                entity_column(headrace.open(run))
        why = "the entity of its rows" if name == "rewrite" else "written again in part"
        with nullcontext() if name == "temporal_split" else pytest.raises(SettingsError, match=why):
            assert "nothing" == headrace.forget(tmp_path / name, ["nobody at all"]).how


@pytest.mark.parametrize("step", ["receipt.linked", "splits.linked"])
def test_an_erasure_under_way_is_named_and_never_undone(tmp_path, monkeypatch, step):
    home = str(tmp_path / "home")
    monkeypatch.setenv("HOME", home)
    prepared(tmp_path, "csv")
    out = tmp_path / "out"
    arguments = (str(out), NAMES[:1], home, step, "delete")
    child = server().start("forgetting:suspended", *arguments, output=tmp_path / "output")
    while (
        state := Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
    ) != "T":
        assert state != "Z", (tmp_path / "output").read_text()
        time.sleep(0.01)

    at_work = find_run(out)[0] if step == "receipt.linked" else None
    for names in (NAMES[:1], NAMES[1:2]) if at_work else ():
        with raised(RunBusy, path=at_work, remedy="wait for it") as caught:
            headrace.forget(out, names)
        assert f"(PID {child.pid} on" in str(caught.value)
        assert "erases entities" in str(caught.value)
    headrace.collect(out, incomplete="remove")
    assert [] == headrace.verify(out).problems
    child.kill(signal.SIGCONT)
    ended = child.wait()

    assert (0, "computed\n") == (ended.code, ended.output)
    assert "nothing" == headrace.forget(out, NAMES[:1]).how
    assert "computed" == headrace.forget(out, NAMES[1:2], old_run="delete").how
    assert not {row["who"] for rows in rows_of(out).values() for row in rows} & set(NAMES[:2])
    assert 1 == len(list((out / "runs").iterdir()))
    assert [] == headrace.verify(out).problems


def test_a_reader_of_a_run_that_was_erased_is_told_to_open_the_dataset_again(tmp_path):
    prepared(tmp_path, "csv")
    dataset = headrace.open(tmp_path / "out")
    reader = dataset.block_reader("train")
    headrace.forget(tmp_path / "out", NAMES[:1], old_run="delete")

    with raised(CorruptShard, remedy="open the dataset again"):
        reader(0, None)


@pytest.mark.parametrize("recipe", ["temporal", "random"])
def test_no_hash_of_an_erased_entity_stays_in_what_later_runs_read(tmp_path, recipe):
    shards = source(tmp_path / "in", "csv", shards=4)

    def prepare(**options):
        if recipe == "temporal":
            settings = headrace.TemporalSplit(source=shards, **SETTINGS, **options)
        else:
            settings = headrace.RandomSplit(source=shards, by="who", stratify="note", **options)
        return headrace.prepare(settings, tmp_path / "out").run

    def hashes_in(run):
        hashes = set()
        for path in run.glob("assignment/*"):
            table = pa.ipc.open_file(path).read_all()
            if "high" in table.column_names:
                hashes.update(zip(table["high"].to_pylist(), table["low"].to_pylist(), strict=True))
            else:
                hashes.update(table["content"].to_pylist())
        return hashes

    prepare()
    gone = min(shards.glob("*"))
    only_there = [f"c0-{each}" for each in range(6)]
    gone.unlink()
    run = prepare(assignment_from=tmp_path / "out")
    high, low = hash_entities(pa.array(["customer-alpha", *only_there]), 42).__dict__.values()
    erased = set(zip(high.tolist(), low.tolist(), strict=True))
    assert erased <= hashes_in(run)

    before = rows_of(run)
    done = headrace.forget(tmp_path / "out", ["customer-alpha", *only_there])
    assert len(erased) == done.matched
    assert not erased & hashes_in(done.run)
    assert not headrace.verify(tmp_path / "out").problems
    for path in shards.glob("*"):
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row[0] != "customer-alpha"]
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    later = prepare(assignment_from=tmp_path / "out")
    assert not erased & hashes_in(later)
    kept = {
        split: {row["who"] for row in rows} - {"customer-alpha"} for split, rows in before.items()
    }
    assert kept == {split: {row["who"] for row in rows} for split, rows in rows_of(later).items()}
