"""What can be asked is checked when it is built, and every refusal says what to give instead."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SettingsError
from headrace.split.settings import TemporalSplit
from raised import raised

ASKED: dict[str, Any] = {"source": "in", "time": "date", "entity": "id", "split_date": "2025-01-01"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"dialect": {"time_format": "dd.mm.yyyy"}}, "time_format is 'dd.mm.yyyy'; give iso"),
        ({"types": {"x": "integer"}}, "types is 'integer'"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_work_is_refused_when_it_is_built(
    more: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        TemporalSplit(**(ASKED | more))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("more", "setting"),
    [
        ({"train_ratio": 0}, "train_ratio"),
        ({"train_ratio": 1}, "train_ratio"),
        ({"train_ratio": "most"}, "train_ratio"),
        ({"format": "xml"}, "format"),
        ({"train_rato": 0.5}, "train_rato"),
        ({"seed": -1}, "seed"),
        ({"source": []}, "source"),
        ({"entity": ""}, "entity"),
        ({"split_date": "soon"}, "split_date"),
        ({"split_date": "2025-02-30"}, "split_date"),
        ({"time_zone": ""}, "time_zone"),
        ({"time_zone": "Mars/Base"}, "time_zone"),
        ({"time_zone": "../etc/passwd"}, "time_zone"),
        ({"format": "parquet", "compression": "gz"}, "compression"),
        ({"format": "csv", "compression": "snappy"}, "compression"),
        ({"targets": "a,b"}, "targets"),
        ({"main_task_index": 0}, "targets"),
        ({"targets": ["a"], "main_task_index": 0}, "targets"),
        ({"targets": ["a", "a"], "main_task_index": 0}, "targets"),
        ({"targets": ["a", "b"], "main_task_index": 2}, "main_task_index"),
        ({"targets": ["id", "b"], "main_task_index": 0}, "targets"),
        ({"label": "date"}, "label"),
        ({"label": "id"}, "label"),
        ({"label": "y", "types": {"y": "int8"}}, "types"),
        ({"time": "id"}, "time"),
    ],
    ids=str,
)
def test_the_refusal_names_the_setting(more: dict[str, Any], setting: str) -> None:
    with raised(SettingsError, setting=setting):
        TemporalSplit(**(ASKED | more))


@pytest.mark.parametrize("name", [name for name in ASKED if name != "entity"])
def test_a_setting_that_is_needed_is_asked_for(name: str) -> None:
    with raised(SettingsError, setting=name):
        TemporalSplit(**{key: value for key, value in ASKED.items() if key != name})


@pytest.mark.parametrize(
    "value",
    [
        "2025-01-01",
        "20250101",
        dt.date(2025, 1, 1),
        dt.datetime(2025, 1, 1),
        "2025-01-01T01:00:00+01:00",
    ],
)
def test_a_split_date_may_be_written_in_several_ways(value: object) -> None:
    settings = TemporalSplit(**(ASKED | {"split_date": value}))

    assert 1_735_689_600_000_000 == settings.cutoff().instant_us


def test_settings_cannot_be_changed() -> None:
    settings = TemporalSplit(**ASKED)

    with pytest.raises(ValueError, match="frozen"):
        settings.seed = 7  # type: ignore[misc]


@pytest.mark.parametrize("source", ["in", Path("in"), ["in"], ("in",)])
def test_one_source_or_several_may_be_given(source: object) -> None:
    assert (Path("in"),) == TemporalSplit(**(ASKED | {"source": source})).source


def test_the_configuration_makes_the_same_settings_again() -> None:
    settings = TemporalSplit(
        **ASKED,
        targets=["a", "b"],
        main_task_index=1,
        types={"x": "int8"},
        dialect={"null_values": ["NA"]},
    )
    record = settings.config()

    assert "temporal_split" == record.pop("recipe")
    assert settings == TemporalSplit(**record)


def test_a_label_may_be_declared_as_what_it_becomes() -> None:
    assert {"y": "int64"} == TemporalSplit(**ASKED, label="y", types={"y": "int64"}).types
