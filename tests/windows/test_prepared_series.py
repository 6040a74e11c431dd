"""From raw tables through `headrace.Series` to windows, and predictions back to the target's unit."""

import json
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import CorruptShard, SettingsError
from headrace.lightning import SeriesDataModule
from headrace.windows import open_windows
from raised import raised

LENGTHS = {"ab_1": 300, "ab_2": 420, "ab_3": 360, "zz_9": 390}
RULE = {"input_length": 20, "output_length": 3}


def write_raw(path):
    """One CSV file an entity: outages and holes, and dates that are left out; and a table of attributes."""
    path.mkdir()
    random = np.random.default_rng(0)
    raw = {}
    for number, (name, rows) in enumerate(LENGTHS.items()):
        days = np.array([date(2000, 1, 1 + number) + timedelta(days=each) for each in range(rows)])
        rain = random.gamma(0.7, 4, rows)
        flow = 10.0**number * (1 + np.convolve(rain, np.exp(-np.arange(9) / 3))[:rows])
        warmth = 10 + 8 * np.sin(np.arange(rows) / 58) + number
        rain[100:140] = np.nan
        warmth[150:153] = np.nan
        flow[40:42] = np.nan
        kept = np.delete(np.arange(rows), [201, 202])  # dates that nobody wrote down
        raw[name] = (days, flow, rain, warmth)
        table = pa.table(
            {
                "date": days[kept],
                **{
                    column: pa.array(values[kept], mask=np.isnan(values[kept]))
                    for column, values in (("flow", flow), ("rain", rain), ("warmth", warmth))
                },
            }
        )
        pa.csv.write_csv(table, path / f"{name}.csv")
    attributes = pa.table(
        {"gauge": list(LENGTHS), "area": [1.0, 5.0, 9.0, 3.0], "slope": [0.1, 0.4, 0.2, 0.9]}
    )
    pa.csv.write_csv(attributes, path.parent / "attributes.csv")
    return raw


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    raw = write_raw(folder / "raw")
    settings = {
        "source": str(folder / "raw"), "target": "flow", "future_features": ["warmth", "rain"], "min_train_years": 0.2,
        "static": str(folder / "attributes.csv"), "static_entity": "gauge", "static_features": ["slope", "area"],
        "batch_size": 2, "max_imputation_gap_size": 4,
    }  # fmt: skip
    headrace.prepare(headrace.Series(**settings), folder / "out")
    return folder, raw, settings


def unscaled(windows, batch, raw):
    """What the raw tables say for each window's targets: float64 [B, H]."""
    found = []
    for name, end in zip(
        windows.entity_names(batch["entity"]), batch["input_end_date"], strict=True
    ):
        days, flow, *_ = raw[name]
        place = int((end.astype("datetime64[D]") - np.datetime64(days[0])).astype(int))
        found.append(flow[place + 1 : place + 4])
    return np.array(found)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_targets_of_windows_are_the_raw_ones_when_brought_back(prepared, split):
    folder, raw, _ = prepared
    windows = open_windows(folder / "out", split, **RULE, history="preceding")
    batch = windows.batch(range(len(windows)))

    back = SeriesDataModule(folder / "out", **RULE, batch_size=8).inverse_transform(
        batch["y"], batch["entity"]
    )

    assert len(windows) > 100
    assert 4 == len(set(batch["entity"]))
    assert ("warmth", "rain") == windows.input_names
    np.testing.assert_allclose(unscaled(windows, batch, raw), back, rtol=1e-5)
    assert np.isfinite(batch["X"]).all()


def test_windows_by_hand_from_the_readable_files_are_the_same(prepared):
    """The store and `processed_time_series` say the same; nothing but an outage keeps a window away."""
    folder, _, _ = prepared
    windows = open_windows(folder / "out", "train", **RULE)
    run = windows.store.root
    expected = []
    for number, name in enumerate(sorted(LENGTHS)):
        table = pq.read_table(run / "processed_time_series" / "train" / f"{name}.parquet")
        matrix = np.column_stack(
            [table[each].to_numpy(zero_copy_only=False) for each in ("flow", "warmth", "rain")]
        )
        dates = table["date"].to_numpy().astype("datetime64[us]")
        assert (np.diff(dates) == np.timedelta64(1, "D")).all()
        for start in range(len(matrix) - 22):
            part = matrix[start : start + 23]
            if not np.isnan(part[:, 1:]).any() and not np.isnan(part[20:, 0]).any():
                expected.append((number, dates[start + 19], part[:20, 1:], part[20:, 0]))
    batch = windows.batch(range(len(windows)))

    assert [each[0] for each in expected] == batch["entity"].tolist()
    np.testing.assert_array_equal([each[1] for each in expected], batch["input_end_date"])
    np.testing.assert_array_equal([each[2] for each in expected], batch["X"])
    np.testing.assert_array_equal([each[3] for each in expected], batch["y"])


def test_static_features_are_those_of_the_windows_entity(prepared):
    folder, _, _ = prepared
    windows = open_windows(folder / "out", "train", **RULE)
    batch = windows.batch(range(len(windows)))
    scaled = {
        name: row.tolist()
        for name, row in zip(windows.entity_names(batch["entity"]), batch["static"], strict=True)
    }

    order = {
        name: sorted(scaled, key=lambda each, at=at: scaled[each][at])
        for at, name in enumerate(windows.static_names)
    }
    assert {
        "area": ["ab_1", "zz_9", "ab_2", "ab_3"],
        "slope": ["ab_1", "ab_3", "ab_2", "zz_9"],
    } == order


def test_the_data_module_prepares_what_a_yaml_file_says_and_finds_it_again(prepared, tmp_path):
    import yaml

    folder, _, settings = prepared
    file = tmp_path / "series.yaml"
    file.write_text(yaml.safe_dump({"recipe": "series", "out": str(tmp_path / "out"), **settings}))
    modules = [
        SeriesDataModule(file, **RULE, batch_size=64, validation="time"),
        SeriesDataModule(
            headrace.Series(**settings),
            out=tmp_path / "out",
            **RULE,
            batch_size=64,
            validation="time",
        ),
        SeriesDataModule(folder / "out", **RULE, batch_size=64, validation="time"),
    ]
    modules[0].prepare_data()
    manifest = next((tmp_path / "out" / "runs").glob("*/manifest.json"))
    written = manifest.stat().st_mtime_ns
    modules[1].prepare_data()
    batches = []
    for module in modules:
        module.setup("fit")
        batches.append(
            [(batch["entity"].tolist(), batch["y"].tolist()) for batch in module.train_dataloader()]
        )

    assert batches[0] == batches[1] == batches[2]
    assert written == manifest.stat().st_mtime_ns
    assert 1 == len({module.store.run_id for module in modules})
    batch = next(iter(modules[0].val_dataloader()))
    back = modules[0].inverse_transform(batch["y"], batch["entity"])
    arrays = {
        "entity": batch["entity"].numpy(),
        "input_end_date": batch["input_end_date"].numpy().view("datetime64[us]"),
    }
    np.testing.assert_allclose(
        unscaled(modules[0].windows("pool"), arrays, prepared[1]), back, rtol=1e-5
    )


def test_settings_without_a_place_for_the_run_are_said(prepared, tmp_path):
    _, _, settings = prepared
    with raised(SettingsError, setting="out", remedy="give the output directory"):
        SeriesDataModule(headrace.Series(**settings), **RULE, batch_size=8)
    (tmp_path / "bad.yaml").write_text("- 1\n")
    with raised(SettingsError, remedy="correct it"):
        SeriesDataModule(tmp_path / "bad.yaml", **RULE, batch_size=8)


def test_what_cannot_be_brought_back_is_said(prepared, tmp_path):
    import shutil

    folder, _, _ = prepared
    module = SeriesDataModule(folder / "out", **RULE, batch_size=8)
    with raised(SettingsError, setting="entity", remedy="give one name, or one a value"):
        module.inverse_transform(np.zeros((3, 2)), [0, 1])
    shutil.copytree(module.store.root, tmp_path / "run")
    path = tmp_path / "run" / "fitted_pipelines.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record))
    moved = SeriesDataModule(tmp_path / "run", **RULE, batch_size=8)
    with pytest.raises(CorruptShard, match="does not have the digest in the manifest"):
        moved.inverse_transform(np.zeros(1), [0])
    path.unlink()
    with pytest.raises(CorruptShard, match="is missing"):
        moved.inverse_transform(np.zeros(1), [0])
