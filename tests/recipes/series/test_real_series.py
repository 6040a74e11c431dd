"""The traps of two real data sets, each with the outcome it must have.

Caravan (Kratzert et al. 2023, CC BY 4.0): five basins of three countries, with their files' columns, periods and gaps
as they come.
"""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from basins import SPLITS, readable_rows

import headrace
from commands import headrace as run_command
from headrace.run.prepare import Prepared, prepare
from headrace.series.pipelines.save import load_pipelines
from headrace.series.settings import Series

DATA = Path(__file__).parents[3].parent / "shared" / "data"
CARAVAN = DATA / "job4-caravan"
FORCING = ("potential_evaporation_sum", "temperature_2m_mean", "total_precipitation_sum")
STATIC = ("aridity", "frac_snow", "p_mean")

needs_caravan = pytest.mark.skipif(
    not CARAVAN.is_dir(), reason=f"{CARAVAN} is not there: it is not in the repository"
)


def caravan(out: Path, **more) -> Prepared:
    asked = {
        "source": CARAVAN / "timeseries",
        "target": "streamflow",
        "future_features": FORCING,
        "static": CARAVAN / "attributes" / "attributes_caravan_*.csv.gz",
        "static_entity": "gauge_id",
        "static_features": STATIC,
        "min_train_years": 3,
    }
    return prepare(Series(**{**asked, **more}), out)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Caravan with its usual settings, made once."""
    return caravan(tmp_path_factory.mktemp("caravan") / "out")


def flows_of(name: str) -> tuple[list[str], np.ndarray]:
    """Days and flows of a Caravan file, by polars alone."""
    table = pl.read_csv(
        CARAVAN / "timeseries" / f"{name}.csv.gz",
        columns=["date", "streamflow"],
        infer_schema=False,
    )
    return table["date"].to_list(), table["streamflow"].cast(pl.Float64).fill_null(
        np.nan
    ).to_numpy()


@needs_caravan
def test_caravan_end_to_end(prepared: Prepared) -> None:
    manifest = prepared.manifest
    assert "1d" == manifest.metadata["frequency"]
    assert 14_610 * 2 + 10_958 + 8_399 * 2 == manifest.source["rows"]
    assert (
        manifest.source["rows"]
        == sum(manifest.metadata["source_rows"].values()) + manifest.dropped["trimmed"]
    )
    assert [] == headrace.verify(prepared.out).problems
    assert (
        616
        == json.loads((prepared.run / "quality_summary.json").read_bytes())[
            "attributes_without_series"
        ]
    )


@pytest.mark.slow
@needs_caravan
def test_caravan_values_come_back_as_they_were(prepared: Prepared) -> None:
    """Every observed flow of the file, in its place, by the inverse of what was fitted; and never another basin's."""
    pipelines = load_pipelines(prepared.out)
    readable = readable_rows(prepared)

    for name in ("camelsch_4001", "camelsch_4003", "camelses_1414", "camelslx_054", "camelslx_055"):
        days, flows = flows_of(name)
        observed = {day: flow for day, flow in zip(days, flows, strict=True) if not np.isnan(flow)}
        rows = [(f"{time:%Y-%m-%d}", values[0]) for split in SPLITS for time, values in zip(readable[split][name].times, readable[split][name].values, strict=True)]  # fmt: skip
        told = [(day, value) for day, value in rows if value is not None]
        back = pipelines.inverse_transform(
            np.array([value for _, value in told], np.float64), entity=name
        )
        assert sorted(observed) == [day for day, _ in told]
        np.testing.assert_allclose([observed[day] for day, _ in told], back, rtol=2e-5, atol=1e-5)


@needs_caravan
def test_caravan_quality_reports_tell_the_traps(prepared: Prepared) -> None:
    def report(name: str) -> dict:
        return json.loads((prepared.run / "quality_reports" / f"{name}.json").read_bytes())

    swiss, spanish = report("camelsch_4001"), report("camelses_1414")
    assert ("1985-11", "2019-05") == (swiss["period"]["start"][:7], swiss["period"]["end"][:7])
    assert "2006-12" == report("camelslx_055")["period"]["start"][:7]
    flow = spanish["imputation_info"]["streamflow"]
    days, flows = flows_of("camelses_1414")
    lost = np.isnan(flows)
    inside = lost[np.argmax(~lost) : len(lost) - np.argmax(~lost[::-1])]
    ends = np.flatnonzero(np.diff(inside.astype(int)))
    lengths = ends[1::2] - ends[::2]
    counts = [flow[f"{word}_gaps_count"] for word in ("short", "long", "unfilled", "cut")]
    assert counts == [0, int((lengths > 5).sum()), int((lengths <= 5).sum()), 0]
    assert 0 == flow["imputed_values_count"]
    assert int(inside.sum()) == flow["missing_values_count"]
    assert len(days) == 10_958


@needs_caravan
def test_a_column_that_only_some_files_have_fails_the_others(tmp_path: Path) -> None:
    prepared = caravan(tmp_path / "out", future_features=[*FORCING, "pr_emo1"])

    summary = json.loads((prepared.run / "quality_summary.json").read_bytes())
    assert ["camelses_1414"] == summary["retained_entities"]
    assert 4 == len(summary["excluded_entities"])
    assert all("column 'pr_emo1': " in reason for reason in summary["excluded_entities"].values())


@pytest.mark.slow
@needs_caravan
def test_a_benchmark_with_common_dates_and_basins_held_out_is_three_commands(
    tmp_path: Path,
) -> None:
    """Also against the days of the raw files: where the target is observed, each day is in the split of its date."""
    config, out = tmp_path / "basins.yaml", tmp_path / "out"
    source = (
        "--target",
        "streamflow",
        "--features",
        ",".join(FORCING),
        "--out",
        out,
        "--config",
        config,
    )
    pipelines = {"strategy": "unified", "pipeline": "StandardScaler", "fit_on_n_entities": 9}
    by_all = json.dumps({"features": pipelines, "target": pipelines})
    changed = (
        "trim=none",
        f"preprocessing_configs={by_all}",
        "train_end='2010-10-01'",
        "val_end='2014-10-01'",
        "test_entities=[camelslx_054, camelslx_055]",
    )
    dates = [word for setting in changed for word in ("--set", setting)]
    for command in (
        ("init", "series", CARAVAN / "timeseries", *source),
        ("run", config, *dates),
        ("verify", out),
    ):
        done = run_command(*command)
        assert done.returncode == 0, done.stderr
    made = headrace.open(out)
    assert (made.manifest.dropped["trimmed"], made.manifest.source["rows"]) == (0, 56_976)
    rows = pl.concat(
        pl.DataFrame(made[split].to_arrow()).with_columns(split=pl.lit(split)) for split in SPLITS
    )
    for name in ("camelsch_4001", "camelslx_054"):
        days, flows = flows_of(name)
        told = (
            pl.DataFrame({"day": days, "flow": flows})
            .filter(pl.col("flow").is_not_nan())["day"]
            .to_list()
        )
        own = rows.filter(pl.col("entity") == name, pl.col("streamflow").is_not_nan())
        for split, first, last in (
            ("train", "", "2010-10-01"),
            ("val", "2010-10-01", "2014-10-01"),
            ("test", "2014-10-01", "9"),
        ):
            there = split in (("test",) if name == "camelslx_054" else ("train", "val"))
            expected = [day for day in told if there and first <= day < last]
            assert (
                own.filter(pl.col("split") == split)["date"].dt.to_string("%Y-%m-%d").to_list()
                == expected
            )
