"""Static features that are texts: encoded by what the retained entities have, and by nothing else."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from basins import a_basin, files_of, series, settings, write_basins

import headrace
from headrace.series.arrays.encoders import fit_encoder
from headrace.series.leaks import encoding_problem
from headrace.series.pipelines.save import load_pipelines
from headrace.windows import open_windows
from raised import raised

SCALED = {"strategy": "unified", "columns": ["area"], "pipeline": ["StandardScaler"]}


def encoded(*columns: str, step: str = "OneHotEncoder", **params: object) -> dict:
    return {"strategy": "unified", "columns": list(columns), "pipeline": [{"step": step, **params}]}


def asked(
    tmp_path: Path, *pipelines: dict, features: tuple[str, ...] = ("soil", "area"), **more: object
) -> dict:
    """Five basins, of which `empty` fails and has a soil of its own; a stranger has another one."""
    source = tmp_path / "raw"
    if not source.exists():
        write_basins(
            source, {name: a_basin(place) for place, name in enumerate(["a", "b", "c", "d"])}
        )
        write_basins(source, {"empty": a_basin(9)[:2]})
        (tmp_path / "static.csv").write_text(
            "gauge,area,soil,code\na,1,clay,7\nb,2, sand,08\nc,3,clay,7\nd,4,silt,7\nempty,5,moor,1\nstranger,6,ice,9\n"
        )
    static = {
        "static": tmp_path / "static.csv",
        "static_entity": "gauge",
        "static_features": features,
    }
    return {
        "source": source,
        **static,
        "preprocessing_configs": {"static_features": list(pipelines)},
        **more,
    }


def statics(prepared: headrace.types.Prepared) -> dict[str, list]:
    return dict(pq.read_table(prepared.run / "processed_static_features.parquet").to_pydict())


@pytest.mark.slow
def test_a_column_for_each_category_of_retained_entities(tmp_path: Path) -> None:
    prepared = series(out=tmp_path / "out", **asked(tmp_path, SCALED, encoded("soil")))

    found = statics(prepared)
    names = ["soil_clay", "soil_sand", "soil_silt", "area"]
    assert ["gauge", *names] == list(found)
    assert names == prepared.manifest.metadata["static_columns"]
    assert [["a", "b", "c", "d"], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]] == [
        found[name] for name in ("gauge", *names[:-1])
    ]
    assert [] == headrace.verify(tmp_path / "out").problems
    windows = open_windows(tmp_path / "out", "train", input_length=3, output_length=1)
    assert names == list(windows.static_names)
    assert {(1.0, 0.0, 0.0)} == {tuple(row[:-1]) for row in windows.batch([0])["static"].tolist()}


@pytest.mark.slow
def test_numbers_are_texts_where_an_encoder_says_so(tmp_path: Path) -> None:
    ordinal = encoded("code", "soil", step="OrdinalEncoder")
    prepared = series(out=tmp_path / "out", **asked(tmp_path, ordinal, features=("code", "soil")))

    found = statics(prepared)
    assert {"code": [1, 0, 1, 1], "soil": [0, 1, 0, 2]} == {
        name: found[name] for name in ("code", "soil")
    }
    assert [("08", "7"), ("clay", "sand", "silt")] == list(
        load_pipelines(tmp_path / "out").static_encoders[0].categories
    )
    assert [] == headrace.verify(tmp_path / "out").problems


@pytest.mark.parametrize("trust", ["safe", "joblib"])
def test_a_fit_is_loaded_in_both_forms_and_knows_no_others(tmp_path: Path, trust: str) -> None:
    series(out=tmp_path / "out", **asked(tmp_path, SCALED, encoded("soil")))

    pipelines = load_pipelines(tmp_path / "out", trust=trust)

    (encoder,) = pipelines.static_encoders
    assert ("area",) == pipelines.static_features.columns
    assert [[0, 1, 0]] == encoder.transform({"soil": ["sand"]}).tolist()
    with raised(headrace.InputError, column="soil", row=1, value="moor"):
        encoder.transform({"soil": ["moor"]})


def test_the_same_bytes_for_any_workers_and_places_of_the_files(tmp_path: Path) -> None:
    one = series(out=tmp_path / "one", **asked(tmp_path, SCALED, encoded("soil")))
    four = series(out=tmp_path / "four", workers=4, **asked(tmp_path, SCALED, encoded("soil")))

    assert one.manifest.run_id == four.manifest.run_id
    assert files_of(one) == files_of(four)


def test_parameters_of_an_encoder_are_in_the_run_id(tmp_path: Path) -> None:
    plain = series(out=tmp_path / "out", **asked(tmp_path, SCALED, encoded("soil")))
    dropping = series(
        out=tmp_path / "out", **asked(tmp_path, SCALED, encoded("soil", drop="first"))
    )

    assert plain.manifest.run_id != dropping.manifest.run_id
    assert ["soil_sand", "soil_silt", "area"] == dropping.manifest.metadata["static_columns"]


def test_scikit_learn_objects_are_the_same_run(tmp_path: Path) -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    words = series(
        out=tmp_path / "out", **asked(tmp_path, SCALED, encoded("soil", handle_unknown="ignore"))
    )
    step = preprocessing.OneHotEncoder(handle_unknown="ignore")
    objects = {"strategy": "unified", "columns": ["soil"], "pipeline": step}

    assert (
        words.manifest.run_id
        == series(out=tmp_path / "out", **asked(tmp_path, SCALED, objects)).manifest.run_id
    )


def test_an_encoder_that_saw_others_is_found(tmp_path: Path) -> None:
    """As if `moor`, which no retained basin has, had been in the fit."""
    prepared = series(
        out=tmp_path / "out",
        **asked(tmp_path, encoded("soil", step="OrdinalEncoder"), features=("soil",)),
    )
    pipelines = load_pipelines(tmp_path / "out")
    step = pipelines.static_encoders[0].step
    seen = fit_encoder(step, ("soil",), {"soil": ["clay", "moor", "sand", "silt"]})

    stored = {name: np.array(each) for name, each in statics(prepared).items() if name != "gauge"}
    assert encoding_problem(pipelines.static_encoders[0], stored) is None
    assert "not those of the retained entities" in str(encoding_problem(seen, stored))


@pytest.mark.parametrize(
    ("pipelines", "more", "says"),
    [
        (
            [],
            {},
            "static.csv: column 'soil': .*'clay'.*leave it out, or encode it by a pipeline",
        ),
        (
            [SCALED, encoded("soil", categories=[["clay", "sand"]])],
            {},
            "column 'soil' is 'silt': none of the 2",
        ),
    ],
)
def test_what_cannot_be_encoded_is_an_error(
    tmp_path: Path, pipelines: list, more: dict, says: str
) -> None:
    given = asked(tmp_path, *pipelines, **more)
    if not pipelines:
        del given["preprocessing_configs"]

    with pytest.raises(headrace.InputError, match=says):
        series(out=tmp_path / "out", **given)


def test_two_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    given = asked(
        tmp_path,
        encoded("soil"),
        {**SCALED, "columns": ["soil_clay"]},
        features=("soil", "soil_clay"),
    )
    (tmp_path / "static.csv").write_text(
        "gauge,soil_clay,soil\na,1,clay\nb,2,sand\nc,3,clay\nd,4,silt\nempty,5,moor\n"
    )

    with raised(headrace.InputError, column="soil_clay"):
        series(out=tmp_path / "out", **given)


def test_tables_that_say_different_texts_are_an_error(tmp_path: Path) -> None:
    given = asked(tmp_path, SCALED, encoded("soil"))
    (tmp_path / "other.csv").write_text("gauge,soil\na,loam\n")

    with raised(headrace.InputError, column="soil", value="clay"):
        series(
            out=tmp_path / "out",
            **{**given, "static": [tmp_path / "static.csv", tmp_path / "other.csv"]},
        )


@pytest.mark.parametrize(
    ("configs", "says"),
    [
        (
            {"features": encoded("rain", "cold")},
            "preprocessing_configs: features: OneHotEncoder makes numbers of texts",
        ),
        (
            {"target": {"strategy": "per_group", "pipeline": ["OrdinalEncoder"]}},
            "preprocessing_configs: target: OrdinalEncoder makes numbers of texts",
        ),
        (
            {
                "static_features": {
                    "strategy": "unified",
                    "pipeline": ["OneHotEncoder", "StandardScaler"],
                }
            },
            "OneHotEncoder -> StandardScaler; an encoder is the only step",
        ),
    ],
)
def test_encoders_elsewhere_are_refused_before_any_work(
    tmp_path: Path, configs: dict, says: str
) -> None:
    with pytest.raises(headrace.SettingsError, match=says):
        settings(tmp_path, preprocessing_configs=configs)
