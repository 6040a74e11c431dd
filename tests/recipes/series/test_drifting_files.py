"""A file of a long table may lack a column that others have, if that is asked for."""

from datetime import date, timedelta
from pathlib import Path

import headrace
from headrace.errors import InputError
from raised import raised


def tables(root: Path) -> Path:
    """Two files of two entities; the first, of the earlier days, lacks snow."""
    root.mkdir()
    for number, columns in enumerate((["flow", "rain"], ["snow", "flow", "rain"])):
        lines = [",".join(["id", "date", *columns])]
        for entity in "ab":
            for day in range(300):
                values = [
                    str((day * (at + 3)) % 11 + ord(entity) / 7) for at in range(len(columns))
                ]
                when = date(2010, 1, 1) + timedelta(days=day + 300 * number)
                lines.append(",".join([entity, when.isoformat(), *values]))
        (root / f"part-{number}.csv").write_text("\n".join(lines) + "\n")
    return root


def series(source: Path, **options: object) -> headrace.Series:
    return headrace.Series(
        source=source,
        target="flow",
        entity="id",
        time="date",
        min_train_years=0.2,
        **options,
    )


def test_values_of_a_file_without_the_column_are_null(tmp_path: Path) -> None:
    source = tables(tmp_path / "in")
    with raised(InputError, path=source / "part-0.csv", column="snow", remedy="schema_drift"):
        headrace.prepare(series(source, future_features=["rain", "snow"]), tmp_path / "out")

    made = headrace.prepare(
        series(source, future_features=["rain", "snow"], schema_drift="widen"), tmp_path / "out"
    )
    assert {"original": 2, "passed": 2, "failed": 0} == made.manifest.metadata["entities"]
    assert 2 * 300 == made.manifest.dropped["trimmed"]
    assert not headrace.verify(tmp_path / "out").problems


def test_a_column_that_no_file_has_is_refused(tmp_path: Path) -> None:
    source = tables(tmp_path / "in")
    with raised(InputError) as caught:
        headrace.prepare(
            series(source, future_features=["rain", "snwo"], schema_drift="widen"), tmp_path / "out"
        )
    assert "snwo" in str(caught.value)
