"""Data that grows: what an earlier run has in a split stays there, and a new run costs what is new."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import InputError, SettingsError
from headrace.run.events import silent
from raised import raised
from tables import read_rows, shards, write_rows

HEADER = ("who", "day", "kind", "value", "text")
DATED = {"time": "day", "entity": "who", "split_date": "2024-03-01"}
Recipe = Callable[..., Any]


def temporal(**config: Any) -> Any:
    return headrace.TemporalSplit(**{**DATED, **config})


def drawn(**config: Any) -> Any:
    return headrace.RandomSplit(**config)


CASES: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "in time": (temporal, {}),
    "in time, with labels": (temporal, {"label": "kind", "duplicates": "drop"}),
    "without val in test": (temporal, {"val_in_test": "drop", "format": "parquet"}),
    "rows": (drawn, {}),
    "groups": (drawn, {"by": "who", "duplicates": "drop"}),
    "groups by class": (drawn, {"by": "who", "stratify": "kind", "label": "kind"}),
    "contents by class": (drawn, {"by": "content", "content": "value", "stratify": "kind"}),
    "one file": (drawn, {"by": "who", "stratify": "kind", "layout": "single"}),
}


def add(lake: Path, day: int, rows: int = 120) -> None:
    """Write the shard of a day; entities of other days come back, some with older rows."""
    draws = random.Random(day)
    write_rows(
        lake / f"part-{day:05d}.csv",
        HEADER,
        [
            (
                f"c{draws.randrange(30 + 8 * day)}",
                f"2024-{1 + draws.randrange(min(12, 2 + day)):02d}-11",
                draws.choice("aab" if day < 3 else "aabz"),
                str(draws.randrange(5000)),
                f"{draws.random()} {'x' * 40}",
            )
            for _ in range(rows)
        ],
    )


def prepared(settings: Any, out: Path, **options: Any) -> headrace.types.Prepared:
    return headrace.prepare(settings, out, on_event=silent, **options)


def groups(run: headrace.types.Prepared, column: int | None) -> dict[str, set[Any]]:
    """The groups of each split: values of a column, or rows."""
    result = {}
    for name in run.manifest.splits:
        rows = [row for path in shards(run.run, name) for row in read_rows(path)[1]]
        result[name] = {row if column is None else row[column] for row in rows}
    return result


@pytest.mark.parametrize("case", CASES)
def test_no_group_moves_while_a_lake_grows(case: str, tmp_path: Path) -> None:
    recipe, config = CASES[case]
    lake, out = tmp_path / "lake", tmp_path / "out"
    column = {"rows": None, "contents by class": 3}.get(case, 0)
    add(lake, 0)
    earlier = prepared(recipe(source=lake, **config), out)
    then = groups(earlier, column)
    for day in range(1, 6):
        add(lake, day)
        run = prepared(recipe(source=lake, assignment_from=out, **config), out)
        now = groups(run, column)
        for split, other in (
            ("train", "test"),
            ("train", "val"),
            ("test", "train"),
            ("val", "train"),
        ):
            assert not now[split] & then[other], (split, other)
        if not case.startswith("in time"):
            assert then["test"] <= now["test"]
        checks = {check.name: check for check in headrace.verify(out).checks}
        assert [] == [check.problem for check in checks.values() if check.problem]
        assert "law" == checks["assignment of the earlier run"].category
        assert (day if case != "one file" else 0) == run.manifest.metadata["assigned"]["shards"]
        then = now


def test_shards_that_have_not_changed_are_the_same_files(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    add(lake, 0)
    add(lake, 1)
    first = prepared(temporal(source=lake), out)
    add(lake, 1, rows=130)
    add(lake, 2)
    run = prepared(temporal(source=lake, assignment_from=out), out)

    same = [
        path.samefile(run.run / path.relative_to(first.run))
        for name in ("train", "val", "test")
        for path in shards(first.run, name)
        if path.name.endswith("00000.csv")
    ]
    assert same
    assert all(same)
    assert 1 == run.manifest.metadata["assigned"]["shards"]


def test_rows_of_an_entity_in_test_do_not_train_and_are_counted(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    rows = [(f"c{n}", f"2024-0{1 + n % 2}-01", "a", str(n), "") for n in range(40)]
    late = [("new", "2024-05-01", "a", "1", "")]
    write_rows(lake / "part-0.csv", HEADER, rows + late)
    prepared(temporal(source=lake), out)
    write_rows(lake / "part-1.csv", HEADER, [("new", "2024-01-01", "a", "2", "")])
    without = prepared(temporal(source=lake), tmp_path / "without")
    run = prepared(temporal(source=lake, assignment_from=out), out)

    assert {"new"} == groups(run, 0)["test"]
    assert 1 == run.manifest.dropped["earlier_test"]
    assert set() == groups(without, 0)["test"]


def test_a_later_split_date_leaves_tested_entities_in_test(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    for day in range(4):
        add(lake, day)
    write_rows(lake / "part-00009.csv", HEADER, [("late", "2024-03-20", "a", "1", "")])
    then = groups(prepared(temporal(source=lake), out), 0)
    later = temporal(source=lake, assignment_from=out, split_date="2024-04-01")
    run = prepared(later, out)

    assert "late" in then["test"]
    assert run.manifest.dropped["earlier_test"]
    assert not then["test"] & groups(run, 0)["train"]
    assert headrace.verify(out).problems == []


def test_a_shard_that_is_gone_is_remembered(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    config = {"by": "who", "stratify": "kind"}
    add(lake, 0)
    add(lake, 1)
    then = groups(prepared(drawn(source=lake, **config), out), 0)
    (lake / "part-00000.csv").unlink()
    prepared(drawn(source=lake, assignment_from=out, **config), out)
    add(lake, 0)
    now = groups(prepared(drawn(source=lake, assignment_from=out, **config), out), 0)

    assert then == now


def test_a_new_class_leaves_the_numbers_of_the_others(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    write_rows(
        lake / "part-0.csv", HEADER, [(f"c{n}", "", "bd"[n % 2], "1", "") for n in range(60)]
    )
    first = prepared(drawn(source=lake, by="who", label="kind"), out)
    write_rows(
        lake / "part-1.csv", HEADER, [(f"d{n}", "", "abc"[n % 3], "1", "") for n in range(60)]
    )
    run = prepared(drawn(source=lake, by="who", label="kind", assignment_from=out), out)

    assert {"b": 0, "d": 1} == first.manifest.metadata["label_map"]
    assert {"b": 0, "d": 1, "a": 2, "c": 3} == run.manifest.metadata["label_map"]
    assert 1 == run.manifest.metadata["assigned"]["shards"]


def test_a_column_that_is_added_moves_no_row(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    add(lake, 0)
    then = groups(prepared(drawn(source=lake, schema_drift="widen"), out), None)
    rows = [("c1", "2024-01-01", "a", str(n), "t", "new") for n in range(50)]
    write_rows(lake / "part-00001.csv", (*HEADER, "more"), rows)
    again = drawn(source=lake, schema_drift="widen", assignment_from=out)
    now = groups(prepared(again, out), None)

    assert then == {name: {row[:5] for row in part if row[5] == ""} for name, part in now.items()}


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"folds": "group-kfold:k=3", "by": "who"}, "folds"),
        ({"near": 0.8}, "near"),
        ({"duplicates": "group", "by": "who"}, "duplicates"),
    ],
    ids=str,
)
def test_what_decides_all_rows_together_is_refused(config: dict[str, Any], setting: str) -> None:
    with raised(SettingsError, setting=setting):
        drawn(source="raw", assignment_from="out", **config)


@pytest.mark.parametrize(
    ("config", "setting"), [({"seed": 1}, "seed"), ({"by": "kind"}, "by")], ids=str
)
def test_an_assignment_of_other_groups_is_refused(
    config: dict[str, Any], setting: str, tmp_path: Path
) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    add(lake, 0)
    prepared(drawn(source=lake, by="who"), out)
    with raised(SettingsError, setting=setting):
        prepared(drawn(**{"source": lake, "by": "who", "assignment_from": out, **config}), out)
    with raised(SettingsError, setting="recipe"):
        prepared(temporal(source=lake, assignment_from=out), out)
    with raised(InputError, path=tmp_path / "nowhere"):
        prepared(drawn(source=lake, by="who", assignment_from=tmp_path / "nowhere"), out)


WIDER: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "fractions": (pa.int64(), pa.float64()),
    "units": (pa.timestamp("ms"), pa.timestamp("us")),
    "decimals": (pa.decimal128(20, 0), pa.decimal128(22, 2)),
    "structs": (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
}


def write_values(path: Path, type_: pa.DataType, first: int) -> None:
    numbers = pa.array(range(first, first + 100), pa.int64())
    if pa.types.is_struct(type_):
        fields = [numbers] * type_.num_fields
        values = pa.StructArray.from_arrays(
            fields, names=[type_.field(i).name for i in range(len(fields))]
        )
    else:
        values = numbers.cast(type_)
    day = pa.array(["2024-01-01", "2024-05-01"] * 50)
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"who": values, "day": day, "n": numbers}), path)


@pytest.mark.parametrize("kind", WIDER)
@pytest.mark.parametrize(
    "config", [{}, {"by": "who"}, {"by": "content", "content": "who"}], ids=str
)
def test_groups_of_another_type_are_refused(
    kind: str, config: dict[str, Any], tmp_path: Path
) -> None:
    """They have other hashes, so none would be found again."""
    if kind == "structs" and config.get("by") == "who":
        return  # no entity
    lake, out = tmp_path / "lake", tmp_path / "out"
    one, other = WIDER[kind]
    write_values(lake / "part-0.parquet", one, 0)
    prepared(drawn(source=lake, schema_drift="widen", **config), out)
    write_values(lake / "part-1.parquet", other, 1000)
    asked = drawn(source=lake, schema_drift="widen", assignment_from=out, **config)
    with raised(InputError, column="who"):
        prepared(asked, out)


def test_entities_of_another_type_are_refused_in_time_too(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    write_values(lake / "part-0.parquet", pa.timestamp("ms"), 0)
    prepared(temporal(source=lake, schema_drift="widen"), out)
    write_values(lake / "part-1.parquet", pa.timestamp("us"), 1000)
    with raised(InputError, column="who"):
        prepared(temporal(source=lake, schema_drift="widen", assignment_from=out), out)


def test_other_declared_types_of_rows_are_refused(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    add(lake, 0)
    prepared(drawn(source=lake), out)
    with raised(InputError, column="value"):
        prepared(drawn(source=lake, assignment_from=out, types={"value": "float64"}), out)


@pytest.mark.parametrize("config", [{}, {"by": "who"}], ids=str)
def test_wider_whole_numbers_stay_where_they_are(config: dict[str, Any], tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    write_values(lake / "part-0.parquet", pa.int32(), 0)
    before = prepared(drawn(source=lake, schema_drift="widen", **config), out)
    write_values(lake / "part-1.parquet", pa.int64(), 1000)
    after = prepared(drawn(source=lake, schema_drift="widen", assignment_from=out, **config), out)
    for split in before.manifest.splits:
        paths = (shards(run.run, split) for run in (before, after))
        then, now = ({n for path in part for n in read_numbers(path)} for part in paths)
        assert then == {number for number in now if number < 1000}


def read_numbers(path: Path) -> list[int]:
    return pq.read_table(path)["n"].to_pylist()


def test_verify_says_when_the_earlier_run_is_gone(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    add(lake, 0)
    prepared(drawn(source=lake, by="who"), tmp_path / "first")
    run = prepared(drawn(source=lake, by="who", assignment_from=tmp_path / "first"), out)
    then = [check.category for check in headrace.verify(out).checks if "earlier" in check.name]
    (tmp_path / "first").rename(tmp_path / "moved")
    now = [check.category for check in headrace.verify(out).checks if "earlier" in check.name]

    assert (["law"], ["unchecked"]) == (then, now)
    assert str(tmp_path / "first" / "runs") in json.loads((run.run / "config.json").read_text())["assignment_from"]  # fmt: skip


def _bytes_moved() -> int:
    """Bytes that this process has read and written so far."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"]) + int(counts["wchar"])


def _cost(settings: Any, out: Path) -> tuple[float, int]:
    """Processor time and bytes of a run."""
    seconds, moved = time.process_time(), _bytes_moved()
    prepared(settings, out, workers=2)
    return time.process_time() - seconds, _bytes_moved() - moved


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "groups by class",
        pytest.param("in time", marks=pytest.mark.faults),  # each takes half a minute
        pytest.param("rows", marks=pytest.mark.faults),
    ],
)
def test_no_group_moves_in_thirty_days(case: str, tmp_path: Path) -> None:
    recipe, config = CASES[case]
    lake, out = tmp_path / "lake", tmp_path / "out"
    column = None if case == "rows" else 0
    trained: set[Any] = set()
    tested: set[Any] = set()
    for day in range(30):
        add(lake, day, rows=60)
        more = {"assignment_from": out} if day else {}
        now = groups(prepared(recipe(source=lake, **config, **more), out), column)

        assert not now["train"] & tested
        assert not now["test"] & trained
        trained |= now["train"]
        tested |= now["test"]
    assert headrace.verify(out).problems == []


@pytest.mark.slow
@pytest.mark.parametrize("case", ["in time", pytest.param("groups", marks=pytest.mark.faults)])
def test_the_thirtieth_run_costs_what_its_new_shard_costs(case: str, tmp_path: Path) -> None:
    """For shards of 400 000 rows, 40 MB, as are those of days 28 and 29, of which the cheaper counts.

    Each older shard costs about 10 ms, for its receipts and links, whatever its size: an eighth of
    that of the new one is enough here to show a cost that grows with all rows.
    """
    recipe, config = CASES[case]
    lake, out, alone = tmp_path / "lake", tmp_path / "out", tmp_path / "alone"
    lake.mkdir()
    alone.mkdir()
    for day in range(28):
        _large(lake, day, rows=50_000)
    prepared(recipe(source=lake, **config), out)
    costs = []
    for day in (28, 29):
        _large(lake, day)
        costs.append(_cost(recipe(source=lake, assignment_from=out, **config), out))
    shard = "part-00029.parquet"
    (alone / shard).hardlink_to(lake / shard)
    seconds_alone, moved_alone = _cost(recipe(source=alone, **config), tmp_path / "other")

    assert min(seconds for seconds, _ in costs) < 3 * seconds_alone
    assert costs[-1][1] < 3 * moved_alone


def _large(lake: Path, day: int, rows: int = 400_000) -> None:
    draws = np.random.default_rng(day)
    table = pa.table(
        {
            "who": draws.integers(0, 5_000 + 100 * day, rows),
            "day": np.datetime64("2024-01-01") + draws.integers(0, 60 + day, rows),
            "kind": draws.integers(0, 3, rows),
            **{f"value_{number}": draws.normal(size=rows) for number in range(12)},
        }
    )
    pq.write_table(table, lake / f"part-{day:05d}.parquet")
