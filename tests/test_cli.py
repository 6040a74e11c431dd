"""The command line as its users meet it: exit codes, messages, JSON; in a real process where that is the point."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tables
from commands import headrace
from tables import small_rows, write_rows

HEADRACE = Path(sys.executable).parent / "headrace"
NEEDED = ("--time", "time", "--entity", "customer", "--split-date", "2025-01-01")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Three shards of 60 rows, 20 customers, half of the rows before 2025, customers 15-19 only after."""
    directory = tmp_path / "raw"
    directory.mkdir()
    for shard in range(3):
        rows = ["customer,time,kind,x,y"]
        for n in range(60):
            after = n % 2
            customer = (shard * 60 + n) % (20 if after else 15)
            rows.append(
                f"{customer:03d},{2024 + after}-03-{n % 28 + 1:02d} 10:00:00,{'ab'[n % 3 == 0]},{n % 4},{n % 5}"
            )
        (directory / f"part-{shard:05d}.csv").write_text("\n".join(rows) + "\n")
    return directory


def rows_of(directory: Path) -> int:
    return sum(len(path.read_text().splitlines()) - 1 for path in directory.iterdir())


def test_split_inspect_verify_gc_end_well(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments in (
        ("split", raw, "--out", out, *NEEDED),
        ("inspect", out),
        ("verify", out),
        ("gc", out),
    ):
        done = subprocess.run(
            [HEADRACE, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr


def test_inspect_tells_times_as_times_and_no_fact_that_is_none(raw: Path, tmp_path: Path) -> None:
    headrace("split", raw, "--out", tmp_path / "out", *NEEDED, "--json")
    wide = headrace("inspect", tmp_path / "out", env={"COLUMNS": "120"}).stdout
    narrow = headrace("inspect", tmp_path / "out", env={"COLUMNS": "50"}).stdout

    assert "cutoff                 │ 2025-01-01 00:00:00+00:00" in wide
    assert "None" not in wide
    # Long facts are shortened and say by how much; no cell is cut to the width of the terminal.
    cells = re.sub(r"[│\s]+", " ", narrow)
    assert "…" not in re.sub(r"… \[[\d,]+ characters left out\] …", "", cells)


def test_json_of_split_says_what_is_on_disk(raw: Path, tmp_path: Path) -> None:
    record = json.loads(headrace("split", raw, "--out", tmp_path / "out", *NEEDED, "--json").stdout)

    run = Path(record["run"])
    assert record["how"] == "computed"
    for split, totals in record["splits"].items():
        assert rows_of(run / "training_data" / split) == totals["rows"]
    assert (
        sum(t["rows"] for t in record["splits"].values()) + sum(record["dropped"].values()) == 180
    )


def test_a_second_run_reuses_the_first_and_says_so(raw: Path, tmp_path: Path) -> None:
    headrace("split", raw, "--out", tmp_path / "out", *NEEDED)
    again = headrace("split", raw, "--out", tmp_path / "out", *NEEDED)

    assert again.returncode == 0
    assert "reused" in again.stdout


def test_a_configuration_file_and_flags_are_the_same_run(raw: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"recipe: temporal_split\nsource: {raw}\nout: {tmp_path / 'out'}\n"
        "time: time\nentity: customer\nsplit_date: 2025-01-01\nworkers: 1\n"
    )
    by_file = json.loads(headrace("run", config, "--json").stdout)
    by_flags = json.loads(
        headrace("split", raw, "--out", tmp_path / "out", *NEEDED, "--json").stdout
    )

    assert by_file["run_id"] == by_flags["run_id"]
    assert by_flags["how"] == "reused"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("split",), "SOURCE, --out"),
        (("split", "raw"), "--out"),
        (("split", "raw", "--out", "out", "--time", "time"), "--split-date"),
        (("split", "raw", "--out", "out", "--entity", "customer"), "--time, --split-date"),
        (
            ("split", "raw", "--out", "out", *NEEDED[:4], "--split-date", "soon"),
            "--split-date is 'soon'",
        ),
        (("split", "raw", "--out", "out", *NEEDED, "--train-ratio", "1.5"), "--train-ratio is 1.5"),
        (("split", "raw", "--out", "out", *NEEDED, "--layout", "flat"), "layout"),
        (("split", "raw", "--out", "out", *NEEDED, "--types", "x"), "--types"),
        (("split", "raw", "--out", "out", *NEEDED, "--time-zone", "Mars/Olympus"), "Mars/Olympus"),
        (("run", "missing.yaml"), "missing.yaml"),
        (("nonsense",), "nonsense"),
    ],
)
def test_a_wrong_command_exits_2_and_says_what_is_wrong(
    arguments: tuple[str, ...], says: str, raw: Path
) -> None:
    done = headrace(*arguments, cwd=raw.parent)

    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_setting_is_answered_with_the_nearest_one(raw: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"recipe: temporal_split\nsource: {raw}\nout: o\ntme: time\nentity: c\nsplit_date: 2025-01-01\n"
    )
    done = headrace("run", config)

    assert done.returncode == 2
    assert "'time'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("split", "nowhere", "--out", "out", *NEEDED), "nowhere"),
        (("split", "raw", "--out", "out", "--time", "when", *NEEDED[2:]), "no column 'when'"),
        (
            ("split", "raw", "--out", "out", *NEEDED[:4], "--split-date", "2020-01-01"),
            "train has no rows",
        ),
        (("verify", "raw"), "no finished run"),
        (("inspect", "nowhere"), "no such directory"),
        (("gc", "raw"), "not a dataset directory"),
    ],
)
def test_wrong_data_exits_1_and_says_what_is_wrong(
    arguments: tuple[str, ...], says: str, raw: Path
) -> None:
    done = headrace(*arguments, cwd=raw.parent)

    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (raw.parent / "out" / "splits").exists()


def test_verify_names_the_damaged_shard_and_exits_1(raw: Path, tmp_path: Path) -> None:
    record = json.loads(headrace("split", raw, "--out", tmp_path / "out", *NEEDED, "--json").stdout)
    shard = Path(record["run"]) / "training_data" / "train" / "part-00001.csv"
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shard.write_bytes(damaged)
    done = headrace("verify", tmp_path / "out")

    assert done.returncode == 1
    assert "part-00001.csv" in done.stderr


OLD_JOB = {
    "DATE_COLUMN": "time",
    "GROUP_ID_COLUMN": "customer",
    "SPLIT_DATE": "2025-01-01",
    "TRAIN_RATIO": "0.8",
    "RANDOM_SEED": "7",
    "ENABLE_TRUE_STREAMING": "true",
    "OUTPUT_FORMAT": "CSV",
    "MAX_WORKERS": "2",
    "SHARD_SIZE": "100000",
    "STREAMING_BATCH_SIZE": "10",
    "TARGETS": "None",
    "MAIN_TASK_INDEX": "",
    "LABEL_FIELD": "null",
}


def test_the_old_jobs_environment_gives_its_directories(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = headrace("split", raw, "--out", out, "--from-env", "--json", env=OLD_JOB)
    assert done.returncode == 0, done.stderr

    record = json.loads(done.stdout)
    for split in ("train", "val", "test"):
        assert rows_of(out / "training_data" / split) == record["splits"][split]["rows"]
    tests = {path.name: path.read_bytes() for path in (out / "training_data" / "test").iterdir()}
    assert tests == {path.name: path.read_bytes() for path in (out / "oot_data").iterdir()}


def test_the_old_jobs_default_is_one_csv_a_split(raw: Path, tmp_path: Path) -> None:
    environment = {
        **OLD_JOB,
        "ENABLE_TRUE_STREAMING": "None",
        "OUTPUT_FORMAT": "",
        "MAX_WORKERS": "None",
    }
    done = headrace("split", raw, "--out", tmp_path / "out", "--from-env", env=environment)
    assert done.returncode == 0, done.stderr

    names = {
        path.relative_to(tmp_path / "out").as_posix()
        for path in (tmp_path / "out").rglob("*_data.csv")
    }
    expected = {
        f"training_data/{split}/{split}_processed_data.csv" for split in ("train", "val", "test")
    }
    assert expected | {"oot_data/oot_data.csv"} <= {
        name for name in names if not name.startswith("runs/")
    }


def test_targets_and_label_come_from_the_environment(raw: Path, tmp_path: Path) -> None:
    environment = {
        **OLD_JOB,
        "TARGETS": "['kind', 'x', 'y']",
        "MAIN_TASK_INDEX": "0",
        "LABEL_FIELD": "kind",
    }
    record = json.loads(
        headrace(
            "split", raw, "--out", tmp_path / "out", "--from-env", "--json", env=environment
        ).stdout
    )

    assert record["metadata"]["label_map"] == {str(n): n for n in range(5)}


@pytest.mark.parametrize("extension", [".csv.gz", ".csv.zst", ".jsonl.gz", ".parquet"])
@pytest.mark.parametrize("streaming", ["true", "false"])
@pytest.mark.parametrize("output", ["csv", "TSV"])
def test_the_old_jobs_names_do_not_follow_the_compression_of_its_input(
    tmp_path: Path, extension: str, streaming: str, output: str
) -> None:
    for number in (1, 42):
        rows = [[str(value) for value in row] for row in small_rows(120, first=120 * number)]
        write_rows(tmp_path / "raw" / f"part-{number:05d}{extension}", tables.HEADER, rows)
    environment = {
        "DATE_COLUMN": "date",
        "GROUP_ID_COLUMN": "id",
        "SPLIT_DATE": "2025-01-01",
        "TRAIN_RATIO": "0.5",
        "ENABLE_TRUE_STREAMING": streaming,
        "OUTPUT_FORMAT": output,
    }
    done = headrace(
        "split",
        tmp_path / "raw",
        "--out",
        tmp_path / "out",
        "--from-env",
        "--json",
        env=environment,
    )
    assert done.returncode == 0, done.stderr

    end = output.lower()
    parts = {f"part-00001.{end}", f"part-00042.{end}"}
    for split in ("train", "val", "test"):
        own = {path.name for path in (tmp_path / "out" / "training_data" / split).iterdir()}
        assert own == parts if streaming == "true" else own == {f"{split}_processed_data.{end}"}
        for path in (tmp_path / "out" / "training_data" / split).iterdir():
            assert path.read_bytes().startswith(
                b"id,date,row" if end == "csv" else b"id\tdate\trow"
            )
    oot = {path.name for path in (tmp_path / "out" / "oot_data").iterdir()}
    assert oot == parts if streaming == "true" else oot == {f"oot_data.{end}"}


@pytest.mark.parametrize(
    ("name", "value", "missing"),
    [("TARGETS", "kind,x", "MAIN_TASK_INDEX"), ("MAIN_TASK_INDEX", "0", "TARGETS")],
)
def test_half_a_main_target_exits_2_and_names_the_other_half(
    raw: Path, tmp_path: Path, name: str, value: str, missing: str
) -> None:
    environment = {
        each: word for each, word in OLD_JOB.items() if each not in ("TARGETS", "MAIN_TASK_INDEX")
    }
    done = headrace(
        "split", raw, "--out", tmp_path / "out", "--from-env", env={**environment, name: value}
    )

    assert done.returncode == 2
    assert f"{missing} is not set" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("name", "value"), [("TRAIN_RATIO", "most"), ("OUTPUT_FORMAT", "xlsx"), ("MAX_WORKERS", "few")]
)
def test_a_wrong_variable_exits_2_and_is_named(
    name: str, value: str, raw: Path, tmp_path: Path
) -> None:
    done = headrace(
        "split", raw, "--out", tmp_path / "out", "--from-env", env={**OLD_JOB, name: value}
    )

    assert done.returncode == 2
    assert name in done.stderr


def test_an_export_never_mixes_with_the_files_of_another_run(raw: Path, tmp_path: Path) -> None:
    stale = tmp_path / "out" / "training_data" / "train" / "part-00099.csv"
    stale.parent.mkdir(parents=True)
    stale.write_text("old\n")
    done = headrace("split", raw, "--out", tmp_path / "out", "--from-env", env=OLD_JOB)

    assert done.returncode == 1
    assert "part-00099.csv" in done.stderr


def test_an_export_never_replaces_files_of_another_run_one_by_one(
    raw: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert headrace("split", raw, "--out", out, "--from-env", env=OLD_JOB).returncode == 0
    before = {
        path: path.read_bytes()
        for path in sorted((out / "training_data").rglob("*.*"))
        if path.is_file()
    }
    assert headrace("split", raw, "--out", out, "--from-env", env=OLD_JOB).returncode == 0
    done = headrace("split", raw, "--out", out, "--from-env", env={**OLD_JOB, "TRAIN_RATIO": "0.3"})

    assert done.returncode == 1
    assert "is not of this run and would mix with it; empty" in done.stderr
    assert before == {path: path.read_bytes() for path in before}


def test_the_environment_is_not_read_unless_asked(raw: Path, tmp_path: Path) -> None:
    done = headrace("split", raw, "--out", tmp_path / "out", "--entity", "customer", env=OLD_JOB)

    assert done.returncode == 2
    assert "--time, --split-date" in done.stderr


def test_every_command_has_help_with_an_example() -> None:
    for command in ("split", "run", "inspect", "verify", "gc", "doctor", "plan"):
        done = headrace(command, "--help")
        assert done.returncode == 0
        assert f"headrace {command}" in done.stdout
        assert "Example" in done.stdout


def test_the_version_is_the_packages() -> None:
    import headrace as package

    assert headrace("--version").stdout.strip() == f"headrace {package.__version__}"
