"""The commands that look at a stream, as their users meet them: real processes, exit codes, JSON that agrees with streams."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as library
from headrace.stream.topology import Topology
from tables import HEADER, small_rows, small_source, split, write_rows
from test_cli import headrace

SPLIT = ("--split", "train", "--ranks", "2", "--batch-size", "8", "--seed", "3")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    split(small_source(tmp_path / "raw"), tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of the test's own, for the cache of indexes."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def json_of(*arguments):
    done = headrace(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_plan_agrees_with_the_stream_and_its_laws_hold(out):
    record = json_of("plan", out, *SPLIT)
    loaders = [
        library.open(out).stream(
            "train",
            batch_size=8,
            seed=3,
            shuffle=True,
            batch_format="numpy",
            topology=Topology(rank=rank, world_size=2),
        )
        for rank in range(2)
    ]
    rows = [sum(int(batch["valid"].sum()) for batch in loader) for loader in loaders]

    assert record["ok"]
    assert (0, 0, 0) == (record["overlap_rows"], record["missing_rows"], record["dropped_rows"])
    assert {"min": min(rows), "max": max(rows)} == record["rows_per_rank"]
    assert sum(rows) == record["rows"]
    assert len(loaders[0]) == record["steps_per_rank"]
    assert record["read_amplification"] >= 1
    assert 0 < record["shuffle_quality"] <= 1


def test_the_plan_of_plain_shards_reads_only_the_index(tmp_path, home):
    raw = small_source(tmp_path / "raw", extension=".parquet")
    first = json_of("plan", raw, "--ranks", "3", "--workers", "2", "--batch-size", "5", "--no-shuffle")
    for path in raw.iterdir():  # the same size and time, nothing to read any more
        stat = path.stat()
        path.write_bytes(bytes(stat.st_size))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    second = json_of("plan", raw, "--ranks", "3", "--workers", "2", "--batch-size", "5", "--no-shuffle")

    assert first == second
    assert first["ok"]
    assert 1 == len(list((home / ".cache" / "headrace").iterdir()))


def test_where_says_what_ranks_receive(out):
    dataset = library.open(out)
    shard = dataset.split_index("train").shards[1]
    said = json_of("where", out, "--row", f"{shard}:5", "--epoch", "2", *SPLIT)
    block = dataset.block_reader("train")
    wanted = block(1, None).slice(5, 1).to_pylist()[0]["row"]
    loader = dataset.stream(
        "train",
        batch_size=8,
        seed=3,
        shuffle=True,
        batch_format="numpy",
        topology=Topology(rank=said["rank"], world_size=2),
    )
    loader.set_epoch(2)
    batch = list(loader)[said["step"]]

    assert wanted == batch["row"][said["place"]]


def test_seen_counts_what_a_checkpoint_received(out, tmp_path):
    loader = library.open(out).stream("train", batch_size=8, shuffle=True, batch_format="numpy")
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    batches.close()
    record = json_of("seen", tmp_path / "state.json", out)

    assert 24 == record["seen_rows"] == sum(each["seen_rows"] for each in record["shards"].values())
    assert record["rows"] == sum(each["rows"] for each in record["shards"].values())
    assert pytest.approx(24 / record["rows"], abs=1e-6) == record["share"]


def test_peek_shows_the_first_rows_with_types(tmp_path, home):
    write_rows(tmp_path / "a.parquet", HEADER, small_rows(5))
    write_rows(tmp_path / "b.parquet", HEADER, small_rows(5, first=5))
    record = json_of("peek", tmp_path / "*.parquet", "--rows", "7")

    assert [dict(zip(HEADER, row, strict=True)) for row in small_rows(7)] == record["rows"]
    assert ["text"] * 3 == [each["type"] for each in record["schema"]]
    assert "all: 2 of 10 rows" in headrace("peek", tmp_path / "*.parquet", "--rows", "2").stdout


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 0), (1, 2)])
def test_stream_delivers_every_row_in_real_processes(ranks, workers, out):
    record = json_of("stream", out, "--split", "train", "--ranks", ranks, "--workers", workers, "--batch-size", "16")

    assert library.open(out).split_rows["train"] == record["rows"]
    assert list(range(ranks)) == [each["rank"] for each in record["ranks"]]
    assert 1 == len({each["batches"] for each in record["ranks"]})
    assert record["rows_per_s"] > 0


def test_stream_stops_at_its_limit(out):
    assert 1 == json_of("stream", out, "--split", "train", "--batch-size", "1", "--limit-s", "0")["ranks"][0]["batches"]


def test_every_command_prints_a_table_too(out, tmp_path):
    (tmp_path / "state.json").write_text(json.dumps(library.open(out).stream("val", batch_size=1).state_dict()))
    shard = library.open(out).split_index("train").shards[0]
    for arguments, text in [
        (("plan", out, *SPLIT), "steps per rank"),
        (("where", out, "--row", f"{shard}:0", *SPLIT), "of rank"),
        (("seen", tmp_path / "state.json", out), "val, epoch 0: 0 of"),
        (("stream", out, "--split", "train"), "rows/s"),
    ]:
        done = headrace(*arguments)
        assert done.returncode == 0, done.stderr
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("plan", "OUT", "--ranks", "2", "--batch-size", "8"), 1, "has 3 splits"),
        (("plan", "OUT", *SPLIT, "--remainder", "some"), 2, "remainder is 'some'"),
        (("plan", "OUT", *SPLIT, "--remainder", "exact"), 2, 'remainder="exact"'),
        (("where", "OUT", "--row", "part", *SPLIT), 2, "write SHARD:ROW"),
        (("where", "OUT", "--row", "part:1", *SPLIT), 1, "is no shard"),
        (("seen", "none.json", "OUT"), 2, "cannot be read"),
        (("peek", "nowhere"), 1, "no such file or directory"),
        (("stream", "nowhere", "--ranks", "2"), 1, "no such file or directory"),
    ],
)
def test_what_cannot_be_done_ends_in_one_message(arguments, code, message, out):
    done = headrace(*(str(out) if each == "OUT" else each for each in arguments))

    assert code == done.returncode, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def validate(*arguments, ranks):
    command = [sys.executable, "-m"]
    if ranks > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [*command, "headrace.validate_sharding", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=200,
    )


def verdict_of(done):
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 0), (2, 1)])
def test_validation_passes_on_every_rank(ranks, workers, out):
    done = validate("--data", out, "--split", "train", "--batch-size", "8", "--workers", workers, ranks=ranks)

    assert done.returncode == 0, done.stderr
    verdict = verdict_of(done)
    assert verdict["ok"]
    assert verdict["expected_rows"] == verdict["distinct"] == verdict["rows"]
    assert ranks == len(verdict["batches_per_rank"])


def test_validation_fails_on_every_rank_without_hanging_when_one_meets_damage(tmp_path, home):
    raw = small_source(tmp_path / "raw", extension=".parquet", count=4)
    library.open(raw)
    broken = raw / "part-00002.parquet"
    stat = broken.stat()
    broken.write_bytes(bytes(stat.st_size))
    os.utime(broken, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    done = validate("--data", raw, "--batch-size", "8", "--no-shuffle", ranks=2)

    assert done.returncode == 1, done.stderr
    assert "part-00002.parquet" in verdict_of(done)["problems"][0]
