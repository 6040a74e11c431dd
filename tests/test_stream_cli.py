"""The commands that look at a stream, as their users meet them: exit codes, messages, JSON that agrees with streams.

The command line runs in this process where a process is not the point: starting Python and torch is what costs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rank_processes import run_ranks
from validation_cases import validate_on_rank

import headrace as library
from commands import ended, headrace
from headrace import validate_sharding
from headrace.errors import SettingsError
from headrace.stream.ranks.topology import Topology
from raised import raised
from tables import HEADER, small_rows, small_source, split, write_rows

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
    assert ["8_rows", "256_rows", "global_batch", "rank_batch"] == list(record["mixing"])
    assert 16 == record["mixing"]["global_batch"]["rows"]
    for found in record["mixing"].values():
        assert 0 <= found["single_class"] <= 1 <= found["classes"] <= min(100, found["rows"])


def test_the_plan_of_plain_shards_reads_only_the_index(tmp_path, home, monkeypatch):
    raw = small_source(tmp_path / "raw", extension=".parquet")
    first = json_of("plan", raw, "--ranks", "3", "--batch-size", "5", "--no-shuffle")
    monkeypatch.setattr("headrace.dataset.plain.build", None)  # no file is looked at again
    second = json_of("plan", raw, "--ranks", "3", "--batch-size", "5", "--no-shuffle")

    assert first == second
    assert first["ok"]
    assert 1 == len(list((home / ".cache" / "headrace").iterdir()))


def test_the_plan_of_a_state_is_of_what_it_leaves_on_these_ranks(out, tmp_path):
    settings = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 7,
        "lanes": 4,
        "shuffle_rows": 40,
        "batch_format": "numpy",
    }
    loader = library.open(out).stream("train", **settings, topology=Topology(rank=0, world_size=4))
    batches = iter(loader)
    next(batches)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    batches.close()
    asked = (
        "plan",
        out,
        "--split",
        "train",
        "--batch-size",
        "4",
        "--state",
        tmp_path / "state.json",
    )
    record = json_of(*asked, "--ranks", "3")  # seed and order are those of the state
    resumed = library.open(out).stream("train", **settings, topology=Topology(rank=0, world_size=3))
    resumed.load_state_dict(loader.state_dict())

    assert record["ok"]
    assert record["epoch_rows"] - 16 == record["left_rows"]
    assert (resumed.remaining, round(resumed.plan().read_amplification, 3)) == (
        record["steps_per_rank"],
        record["read_amplification"],
    )
    assert record["better_lanes"] is None
    assert record["epoch_rows"] - 16 == json_of(*asked, "--ranks", "2")["left_rows"]


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

    assert wanted == batch["row"][said["batch_row"]]


def test_seen_counts_what_a_checkpoint_received(out, tmp_path):
    loader = library.open(out).stream("train", batch_size=8, shuffle=True, batch_format="numpy")
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    batches.close()
    record = json_of("where", out, "--seen", tmp_path / "state.json")

    assert 24 == record["seen_rows"] == sum(each["seen_rows"] for each in record["shards"].values())
    assert record["rows"] == sum(each["rows"] for each in record["shards"].values())
    assert pytest.approx(24 / record["rows"], abs=1e-6) == record["share"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("where", "OUT", *SPLIT), "give --row SHARD:ROW"),
        (("forget", "OUT", "--entities", "none.txt"), "cannot be read as UTF-8 text"),
        (("forget", "OUT"), "no entity was given"),
        (("forget", "a", "raw"), "holds no finished run"),
    ],
)
def test_wrong_questions_end_in_one_message(words, message, out, monkeypatch):
    monkeypatch.chdir(out.parent)
    done = headrace(*(out if word == "OUT" else word for word in words))

    assert (done.returncode in (1, 2), message in done.stderr, "Traceback" in done.stderr) == (
        True,
        True,
        False,
    )


def test_peek_shows_the_first_rows_with_types(tmp_path, home):
    write_rows(tmp_path / "a.parquet", HEADER, small_rows(5))
    write_rows(tmp_path / "b.parquet", HEADER, small_rows(5, first=5))
    record = json_of("peek", tmp_path / "*.parquet", "--rows", "7")

    assert [dict(zip(HEADER, row, strict=True)) for row in small_rows(7)] == record["rows"]
    assert ["text"] * 3 == [each["type"] for each in record["schema"]]
    assert "all: 2 of 10 rows" in headrace("peek", tmp_path / "*.parquet", "--rows", "2").stdout


def test_every_command_prints_a_table_too(out, tmp_path):
    (tmp_path / "state.json").write_text(
        json.dumps(library.open(out).stream("val", batch_size=1).state_dict())
    )
    shard = library.open(out).split_index("train").shards[0]
    for arguments, text in [
        (("plan", out, *SPLIT, "--detail"), "steps per rank"),
        (("where", out, "--row", f"{shard}:0", *SPLIT), "of rank"),
        (("where", out, "--seen", tmp_path / "state.json"), "val, epoch 0: 0 of"),
    ]:
        done = headrace(*arguments)
        assert done.returncode == 0, done.stderr
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("plan", "OUT", "--ranks", "2", "--batch-size", "8"), 1, "has 3 splits"),
        (("plan", "OUT", *SPLIT, "--remainder", "some"), 2, "'some' is not one of"),
        (("plan", "OUT", *SPLIT, "--remainder", "exact"), 2, "--remainder exact"),
        (("where", "OUT", "--row", "part", *SPLIT), 2, "give SHARD:ROW"),
        (("where", "OUT", "--row", "part:1", *SPLIT), 1, "no shards of this name"),
        (("where", "OUT", "--seen", "none.json"), 2, "cannot be read"),
        (("plan", "OUT", *SPLIT, "--state", "none.json"), 2, "cannot be read"),
        (("peek", "nowhere"), 1, "no such file or directory"),
    ],
)
def test_what_cannot_be_done_ends_in_one_message(arguments, code, message, out):
    done = headrace(*(str(out) if each == "OUT" else each for each in arguments))

    assert code == done.returncode, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def verdict_of(done):
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def test_validation_under_torchrun_with_workers(out):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    asked = ["--data", str(out), "--split", "train", "--batch-size", "8", "--workers", "1"]
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "headrace.validate_sharding", *asked],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        timeout=200,
    )
    verdict = verdict_of(done)

    assert done.returncode == 0, done.stderr
    assert verdict["ok"]
    assert verdict["expected_rows"] == verdict["distinct"] == verdict["rows"]
    assert 2 == len(verdict["batches_per_rank"])


def validate(
    folder: Path, ranks: int, *arguments: object
) -> list[subprocess.CompletedProcess[str]]:
    """What each of several ranks says of the same command, started as a launcher starts them."""
    run_ranks(validate_on_rank, ranks, ranks, str(folder), [str(each) for each in arguments])
    records = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    return [
        subprocess.CompletedProcess([], each["code"], each["out"], each["err"]) for each in records
    ]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_validation_passes_on_every_rank(ranks, out, tmp_path):
    done = validate(tmp_path, ranks, "--data", out, "--split", "train", "--batch-size", "8")
    verdict = verdict_of(done[0])

    said = [line for each in done for line in each.stderr.splitlines()]
    assert [0] * ranks == [each.returncode for each in done]
    assert [] == [line for line in said if " has waited " not in line]  # a busy machine's word
    assert [""] * (ranks - 1) == [each.stdout for each in done[1:]]
    assert verdict["ok"]
    assert ranks == len(verdict["batches_per_rank"])


@pytest.mark.slow
def test_validation_fails_on_every_rank_without_hanging_when_one_meets_damage(tmp_path):
    raw = small_source(tmp_path / "raw", extension=".parquet", count=4)
    library.open(raw, cache_dir=tmp_path / "home" / ".cache" / "headrace")
    broken = raw / "part-00002.parquet"
    stat = broken.stat()
    broken.write_bytes(bytes(stat.st_size))
    os.utime(broken, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    done = validate(tmp_path, 4, "--data", raw, "--batch-size", "8", "--no-shuffle")

    assert not verdict_of(done[0])["ok"]
    for rank, each in enumerate(done):
        assert each.returncode == 1
        assert f"rank {rank} of 4: validation failed: rank " in each.stderr
        assert "part-00002.parquet" in each.stderr


def test_validation_alone_and_its_wrong_commands(out, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    alone = ended(
        lambda: validate_sharding.main(["--data", str(out), "--split", "train"]), "validate"
    )
    as_specified = ended(
        lambda: validate_sharding.main(["--data_dir", str(out), "--split", "train"]), "validate"
    )
    wrong = ended(
        lambda: validate_sharding.main(["--data", str(out), "--batch-size", "0"]), "validate"
    )
    nothing = ended(lambda: validate_sharding.main(["--data", str(out / "none")]), "validate")

    assert (0, True) == (alone.returncode, verdict_of(alone)["ok"])
    assert verdict_of(alone) == verdict_of(as_specified)
    assert 2 == wrong.returncode
    assert "--batch-size is 0; expected 1 or more" in wrong.stderr
    assert 1 == nothing.returncode
    assert "rank 0 of 1: validation failed: rank 0:" in nothing.stderr


def test_a_place_in_the_job_is_what_the_launcher_says_or_refused(out):
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    asked = ["--data", str(out), "--split", "train"]
    wrong = ended(lambda: validate_sharding.main(asked, torchrun | {"RANK": "first"}), "validate")

    assert validate_sharding.Launched(rank=5, world_size=8, local_rank=1, local_ranks=4) == (
        validate_sharding.Launched.of(torchrun)
    )
    assert validate_sharding.Launched.of({"RANK": "5"}) is None
    assert 2 == wrong.returncode
    assert "the environment has RANK='first'; give an integer" in wrong.stderr


def test_a_backend_that_cannot_be_is_refused_before_anyone_waits_for_it():
    assert "gloo" == validate_sharding.choose_backend("auto", local_ranks=2, devices=1)
    assert "nccl" == validate_sharding.choose_backend("auto", local_ranks=2, devices=2)
    assert "gloo" == validate_sharding.choose_backend("gloo", local_ranks=2, devices=2)
    with raised(SettingsError, setting="backend", remedy="which proves the same"):
        validate_sharding.choose_backend("nccl", local_ranks=4, devices=0)


def test_plans_of_whole_shards_and_of_parts_of_epochs(out):
    shards = json_of("plan", out, *SPLIT, "--distribution", "by_size")
    part = json_of("plan", out, *SPLIT, "--samples-per-epoch", "40")

    assert shards["ok"]
    assert ("by_size", 1.0) == (shards["distribution"], shards["read_amplification"])
    assert part["ok"]
    assert (40, 20, 3) == (part["epoch_rows"], part["rows_per_rank"]["max"], part["steps_per_rank"])
