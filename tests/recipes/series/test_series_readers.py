"""Sources of other shapes give the runs that the same series give as plain files, and hold what others read there."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from basins import readable_rows
from series_sources import frame_of

import headrace
from headrace.cli.init.commented import settings_of
from headrace.cli.init.look import Data
from headrace.cli.init.options import InitSeriesOptions
from headrace.run.prepare import Prepared
from headrace.series.init import series_sections
from raised import raised

NAMES = ["01", "b c", "é"]
DAYS = 200


def frames(**metadata: int) -> dict[str, pl.DataFrame]:
    return {name: frame_of(name, days=DAYS, **metadata) for name in NAMES}


def run(source: object, out: Path, **settings: object) -> Prepared:
    asked = {
        "source": source,
        "target": "q",
        "future_features": ["rain", "warm"],
        "min_train_years": 0.1,
    }
    return headrace.prepare(headrace.Series(**{**asked, **settings}), out)


def rows(prepared: Prepared) -> dict[str, dict[str, tuple[list, list]]]:
    return {
        split: {name: (own.times, own.values) for name, own in entities.items()}
        for split, entities in readable_rows(prepared).items()
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, tuple[list, list]]]:
    """What comes of a plain file for each entity."""
    place = tmp_path_factory.mktemp("plain")
    (place / "in").mkdir()
    for name, frame in frames().items():
        frame.write_csv(place / "in" / f"{name}.csv")
    return rows(run(place / "in", place / "out"))


@pytest.mark.parametrize("library", ["polars", "pandas", "pyarrow"])
def test_frames_are_sources(tmp_path: Path, plain: Mapping[str, object], library: str) -> None:
    long = pl.concat([frame.with_columns(gauge=pl.lit(name)) for name, frame in frames().items()])
    if library == "pandas":
        pytest.importorskip("pandas")
        made: object = long.to_pandas().set_index(["gauge", "date"])
    else:
        made = long if library == "polars" else long.to_arrow()

    assert plain == rows(run(made, tmp_path / "out", entity="gauge", static_entity=None))


def test_decimal_commas_and_encodings_are_read(tmp_path: Path, plain: Mapping[str, object]) -> None:
    pandas = pytest.importorskip("pandas")
    (tmp_path / "in").mkdir()
    for name, frame in frames().items():
        path = tmp_path / "in" / f"{name}.csv"
        noted = frame.with_columns(pl.lit("Fluß").alias("Gewässer"))
        text = noted.write_csv(separator=";").replace(".", ",")
        path.write_bytes(text.replace("\n", "\r\n").encode("latin-1"))
        theirs = pandas.read_csv(path, sep=";", decimal=",", encoding="latin-1")
        np.testing.assert_array_equal(frame["rain"].to_numpy(), theirs["rain"].to_numpy())

    asked = {"dialect": {"decimal": ",", "encoding": "latin-1"}}
    assert plain == rows(run(tmp_path / "in", tmp_path / "out", **asked))
    with pytest.raises(headrace.InputError, match=r"01\.csv.* not UTF-8"):
        run(tmp_path / "in", tmp_path / "other", dialect={"decimal": ","}, frequency="1d")


def test_a_decimal_comma_that_nobody_named_is_told(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text(
        "date;q\n" + "".join(f"2020-01-{day:02};1,{day}\n" for day in range(1, 30))
    )
    with pytest.raises(headrace.InputError, match="'q' is '1,1': .*give dialect=.*decimal"):
        run(tmp_path / "in", tmp_path / "out", future_features=[])
    with raised(headrace.SettingsError, setting="encoding"):
        run(tmp_path / "in", tmp_path / "out", dialect={"encoding": "latin-99"})


def grid() -> object:
    """The entities as a data set of xarray, with a variable of each entity and one of each time."""
    xarray = pytest.importorskip("xarray")
    own = frames()
    times = own["01"]["date"].str.to_datetime(time_unit="ns").to_numpy()
    cubes = {
        column: (
            ("gauge", "date"),
            np.stack([own[name][column].cast(pl.Float64).fill_null(np.nan) for name in NAMES]),
        )
        for column in ("q", "rain", "warm")
    }
    area, year = ("gauge", [1.5, 2.5, 3.5]), ("date", np.arange(DAYS) // 365 + 2001.0)
    return xarray.Dataset({**cubes, "area": area, "year": year}, {"gauge": NAMES, "date": times})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["netcdf", "zarr", "memory", "cut", "turned"])
def test_data_sets_of_xarray_are_sources(
    tmp_path: Path, plain: Mapping[str, object], kind: str
) -> None:
    pytest.importorskip("netCDF4" if kind == "netcdf" else "zarr")
    data = grid()
    asked: dict[str, object] = {"entity": "gauge"}
    if kind == "netcdf":
        source: object = tmp_path / "in/all.nc"
        (tmp_path / "in").mkdir()
        data.to_netcdf(source)  # type: ignore[attr-defined]
    elif kind == "zarr":
        source = tmp_path / "all.zarr"
        data.to_zarr(source, zarr_format=2)  # type: ignore[attr-defined]
    elif kind == "memory":
        source = data
    elif kind == "turned":
        source = tmp_path / "in.zarr"
        data.transpose().to_zarr(source, zarr_format=2)  # type: ignore[attr-defined]
    else:  # a file for each entity, without its dimension
        source, asked = tmp_path / "in", {}
        for at, name in enumerate(NAMES):
            data.isel(gauge=at).drop_vars("gauge").to_zarr(
                tmp_path / "in" / f"{name}.zarr", zarr_format=2
            )  # type: ignore[attr-defined]

    assert plain == rows(run(source, tmp_path / "out", **asked))


@pytest.mark.slow
def test_netcdf_is_what_its_own_library_reads(tmp_path: Path) -> None:
    """Packed integers, fill values, an entity that is no dimension, and times by the CF conventions."""
    netcdf = pytest.importorskip("netCDF4")
    pytest.importorskip("xarray")
    path = tmp_path / "in.nc"
    raw = np.random.default_rng(0).integers(-50, 500, (2, 300)).astype(np.int16)
    raw[:, 40:43], raw[0, 17] = -999, -999
    with netcdf.Dataset(path, "w") as file:
        file.createDimension("station", 2)
        file.createDimension("time", 300)
        time = file.createVariable("time", "i4", ("time",))
        time.units, time[:] = "hours since 1999-12-31 18:00:00", np.arange(300) * 6
        name = file.createVariable("code", str, ("station",))
        name[:] = np.array(["x1", "x2"], object)
        flow = file.createVariable("flow", "i2", ("station", "time"), fill_value=-999)
        flow.set_auto_maskandscale(False)
        flow.scale_factor, flow.add_offset, flow[:] = 0.25, 10.0, raw
    with netcdf.Dataset(path) as file:
        theirs = np.ma.filled(file["flow"][:].astype(np.float64), np.nan)
        times = [str(each) for each in netcdf.num2date(file["time"][:], file["time"].units)]
    table = pa.concat_tables(
        [
            pa.table(
                {
                    "code": [code] * 300,
                    "time": times,
                    "flow": pa.array(theirs[at], from_pandas=True),
                }
            )
            for at, code in enumerate(("x1", "x2"))
        ]
    )
    asked = {"entity": "code", "time": "time", "target": "flow", "future_features": []}

    assert rows(run(table, tmp_path / "other", **asked)) == rows(
        run(path, tmp_path / "out", **asked)
    )
    with pytest.raises(headrace.InputError, match="column 'flo': no such variable; there are"):
        run(path, tmp_path / "third", **{**asked, "target": "flo"})
    with pytest.raises(headrace.InputError, match="no column tells 'station'; name one as entity"):
        run(path, tmp_path / "third", **{**asked, "entity": "file_name"})


def first_settings(*source: Path, **asked: str) -> dict[str, object]:
    return settings_of(
        series_sections(
            InitSeriesOptions(source=list(map(str, source)), out="out", **asked), Data(source)
        )[0]
    )


@pytest.mark.slow
def test_a_first_configuration_of_a_zarr_store(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    data = grid()
    data.to_zarr(tmp_path / "all.zarr", zarr_format=2)  # type: ignore[attr-defined]
    store = first_settings(tmp_path / "all.zarr", target="q")

    assert ["gauge", "date", "1d"] == [store[name] for name in ("entity", "time", "frequency")]
    assert ["area", "rain", "warm", "year"] == sorted(store["past_features"])  # type: ignore[call-overload]


def test_a_first_configuration_finds_decimal_commas_and_takes_a_zone(tmp_path: Path) -> None:
    times = [f"{2 + at // 24:02}.01.2020 {at % 24:02}:00;{at},5" for at in range(24 * 20)]
    (tmp_path / "meter.csv").write_text("\n".join(["Zeit;Last", *times]) + "\n")
    found = first_settings(tmp_path / "meter.csv", target="Last", time_zone="Europe/Berlin")

    assert [",", "Europe/Berlin", "1h"] == [
        (found | found["dialect"])[each] for each in ("decimal", "time_zone", "frequency")
    ]
