"""A dry run bounds the output from the sizes of the source, and it writes nothing."""

import json
import random
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
from headrace.cli.dry_run import estimate


def table(rows: int) -> pl.DataFrame:
    draw = random.Random(7)
    return pl.DataFrame(
        {
            "customer": [f"c{draw.randrange(500)}" for _ in range(rows)],
            "time": [
                f"2024-{draw.randrange(12) + 1:02d}-{draw.randrange(28) + 1:02d}"
                for _ in range(rows)
            ],
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
    return headrace.TemporalSplit(
        source=root, time="time", entity="customer", split_date="2024-09-01"
    )


def histories(root: Path, kind: str) -> headrace.Histories:
    draw = random.Random(3)
    for probe in range(30):
        rows = 400 + 20 * probe
        frame = pl.DataFrame(
            {
                "epoch": [1_700_000_000 + 240 * n for n in range(rows)],
                "rtt": [draw.uniform(1, 99) for _ in range(rows)],
            }
        )
        frame.write_csv(root / f"{probe}.{kind}")
    asked: dict[str, Any] = {
        "entity_from": "file_name",
        "entity_kind": "number",
        "dialect": {"time_format": "epoch_s"},
    }
    return headrace.Histories(
        source=root, time="epoch", value="rtt", partitions=3, format="arrow", **asked
    )


def chats(root: Path, kind: str) -> headrace.PackedSequences:
    draw = random.Random(5)
    for shard in range(3):
        rows = [{"question": f"what is {draw.randrange(999)} ?", "answer": " ".join(str(draw.randrange(99)) for _ in range(draw.randrange(5, 60)))} for _ in range(600)]  # fmt: skip
        (root / f"part-{shard}.{kind}").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = small_tokenizer(root.parent / "tokenizer")
    return headrace.PackedSequences(blend=root, tokenizer=tokenizer, pack_size=1024, num_shards=2)


def shards(root: Path, kind: str) -> headrace.Rewrite:
    splits(root, kind)
    return headrace.Rewrite(source=root, compression="lz4", cache_dir=root.parent / "cache")


def basins(root: Path, kind: str) -> headrace.Series:
    draw = random.Random(9)
    for basin in range(24):
        days = pl.date_range(pl.date(2000, 1, 1), pl.date(2001, 12, 31), eager=True)
        columns = {name: [draw.uniform(0, 9) for _ in days] for name in ("rain", "flow")}
        pl.DataFrame({"date": days, **columns}).write_csv(root / f"b{basin}.{kind}")
    pipelines: dict[str, Any] = {name: {"strategy": "per_group", "pipeline": [{"step": "StandardScaler"}]} for name in ("features", "target")}  # fmt: skip
    asked: dict[str, Any] = {
        "preprocessing_configs": pipelines,
        "min_train_years": 1,
        "batch_size": 5,
    }
    return headrace.Series(
        source=root, time="date", target="flow", features=["rain"], frequency="1d", **asked
    )


def gauges(root: Path, kind: str) -> headrace.Series:
    """Long tables of 30 gauges, day by day, the second half of the time in the second file."""
    draw = random.Random(11)
    days = pl.date_range(pl.date(2000, 1, 1), pl.date(2002, 12, 31), eager=True).to_list()
    rows = [(f"g{gauge}", day, round(draw.uniform(0, 9), 3), round(draw.uniform(0, 9), 3)) for day in days for gauge in range(30) if gauge % 3 or day.year < 2002]  # fmt: skip
    frame = pl.DataFrame(rows, ["gauge", "date", "rain", "flow"], orient="row")
    for part in range(2):
        half = frame.slice(part * (len(rows) // 2), len(rows) // 2 + part)
        path = root / f"part-{part}.{kind}"
        half.write_parquet(path, row_group_size=3000) if kind == "parquet" else half.write_csv(path)
    pipelines: dict[str, Any] = {name: {"strategy": "per_group", "pipeline": [{"step": "StandardScaler"}]} for name in ("features", "target")}  # fmt: skip
    asked: dict[str, Any] = {"preprocessing_configs": pipelines, "min_train_years": 1, "batch_size": 8, "entity": "gauge"}  # fmt: skip
    return headrace.Series(
        source=root, time="date", target="flow", features=["rain"], frequency="1d", **asked
    )


CASES = [(splits, "csv"), (splits, "csv.gz"), (splits, "parquet"), (histories, "csv"), (chats, "jsonl"), (shards, "csv"), (shards, "parquet"), (basins, "csv"), (gauges, "parquet")]  # fmt: skip


@pytest.mark.smoke("splits-csv.gz", "gauges-parquet")
@pytest.mark.parametrize(("made_by", "kind"), CASES)
def test_the_output_is_no_larger_than_estimated(made_by: Any, kind: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "tokenizer").mkdir()
    recipe = made_by(tmp_path / "raw", kind)
    found = estimate(
        recipe, {path: path.stat().st_size for path, _ in recipe.source_files()}, workers=2
    )
    run = headrace.prepare(recipe, tmp_path / "out")

    real = sum(each.bytes for each in run.manifest.splits.values())
    assert real <= found["out_bytes"] <= 16 * real
    assert found["memory_bytes"] > 0


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

    source_bytes = sum(path.stat().st_size for path in (tmp_path / "raw").iterdir())
    assert source_bytes == before["source_bytes"] == before["out_bytes"]
    assert before["memory_bytes"] > 0
    assert "output: at most the size of the source" in before["estimate"]
    assert "output, at most about" in shown
    assert not (tmp_path / "out").exists()
    assert 0 == runner.invoke(app, ["run", "c.yaml", "--json"]).exit_code
    after = json.loads(runner.invoke(app, ["run", "c.yaml", "--dry-run", "--json"]).stdout)

    assert "finished: it would be reused" == after["state"]
    assert "estimate" not in after
