"""`headrace init histories` writes configurations that run and verify as they are, and says what it took for what."""

from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner
from written_configs import read_again, write_parts

import headrace
from headrace.cli import app
from headrace.cli.init.look import Data
from headrace.cli.init.options import InitHistoriesOptions
from headrace.errors import HeadraceError, SettingsError
from headrace.histories.init import histories_sections
from raised import raised

DATA = Path(__file__).parents[3] / "shared" / "data"
DAY = 1_700_000_000


def pings(rows: int = 900) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "dst_addr": [f"192.0.2.{n % 5}" for n in range(rows)],
            "src_addr": [f"10.0.0.{n * 7 % 31}" if n % 31 else "2001:db8::1" for n in range(rows)],
            "event_time": [DAY + n * 37 for n in range(rows)],
            "rtt": [
                None if n % 50 == 3 else -3.0 if n % 40 == 1 else 20 + n % 17 / 8
                for n in range(rows)
            ],
            "hops": [n % 20 for n in range(rows)],
        }
    )


def configured(source: Path, out: Path, **asked: str) -> tuple[dict[str, object], str]:
    options = InitHistoriesOptions([str(source)], str(out), **asked)
    sections, _ = histories_sections(options, Data(options.source))
    return read_again(sections)


def prepare(record: dict[str, object]) -> headrace.types.Prepared:
    settings = {name: value for name, value in record.items() if name not in ("recipe", "out")}
    run = headrace.prepare(headrace.Histories(**settings), str(record["out"]))

    assert headrace.verify(run.run).problems == []
    return run


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_configuration_runs_and_keeps_every_measurement(kind: str, tmp_path: Path) -> None:
    record, text = configured(write_parts(tmp_path / "raw", pings(), kind), tmp_path / "out")
    run = prepare(record)

    roles = {"entity": "src_addr", "time": "event_time", "peer": "dst_addr", "value": "rtt"}
    assert roles == {name: record[name] for name in roles}
    assert 900 == sum(run.manifest.metadata["source_rows"].values())
    assert (
        len(pings().filter((pl.col("rtt") < 0) | pl.col("rtt").is_null()))
        == run.manifest.metadata["failed"]
    )
    assert f"{(pings()['rtt'] < 0).sum()} are below 0 (-3)" in text
    assert f"{pings()['rtt'].null_count()} are missing" in text


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("unit", "of_a_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)]
)
def test_times_since_1970_are_read_in_their_unit(
    kind: str, unit: str, of_a_second: int, tmp_path: Path
) -> None:
    card = 4_111_111_111_111_111 + pl.int_range(900)  # as many digits as microseconds have
    when = pl.col("event_time") * of_a_second
    frame = pings().select(card.alias("card"), pl.exclude("event_time"), timestamp=when)
    record, _ = configured(write_parts(tmp_path / "raw", frame, kind), tmp_path / "out")
    rows = pl.read_parquet(prepare(record).run / "rows.parquet")

    assert ("timestamp", [f"epoch_{unit}"]) == (record["time"], record["dialect"]["time_format"])
    assert (DAY, DAY + 899 * 37) == (rows["first_time"].min(), rows["last_time"].max())


def test_of_columns_whose_names_say_nothing_written_times_come_before_numbers(
    tmp_path: Path,
) -> None:
    card = 4_111_111_111_111_111 + pl.int_range(900)
    when = pl.from_epoch("event_time").dt.to_string("iso")
    frame = pings().select(card.alias("card"), pl.exclude("event_time"), paid=when)
    record, _ = configured(write_parts(tmp_path / "raw", frame), tmp_path / "out")

    assert "paid" == record["time"]


def test_forms_of_time_that_differ_between_files_are_all_declared(tmp_path: Path) -> None:
    root = tmp_path / "raw"
    root.mkdir()
    times = pl.from_epoch(pl.Series(range(DAY, DAY + 9_000_000, 30_000)))
    for name, form in ((1, "%Y-%m-%d %H:%M:%S"), (2, "%d/%m/%Y %H:%M"), (3, "%d/%m/%Y %H:%M")):
        frame = pl.DataFrame(
            {"epoch": times.dt.strftime(form), "rtt": [12.5] * len(times), "cp": [0] * len(times)}
        )
        frame.write_csv(root / f"{name}.csv", separator=";")
    record, text = configured(root, tmp_path / "out")

    assert ("file_name", "number") == (record["entity_from"], record["entity_kind"])
    assert ["iso", "%d/%m/%Y %H:%M"] == record["dialect"]["time_format"]
    assert "separated by ';'" in text
    assert "BEWARE" not in text
    assert 3 * len(times) == sum(prepare(record).manifest.metadata["source_rows"].values())


def test_days_that_could_be_months_are_told(tmp_path: Path) -> None:
    frame = pings(24).with_columns(event_time=pl.format("{}/{}/2024", pl.int_range(24) % 12 + 1, pl.int_range(24) // 2 + 1))  # fmt: skip
    record, text = configured(write_parts(tmp_path / "raw", frame, shards=1), tmp_path / "out")

    assert ["%d/%m/%Y"] == record["dialect"]["time_format"]
    assert "%m/%d/%Y would read them as well" in text
    prepare(record)


@pytest.mark.parametrize("swapped", [False, True])
def test_one_value_tells_day_from_month(swapped: bool, tmp_path: Path) -> None:
    days = ["3/4/2024", "11/12/2024", "25/12/2024"] * 20
    days = (
        ["/".join([day.split("/")[1], day.split("/")[0], "2024"]) for day in days]
        if swapped
        else days
    )
    frame = pings(60).with_columns(event_time=pl.Series(days))
    record, text = configured(write_parts(tmp_path / "raw", frame, shards=1), tmp_path / "out")

    assert ["%m/%d/%Y" if swapped else "%d/%m/%Y"] == record["dialect"]["time_format"]
    assert "BEWARE" not in text


def test_rows_that_are_no_measurements_are_dropped_and_told(tmp_path: Path) -> None:
    entity = pl.when(pl.int_range(900) == 7).then(pl.lit("unknown")).otherwise(pl.col("src_addr"))
    record, text = configured(
        write_parts(tmp_path / "raw", pings().with_columns(src_addr=entity)), tmp_path / "out"
    )
    run = prepare(record)

    assert "drop" == record["bad_rows"]
    assert "unreadable entity: 1, first part-1.csv: row 3, column 'src_addr' is 'unknown'" in text
    assert 1 == run.manifest.dropped["unreadable_entity"]


def test_an_empty_shard_and_columns_that_only_some_have_do_not_matter(tmp_path: Path) -> None:
    root = write_parts(tmp_path / "raw", pings())
    pings()[:0].write_csv(root / "part-3.csv")
    pings(60).with_columns(note=pl.lit("late")).write_csv(root / "part-4.csv")
    record, text = configured(root, tmp_path / "out")

    assert "Not all files have note" in text
    assert 960 == sum(prepare(record).manifest.metadata["source_rows"].values())


@pytest.mark.parametrize(
    ("frame", "setting", "remedy"),
    [
        (pings().select("hops"), "time", "give one of hops"),
        (pings().drop("event_time"), "time", "give one of dst_addr"),
        (pings().drop("src_addr", "dst_addr"), "entity", "give one of rtt, hops"),
        (
            pings().drop("rtt").with_columns(size=pl.col("hops")),
            "value",
            "give one of hops, size",
        ),
        (pings()[:0], None, "give data to look at"),
    ],
)
def test_what_cannot_be_told_is_asked_for(
    frame: pl.DataFrame, setting: str | None, remedy: str, tmp_path: Path
) -> None:
    with raised(HeadraceError, setting=setting, remedy=remedy):
        configured(write_parts(tmp_path / "raw", frame), tmp_path / "out")


def test_what_is_asked_for_is_taken(tmp_path: Path) -> None:
    raw = write_parts(tmp_path / "raw", pings())
    asked = {"entity": "dst_addr", "peer": "src_addr", "time": "event_time", "value": "hops"}
    record, _ = configured(raw, tmp_path / "out", **asked)

    assert asked == {name: record[name] for name in asked}
    with raised(HeadraceError, setting="entity", value="src_adr", remedy="src_addr"):
        configured(raw, tmp_path / "out", entity="src_adr")
    assert configured(raw, tmp_path / "out", entity="rtt")[0]["entity_kind"] == "text"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_days_written_as_whole_numbers_are_times(kind: str, tmp_path: Path) -> None:
    """As in CDNOW, a log of purchases."""
    days = pl.date_range(pl.date(1997, 1, 1), pl.date(1998, 6, 30), "1d", eager=True).dt.strftime(
        "%Y%m%d"
    )
    bought = pl.DataFrame(
        {"customer": [f"c{n % 7}" for n in range(len(days))], "date": days.cast(pl.Int64)}
    )
    raw = write_parts(tmp_path / "raw", bought.with_columns(cds=pl.int_range(pl.len()) % 4), kind)
    record, _ = configured(raw, tmp_path / "out")

    assert ("customer", "date", ["yyyymmdd"]) == (
        record["entity"],
        record["time"],
        record["dialect"]["time_format"],
    )
    assert len(days) == sum(prepare(record).manifest.metadata["source_rows"].values())


def test_events_of_texts_run_as_they_are(tmp_path: Path) -> None:
    flights = pl.DataFrame(
        {
            "tailnum": [f"N{number % 30}" if number else "NA" for number in range(300)],
            "dest": [["IAH", "SFO", "MIA"][number % 3] for number in range(300)],
            "departure": [f"2013-01-{1 + number % 28:02d}T10:00:00Z" for number in range(300)],
            "dep_delay": [str(number - 9) if number % 7 else "NA" for number in range(300)],
            "hours": [number / 7 for number in range(300)],
            "carrier": [["UA", "AA"][number % 2] for number in range(300)],
        }
    )
    record, text = configured(write_parts(tmp_path / "raw", flights), tmp_path / "out")
    run = prepare(record)

    assert {
        "entity": "tailnum",
        "entity_kind": "text",
        "peer": "dest",
        "peer_kind": "text",
    }.items() <= record.items()
    assert {"dep_delay": "int32", "hours": "float32", "carrier": "category"} == record["values"]
    assert ["NA"] == record["dialect"]["null_values"]
    assert "null entity: 1" in text
    assert 299 == sum(run.manifest.metadata["source_rows"].values())
    assert headrace.verify(tmp_path / "out").problems == []


def test_the_command_writes_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parts(tmp_path / "raw", pings())
    monkeypatch.chdir(tmp_path)
    call = ["init", "histories", "raw", "--out", "out", "--config", "h.yaml"]
    runner = CliRunner()

    assert 0 == runner.invoke(app, call).exit_code
    with raised(SettingsError, path="h.yaml", remedy="overwrite"):
        runner.invoke(app, call, catch_exceptions=False)
    assert not Path("out").exists()


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the real data is not beside this checkout")
def test_real_pings_run_as_they_are(tmp_path: Path) -> None:
    record, text = configured(
        DATA / "job3-ripe-rtt-labelled" / "real_trace_labelled", tmp_path / "out"
    )

    assert ["iso", "%d/%m/%Y %H:%M"] == record["dialect"]["time_format"]
    assert "692 are below 0 (-4, -3)" in text
    assert {"source_rows", "entities"} <= set(prepare(record).manifest.metadata)


def test_an_output_inside_the_source_is_refused_before_a_configuration_is_written(
    tmp_path: Path,
) -> None:
    pings().write_parquet(tmp_path / "part-0.parquet")
    config = tmp_path.parent / f"{tmp_path.name}.yaml"

    words = ["init", "histories", str(tmp_path), "--out", str(tmp_path / "out")]

    with raised(SettingsError, setting="out", remedy="give an output elsewhere"):
        CliRunner().invoke(app, [*words, "--config", str(config)], catch_exceptions=False)
    assert not config.exists()
