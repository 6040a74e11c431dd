"""`headrace init rewrite` writes configurations that run and verify as they are, and proposes types that keep values."""

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner
from written_configs import read_again, write_parts

import headrace
from headrace.cli import app
from headrace.cli.init.asked import AskedRewrite
from headrace.errors import HeadraceError, SettingsError
from headrace.rewriting import init as rewrite
from headrace.rewriting.init import rewrite_sections
from raised import raised

DATA = Path(__file__).parents[3] / "shared" / "data"
FRAME = pl.DataFrame(
    {
        "code": [f"{n:03d}" for n in range(60)],
        "count": [None if n % 7 == 0 else str(n * 10**15) for n in range(60)],
        "price": [f"{n % 9}.50" for n in range(60)],
        "order_id": [f"{n}.0" for n in range(60)],
        "day": [f"2024-02-{n % 28 + 1:02d}" for n in range(60)],
        "seen": [f"2024-02-{n % 28 + 1:02d} 12:00:00" for n in range(60)],
        "speed": ["NA" if n % 5 else str(n) for n in range(60)],
        "note": [f"n {n}" for n in range(60)],
    }
)


def configured(source: Path, out: Path) -> tuple[dict[str, object], str]:
    sections, _ = rewrite_sections(AskedRewrite([str(source)], str(out)))
    return read_again(sections)


def prepare(record: dict[str, object], cache: Path) -> headrace.types.Prepared:
    settings = {name: value for name, value in record.items() if name not in ("recipe", "out")}
    run = headrace.prepare(headrace.Rewrite(**settings, cache_dir=cache), str(record["out"]))

    assert headrace.verify(run.run).problems == []
    return run


def rows_of(run: headrace.types.Prepared) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted((run.run / "data").iterdir())])


def test_types_keep_every_value(tmp_path: Path) -> None:
    record, _ = configured(write_parts(tmp_path / "raw", FRAME), tmp_path / "out")
    made = rows_of(prepare(record, tmp_path / "cache"))
    source = pl.concat([FRAME[shard::3] for shard in range(3)])

    assert {"count": "int64", "price": "float64", "day": "date", "seen": "datetime", "speed": "int64"} == record["types"]  # fmt: skip
    assert ["NA"] == record["dialect"]["null_values"]
    assert source["count"].cast(pl.Int64).to_list() == made["count"].to_pylist()
    assert source["price"].cast(pl.Float64).to_list() == made["price"].to_pylist()
    assert source["speed"].replace("NA", None).cast(pl.Int64).to_list() == made["speed"].to_pylist()
    assert source["order_id"].cast(pl.Float64).to_list() == made["order_id"].to_pylist()
    for name in ("code", "note"):
        assert source[name].to_list() == made[name].to_pylist()


def test_where_not_all_rows_were_looked_at_types_are_proposed_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "ROWS", 20)
    record, text = configured(write_parts(tmp_path / "raw", FRAME), tmp_path / "out")

    assert "types" not in record
    assert "Not all rows were looked at" in text
    assert "types: {count: int64" in text
    prepare(record, tmp_path / "cache")


def test_a_prepared_dataset_keeps_its_splits(tmp_path: Path) -> None:
    write_parts(tmp_path / "raw", FRAME)
    split = headrace.TemporalSplit(
        source=tmp_path / "raw",
        time="day",
        entity="code",
        split_date="2024-02-20",
        format="parquet",
    )
    whole = headrace.prepare(split, tmp_path / "split").manifest
    record, text = configured(tmp_path / "split", tmp_path / "out")
    run = prepare(record, tmp_path / "cache")

    assert {name: each.rows for name, each in whole.splits.items()} == {name: each.rows for name, each in run.manifest.splits.items()}  # fmt: skip
    assert "prepared dataset (temporal_split)" in text


def test_an_empty_shard_does_not_matter_and_many_small_ones_are_told(tmp_path: Path) -> None:
    root = write_parts(tmp_path / "raw", FRAME)
    FRAME[:0].write_csv(root / "part-9.csv")
    record, text = configured(root, tmp_path / "out")
    prepared = prepare(record, tmp_path / "cache")

    assert 60 == len(rows_of(prepared))
    assert "int64" == record["types"]["count"]
    assert "4 files are many for so little" in text


def test_one_column_is_enough(tmp_path: Path) -> None:
    record, _ = configured(write_parts(tmp_path / "raw", FRAME.select("note")), tmp_path / "out")

    assert 60 == len(rows_of(prepare(record, tmp_path / "cache")))


def test_an_empty_file_among_the_others_says_nothing(tmp_path: Path) -> None:
    root = write_parts(tmp_path / "raw", FRAME)
    (root / "part-9.csv").touch()
    prepared = prepare(configured(root, tmp_path / "out")[0], tmp_path / "cache")

    assert ["part-9.csv"] == prepared.manifest.source["empty_shards"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: FRAME.drop("note").write_csv(root / "part-9.csv"), 'lacks note.*schema_drift="widen"'),
        (lambda root: [each.write_bytes(b"") for each in root.iterdir()], "holds no rows; give data"),
        (lambda root: [FRAME[:0].write_csv(each) for each in root.iterdir()], "holds no rows; give data"),
        (lambda root: [each.unlink() for each in root.iterdir()], "holds no .csv"),
    ],
)  # fmt: skip
def test_what_cannot_be_rewritten_is_said(change: object, words: str, tmp_path: Path) -> None:
    root = write_parts(tmp_path / "raw", FRAME)
    change(root)  # type: ignore[operator]  # each is a function of the directory
    with pytest.raises(HeadraceError, match=words):
        configured(root, tmp_path / "out")


def test_the_command_writes_what_run_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parts(tmp_path / "raw", FRAME)
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    asked = ["init", "rewrite", "raw", "--out", "out", "--config", "r.yaml"]

    assert 0 == runner.invoke(app, asked).exit_code
    assert (
        0
        == runner.invoke(
            app, ["run", "r.yaml", "--set", "cache_dir=cache", "--report", "never"]
        ).exit_code
    )
    with raised(SettingsError, path="r.yaml", remedy="overwrite"):
        runner.invoke(app, asked, catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the real data is not beside this checkout")
@pytest.mark.parametrize("name", ["job2-airbnb-antwerp", "job2-faa-bird-remarks"])
def test_real_tables_run_as_they_are(name: str, tmp_path: Path) -> None:
    record, _ = configured(DATA / name, tmp_path / "out")
    run = prepare(record, tmp_path / "cache")

    assert "id" not in dict(record["types"]) or "int64" == record["types"]["id"]
    assert run.manifest.splits["all"].rows == run.manifest.source["rows"]
