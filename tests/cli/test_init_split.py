"""`headrace init split` writes configurations that run as they are, and says what it took for what."""

from pathlib import Path

import polars as pl
import pytest
import yaml

import headrace
from headrace.cli.init.commented import commented_yaml, settings_of
from headrace.cli.init.look import Data
from headrace.cli.init.options import InitSplitOptions
from headrace.errors import SettingsError
from headrace.split.init import split_sections
from raised import raised

DATA = Path(__file__).parents[3] / "shared" / "data"


def configured(source: Path, out: Path, **asked: str) -> tuple[dict[str, object], str]:
    options = InitSplitOptions([str(source)], str(out), **asked)
    sections, _ = split_sections(options, Data(options.source))
    text = commented_yaml(sections)
    record = yaml.safe_load(text)

    assert settings_of(sections) == record
    return record, text


def prepare(record: dict[str, object]) -> headrace.types.Prepared:
    settings = {name: value for name, value in record.items() if name not in ("recipe", "out")}
    return headrace.prepare(headrace.TemporalSplit(**settings), str(record["out"]))


def table(rows: int = 400, **more: list[object]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "order_no": [f"o{n}" for n in range(rows)],
            "shop": [f"s{n % 4}" for n in range(rows)],
            "customer": [f"c{n % 37}" for n in range(rows)],
            "booked": [f"2024-{n % 12 + 1:02d}-{n % 28 + 1:02d}" for n in range(rows)],
            "amount": [f"{n % 13}.5" for n in range(rows)],
            **more,
        }
    )


def write(root: Path, frame: pl.DataFrame, kind: str, shards: int = 3) -> Path:
    root.mkdir()
    for shard in range(shards):
        part = frame[shard::shards]
        if kind == "csv":
            part.write_csv(root / f"part-{shard}.csv")
        else:
            part.with_columns(pl.col("booked").str.to_date()).write_parquet(
                root / f"part-{shard}.parquet"
            )
    return root


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_configuration_runs_and_splits_by_what_it_found(kind: str, tmp_path: Path) -> None:
    record, text = configured(write(tmp_path / "raw", table(), kind), tmp_path / "out")
    run = prepare(record)

    assert ("booked", "customer") == (record["time"], record["entity"])
    assert 400 == sum(each.rows for each in run.manifest.splits.values()) + sum(
        run.manifest.dropped.values()
    )
    assert (
        run.manifest.splits["test"].rows + run.manifest.dropped["train_entity_after_cutoff"] < 200
    )
    assert "customer (37 values, 10.8 rows each)" in text
    assert "shop (4 values" in text
    assert "order_no" not in text.split("Others that could be")[1].split("\n\n")[0]
    assert "# types: {amount: float64}" in text


def test_missing_dates_and_entities_and_other_forms_of_dates_run_too(tmp_path: Path) -> None:
    frame = table().with_columns(
        pl.when(pl.int_range(pl.len()) % 9 == 0).then(None).otherwise(pl.col("customer")).alias("customer"),
        pl.when(pl.int_range(pl.len()) % 50 == 0).then(pl.lit("")).otherwise(
            pl.format("{}/{}/2024", pl.int_range(pl.len()) % 28 + 1, pl.int_range(pl.len()) % 12 + 1)
        ).alias("booked"),
    )  # fmt: skip
    record, _ = configured(write(tmp_path / "raw", frame, "csv"), tmp_path / "out")
    run = prepare(record)

    assert ("%d/%m/%Y", "drop", "drop") == (
        record["dialect"]["time_format"],
        record["bad_rows"],
        record["null_entity"],
    )
    assert run.manifest.dropped["null_entity"] > 0 < run.manifest.dropped["null_time"]


def test_days_that_could_be_months_are_told_and_one_value_settles_it(tmp_path: Path) -> None:
    def dated(day: int) -> pl.DataFrame:
        return table().with_columns(pl.format("{}/{}/2024", pl.int_range(pl.len()) % day + 1, pl.int_range(pl.len()) // 40 + 1).alias("booked"))  # fmt: skip

    _, doubtful = configured(write(tmp_path / "a", dated(12), "csv"), tmp_path / "out")
    _, certain = configured(write(tmp_path / "b", dated(13), "csv"), tmp_path / "out")

    assert "BEWARE" in doubtful
    assert "BEWARE" not in certain


def test_what_is_asked_for_is_taken(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", table(), "csv")
    record, _ = configured(
        raw, tmp_path / "out", entity="shop", time="booked", split_date="2024-06-01"
    )

    assert ("shop", "2024-06-01") == (record["entity"], record["split_date"])
    with raised(SettingsError, setting="entity", value="custommer", remedy="customer"):
        configured(raw, tmp_path / "out", entity="custommer")


@pytest.mark.parametrize(
    ("name", "values", "form"),
    [
        ("day", [f"2024{n % 12 + 1:02d}{n % 28 + 1:02d}" for n in range(400)], "yyyymmdd"),
        ("event_time", [1_700_000_000 + n * 80_000 for n in range(400)], "epoch_s"),
        ("created", [1_700_000_000_000 + n * 80_000_000 for n in range(400)], "epoch_ms"),
    ],
)
def test_numbers_that_a_split_reads_as_times_are_times(
    name: str, values: list[object], form: str, tmp_path: Path
) -> None:
    frame = table(**{name: values}).drop("booked")
    (tmp_path / "raw").mkdir()
    frame.write_csv(tmp_path / "raw" / "part-0.csv")
    record, _ = configured(tmp_path / "raw", tmp_path / "out", entity="customer")

    assert (name, form) == (record["time"], record["dialect"]["time_format"])
    assert prepare(record).manifest.splits["test"].rows


def test_counts_and_keys_are_no_times(tmp_path: Path) -> None:
    frame = table(order_id=[1_700_000_000 + n for n in range(400)], event=[*range(400)]).drop(
        "booked"
    )
    (tmp_path / "raw").mkdir()
    frame.write_csv(tmp_path / "raw" / "part-0.csv")

    record, _ = configured(tmp_path / "raw", tmp_path / "out")

    assert ("random_split", "customer") == (record["recipe"], record["by"])


def test_without_a_date_it_says_what_to_give(tmp_path: Path) -> None:
    root = tmp_path / "raw"
    root.mkdir()
    table().drop("booked").write_csv(root / "part-0.csv")
    with raised(SettingsError, setting="time", remedy="give one of"):
        configured(root, tmp_path / "out", split_date="2024-09-01")


def test_without_an_entity_it_splits_by_time_alone_and_says_so(tmp_path: Path) -> None:
    root = tmp_path / "raw"
    root.mkdir()
    table().drop("customer", "shop", "order_no").write_csv(root / "part-0.csv")
    record, text = configured(root, tmp_path / "out")

    assert {"entity", "train_ratio"}.isdisjoint(record)
    assert "split by time alone" in text
    assert {"train", "test"} == {
        name for name, split in prepare(record).manifest.splits.items() if split.rows
    }


def test_a_flag_is_no_entity_and_one_day_is_no_time(tmp_path: Path) -> None:
    rows = 400
    scraped = {
        "scraped_date": ["2024-06-29"] * rows,
        "identity_verified": ["tf"[n % 2] for n in range(rows)],
    }
    frame = table(rows, **scraped, empty=[""] * rows).rename(
        {"booked": "since", "customer": "host_id"}
    )
    record, text = configured(
        write(tmp_path / "raw", frame.drop("shop"), "csv", shards=1), tmp_path / "out"
    )

    assert ("since", "host_id") == (record["time"], record["entity"])
    assert "identity_verified (" not in text
    assert ["empty"] == record["drop_columns"]
    assert "1 file, " in text


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the real data is not beside this checkout")
def test_real_sales_run_as_they_are(tmp_path: Path) -> None:
    record, _ = configured(DATA / "job1-online-retail" / "by-day", tmp_path / "out")

    assert ("InvoiceDate", "CustomerID", "drop") == tuple(record[name] for name in ("time", "entity", "null_entity"))  # fmt: skip
    assert all(each.rows for each in prepare(record).manifest.splits.values())
