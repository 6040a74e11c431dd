"""What a dry run says before a run is what the run is: rows, sizes within a factor, tasks; and it writes nothing."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import yaml
from chats import small_tokenizer
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.cli.estimate.bounds import memory_of, tasks_of
from headrace.cli.estimate.heads import take_head
from headrace.cli.estimate.measured import Estimate, estimate
from headrace.cli.estimate.sized import SizedFile, sized
from headrace.formats.source import read_chunks, survey
from headrace.run.events import StageBegan

FACTOR = 2  # what the command states of sizes
SAMPLE = 60_000


def table(rows: int) -> pl.DataFrame:
    draw = random.Random(7)
    return pl.DataFrame(
        {
            "customer": [f"c{draw.randrange(500)}" for _ in range(rows)],
            "time": [f"2024-{draw.randrange(12) + 1:02d}-{draw.randrange(28) + 1:02d}" for _ in range(rows)],
            "amount": [f"{draw.uniform(0, 99):.2f}" for _ in range(rows)],
            "note": ['"a", b' if n % 9 == 0 else f"n {draw.randrange(9999)}" for n in range(rows)],
        }
    )


def splits(root: Path, kind: str) -> headrace.TemporalSplit:
    for shard in range(5):
        path, frame = root / f"part-{shard}.{kind}", table(3000)
        if kind == "parquet":
            frame.write_parquet(path, row_group_size=500)
        elif kind == "csv.gz":
            with pa.output_stream(str(path), compression="gzip") as file:
                file.write(frame.write_csv().encode())
        else:
            frame.write_csv(path)
    return headrace.TemporalSplit(source=root, date_column="time", group_column="customer", split_date="2024-09-01")


def histories(root: Path, kind: str) -> headrace.Histories:
    draw = random.Random(3)
    for probe in range(30):
        rows = 400 + 20 * probe
        frame = pl.DataFrame(
            {"epoch": [1_700_000_000 + 240 * n for n in range(rows)], "rtt": [draw.uniform(1, 99) for _ in range(rows)]}
        )
        frame.write_csv(root / f"{probe}.{kind}")
    asked: dict[str, Any] = {"entity_from": "file_name", "entity_kind": "number", "time_format": "epoch_s"}
    return headrace.Histories(source=root, time="epoch", value="rtt", partitions=3, format="arrow", **asked)


def chats(root: Path, kind: str) -> headrace.PackedSequences:
    draw = random.Random(5)
    for shard in range(3):
        rows = [{"question": f"what is {draw.randrange(999)} ?", "answer": " ".join(str(draw.randrange(99)) for _ in range(draw.randrange(5, 60)))} for _ in range(600)]  # fmt: skip
        (root / f"part-{shard}.{kind}").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = small_tokenizer(root.parent / "tokenizer")
    return headrace.PackedSequences(blend=root, tokenizer=tokenizer, pack_size=1024, num_shards=2)


def shards(root: Path, kind: str) -> headrace.Rewrite:
    splits(root, kind)
    return headrace.Rewrite(source=root, codec="lz4", cache_dir=root.parent / "cache")


def basins(root: Path, kind: str) -> headrace.Series:
    draw = random.Random(9)
    for basin in range(24):
        days = pl.date_range(pl.date(2000, 1, 1), pl.date(2001, 12, 31), eager=True)
        columns = {name: [draw.uniform(0, 9) for _ in days] for name in ("rain", "flow")}
        pl.DataFrame({"date": days, **columns}).write_csv(root / f"b{basin}.{kind}")
    pipelines: dict[str, Any] = {name: {"strategy": "per_group", "pipeline": [{"step": "StandardScaler"}]} for name in ("features", "target")}  # fmt: skip
    asked: dict[str, Any] = {"preprocessing_configs": pipelines, "min_train_years": 1, "batch_size": 5}
    return headrace.Series(source=root, time="date", target="flow", features=["rain"], frequency="1d", **asked)


def gauges(root: Path, kind: str, order: str = "time") -> headrace.Series:
    """Long tables of 30 gauges, day by day or gauge by gauge, the second half of the time in the second file."""
    draw = random.Random(11)
    days = pl.date_range(pl.date(2000, 1, 1), pl.date(2002, 12, 31), eager=True).to_list()
    rows = [(f"g{gauge}", day, round(draw.uniform(0, 9), 3), round(draw.uniform(0, 9), 3)) for day in days for gauge in range(30) if gauge % 3 or day.year < 2002]  # fmt: skip
    if order == "gauge":
        rows.sort(key=lambda row: row[0])
    frame = pl.DataFrame(rows, ["gauge", "date", "rain", "flow"], orient="row")
    for part in range(2):
        half = frame.slice(part * (len(rows) // 2), len(rows) // 2 + part)
        path = root / f"part-{part}.{kind}"
        half.write_parquet(path, row_group_size=3000) if kind == "parquet" else half.write_csv(path)
    pipelines: dict[str, Any] = {name: {"strategy": "per_group", "pipeline": [{"step": "StandardScaler"}]} for name in ("features", "target")}  # fmt: skip
    asked: dict[str, Any] = {"preprocessing_configs": pipelines, "min_train_years": 1, "batch_size": 8, "entity": "gauge"}  # fmt: skip
    return headrace.Series(source=root, time="date", target="flow", features=["rain"], frequency="1d", **asked)


def gauge_by_gauge(root: Path, kind: str) -> headrace.Series:
    return gauges(root, kind, "gauge")


def some_gauges(root: Path, kind: str) -> headrace.Series:
    return gauges(root, kind).model_copy(update={"entities": tuple(f"g{gauge}" for gauge in range(0, 24, 2))})


def chats_in_samples(root: Path, kind: str) -> headrace.PackedSequences:
    """A sample of rows of each of two datasets, one of which has fewer."""
    recipe = chats(root, kind)
    (root.parent / "few").mkdir()
    (root.parent / "few/a.jsonl").write_text("".join((root / f"part-0.{kind}").read_text().splitlines(True)[:300]))
    blend = [{"name": "many", "path": str(root)}, {"name": "few", "path": str(root.parent / "few")}]
    return headrace.PackedSequences(blend=blend, tokenizer=recipe.tokenizer, pack_size=1024, num_shards=2, sample=400)


CASES = [(splits, "csv"), (splits, "csv.gz"), (splits, "parquet"), (histories, "csv"), (chats, "jsonl"), (shards, "csv"), (shards, "parquet"), (basins, "csv"), (gauges, "csv"), (gauges, "parquet"), (gauge_by_gauge, "csv"), (some_gauges, "parquet"), (chats_in_samples, "jsonl")]  # fmt: skip


@pytest.mark.smoke("splits-csv.gz", "gauges-parquet")
@pytest.mark.parametrize(("made_by", "kind"), CASES)
def test_the_run_is_as_estimated(made_by: Any, kind: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "tokenizer").mkdir()
    recipe = made_by(tmp_path / "raw", kind)
    files = sized(recipe.source_files())
    before = sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts)
    found = estimate(recipe, files, sample_bytes=SAMPLE)

    assert isinstance(found, Estimate)
    assert before == sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts)
    assert 0 < found.share < 0.8
    tasks: Counter[str] = Counter()
    run = headrace.prepare(
        recipe, tmp_path / "out", on_event=lambda event: tasks.update({event.stage: event.tasks}) if isinstance(event, StageBegan) else None
    )  # fmt: skip
    real = sum(each.bytes for each in run.manifest.splits.values())

    assert real / FACTOR < found.out_bytes < real * FACTOR
    assert found.rows == pytest.approx(run.manifest.source["rows"], rel=0.25)
    assert {name: tasks[name] for name in tasks_of(recipe, files, found)} == tasks_of(recipe, files, found)
    assert set(tasks) - {"pack", "materialise"} == set(tasks_of(recipe, files, found))
    assert found.cpu_s > 0
    assert memory_of(recipe, files, found, 2).bytes > 0


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "csv.zst", "jsonl", "jsonl.gz", "parquet", "arrow"])
def test_a_head_is_the_first_rows_of_its_file(kind: str, tmp_path: Path) -> None:
    frame, path, target = table(4000), tmp_path / f"whole.{kind}", tmp_path / f"head.{kind}"
    if kind == "parquet":
        frame.write_parquet(path, row_group_size=300)
    elif kind == "arrow":
        frame.write_ipc(path, compression="uncompressed", compat_level=pl.CompatLevel.oldest())
    else:
        data = (frame.write_csv() if kind.startswith("csv") else frame.write_ndjson()).encode()
        codec = {"gz": "gzip", "zst": "zstd"}.get(kind.split(".")[-1])
        with pa.output_stream(str(path), compression=codec) as file:
            file.write(data)
    room = path.stat().st_size // 5
    stands_for = take_head(SizedFile(path, path.name, path.stat().st_size), target, room)

    def rows(file: Path) -> pl.DataFrame:
        shard = survey(file, file.name)
        return pl.DataFrame(
            pl.from_arrow(pa.concat_tables([each.table(shard.schema.names) for each in read_chunks(shard)]))
        )

    head = rows(target)

    assert 100 < len(head) < 2000
    assert stands_for == pytest.approx(path.stat().st_size * len(head) / len(frame), rel=0.3)
    assert rows(path)[: len(head)].equals(head)


def test_what_cannot_be_sampled_is_said(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    recipe = splits(tmp_path / "raw", "csv").model_copy(update={"date_column": "amount"})
    told = estimate(recipe, sized(recipe.source_files()), sample_bytes=SAMPLE)

    assert isinstance(told, str)
    assert told.startswith("not estimated: ")
    assert "amount" in told


def test_the_command_tells_it_and_a_finished_run_needs_no_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw").mkdir()
    settings = splits(tmp_path / "raw", "csv").config()
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**settings, "out": str(tmp_path / "out")}))
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    before = json.loads(runner.invoke(app, ["run", "c.yaml", "--dry-run", "--json"]).stdout)
    shown = runner.invoke(app, ["run", "c.yaml", "--dry-run"]).stdout

    assert 15_000 == before["rows"]
    assert {"scan": 5, "split": 5} == before["tasks"]
    assert {"out_bytes", "cpu_s", "wall_s", "memory_bytes"} <= set(before)
    assert "by a run of all of it" in before["estimate"]
    assert "output, about" in shown
    assert not (tmp_path / "out").exists()
    assert 0 == runner.invoke(app, ["run", "c.yaml", "--json"]).exit_code
    after = json.loads(runner.invoke(app, ["run", "c.yaml", "--dry-run", "--json"]).stdout)

    assert "finished: it would be reused" == after["state"]
    assert "estimate" not in after
