"""A split by time alone, and rows kept away from the cutoff: the laws, against a plain implementation."""

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataset.verify import certify, verify
from headrace.errors import InputError, SettingsError
from headrace.split.verify import verify_split
from laws import examples
from raised import raised
from resealed import change_settings
from tables import digests, fresh, split, split_rows, write_rows

HEADER = ("id", "date", "row")
CUTOFF = dt.datetime(2025, 1, 1)
UNIT = {"h": dt.timedelta(hours=1), "d": dt.timedelta(days=1)}

times = st.datetimes(dt.datetime(2024, 12, 25), dt.datetime(2025, 1, 7)).map(
    lambda each: each.replace(microsecond=0)
)
tables = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdef"), times), min_size=1, max_size=12),
    min_size=1,
    max_size=3,
)
stretches = st.none() | st.sampled_from(["1h", "12h", "1d", "3d"])


def write(directory: Path, table: list[list[tuple[str, dt.datetime]]]) -> Path:
    number = 0
    for place, rows in enumerate(table):
        written = [(id_, str(time), str(number + at)) for at, (id_, time) in enumerate(rows)]
        number += len(rows)
        write_rows(directory / f"part-{place:05d}.csv", HEADER, written)
    return directory


def plainly(time: dt.datetime, gap: str | None, horizon: str | None) -> str:
    """Where a row goes by time alone, in words of the rule."""
    if time >= CUTOFF:
        return "test"
    for reason, asked in (("gap_before_cutoff", gap), ("label_past_cutoff", horizon)):
        if asked is not None and time + int(asked[:-1]) * UNIT[asked[-1]] >= CUTOFF:
            return reason
    return "train"


@pytest.mark.slow
@given(tables, stretches, stretches, st.integers(1, 3))
@settings(max_examples=examples(100))
def test_time_alone_sends_each_row_where_the_rule_says(
    tmp_path: Path, table: list[Any], gap: str | None, horizon: str | None, workers: int
) -> None:
    directory = fresh(tmp_path)
    source = write(directory / "in", table)
    expected = [plainly(time, gap, horizon) for part in table for _, time in part]
    asked = {"entity": None, "train_ratio": 0.9, "gap": gap, "label_horizon": horizon}
    if "train" not in expected:
        with raised(InputError, remedy="choose a later split_date"):
            split(source, directory / "out", **asked)
        return
    made = split(source, directory / "out", workers=workers, **asked)
    found = {int(row[2]): name for name in ("train", "test") for row in split_rows(made.run, name)}

    kept = {row: where for row, where in enumerate(expected) if where in ("train", "test")}
    assert kept == found
    assert {name: totals.rows for name, totals in made.manifest.splits.items()} == {
        name: list(kept.values()).count(name) for name in ("train", "test")
    }
    assert {k: n for k, n in made.manifest.dropped.items() if n} == Counter(
        each for each in expected if each not in ("train", "test")
    )
    assert not verify(directory / "out").problems


@pytest.mark.slow
@given(tables, stretches, stretches)
@settings(max_examples=examples(60))
def test_with_an_entity_only_rows_away_from_the_cutoff_decide_who_trains(
    tmp_path: Path, table: list[Any], gap: str | None, horizon: str | None
) -> None:
    directory = fresh(tmp_path)
    source = write(directory / "in", table)
    usable = {id_ for part in table for id_, time in part if plainly(time, gap, horizon) == "train"}
    if len(usable) < 2:
        return
    made = split(source, directory / "out", gap=gap, label_horizon=horizon)
    rows = {name: list(split_rows(made.run, name)) for name in ("train", "val", "test")}
    train, val = ({row[0] for row in rows[name]} for name in ("train", "val"))

    assert usable == train | val
    assert not train & val
    assert len(usable) // 2 == len(train)
    for number, (id_, time) in enumerate(each for part in table for each in part):
        where = plainly(time, gap, horizon)
        if where == "train":
            where = "train" if id_ in train else "val"
        elif where == "test" and id_ in train:
            where = "train_entity_after_cutoff"
        assert where not in rows or str(number) in [row[2] for row in rows[where]]
    assert sum(map(len, rows.values())) + sum(made.manifest.dropped.values()) == sum(
        map(len, table)
    )
    assert not verify(directory / "out").problems


@pytest.mark.parametrize(
    "output", [{"format": "parquet"}, {"layout": "single"}, {"format": "parquet", "label": "id"}]
)
def test_workers_change_no_byte(tmp_path: Path, output: dict[str, Any]) -> None:
    days = [CUTOFF + dt.timedelta(hours=7 * n) for n in range(-40, 20)]
    source = write(
        tmp_path / "in",
        [[("ab"[n % 2], day) for n, day in enumerate(days[part::3])] for part in range(3)],
    )
    asked = {
        "entity": None,
        "train_ratio": 0.9,
        "gap": "1d",
        "label_horizon": "2d",
        "duplicates": "drop",
        **output,
    }
    one, three = (
        split(source, tmp_path / f"out{n}", workers=n, content=["row"], **asked) for n in (1, 3)
    )

    assert digests(one.run) == digests(three.run)
    assert not verify(tmp_path / "out1").problems


def test_a_row_whose_label_looks_too_far_is_found(tmp_path: Path) -> None:
    days = [CUTOFF + dt.timedelta(days=n) for n in range(-40, 20)]
    source = write(tmp_path / "in", [[("a", day) for day in days]])
    made = split(
        source,
        tmp_path / "out",
        entity=None,
        train_ratio=0.9,
        gap="2d",
        label_horizon="7d",
        format="parquet",
    )
    certificate = certify(tmp_path / "out")
    assert {"gap before the cutoff", "labels end before the cutoff"} <= {
        each["check"] for each in certificate["proved"]
    }
    assert not [each for each in certificate["not_proved"] if "Labels may be made" in each]
    assert [each for each in certificate["not_proved"] if "An entity may be in two splits" in each]

    # rows that a longer horizon reaches are where the rule does not want them
    run = change_settings(made.run, label_horizon="20d")
    problems = {each.name: each.problem for each in verify_split(run)}

    assert "row 21: its label ends 20d later, not before 2025-01-01" in str(
        problems["labels end before the cutoff"]
    )
    assert problems["gap before the cutoff"] is None


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"gap": "soon"}, "gap is 'soon'; give a number and s, m, h, d or w"),
        ({"label_horizon": "0d"}, "label_horizon is '0d'"),
    ],
)
def test_spans_that_cannot_work_are_refused(
    tmp_path: Path, asked: dict[str, Any], told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        split(tmp_path, tmp_path / "out", **asked)


@pytest.mark.parametrize(
    ("asked", "setting"),
    [
        ({"entity": None}, "train_ratio"),
        ({"entity": None, "train_ratio": 0.9, "duplicates": "group"}, "duplicates"),
    ],
)
def test_settings_that_need_entities_are_refused(
    tmp_path: Path, asked: dict[str, Any], setting: str
) -> None:
    with raised(SettingsError, setting=setting):
        split(tmp_path, tmp_path / "out", **asked)
