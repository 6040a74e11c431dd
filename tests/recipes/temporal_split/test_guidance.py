"""What other settings would keep is what runs with these settings keep."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace.report.write import write_report
from headrace.run.events import Event, Note
from headrace.run.prepare import Prepared
from laws import examples
from tables import digests, fresh, split, write_rows

HEADER = ("id", "date", "text")
FIRST = dt.datetime(2024, 12, 1)

rows = st.tuples(st.sampled_from(["a", "b", "c", "d", "e", "f", ""]), st.integers(0, 1500), st.sampled_from("pqrs"))
tables = st.lists(st.lists(rows, min_size=1, max_size=15), min_size=1, max_size=3)
asked = st.fixed_dictionaries(
    {
        "val_in_test": st.sampled_from(["keep", "drop"]),
        "gap": st.none() | st.sampled_from(["1d", "5d"]),
        "label_horizon": st.none() | st.just("2d"),
        "train_ratio": st.sampled_from([0.5, 0.9]),
        "duplicates": st.sampled_from(["count", "group", "drop"]),
        "null_entity": st.sampled_from(["own", "drop"]),
        "timezone": st.sampled_from(["UTC", "Europe/Berlin"]),
    }
)
forms = st.sampled_from(["{}", "{}Z", "mixed"])


def write(directory: Path, table: list[list[tuple[str, int, str]]], form: str) -> Path:
    for place, part in enumerate(table):
        written = []
        for number, (id_, hours, text) in enumerate(part):
            moment = (FIRST + dt.timedelta(hours=hours)).isoformat()
            written.append(
                (id_, (f"{moment}Z" if number % 2 else moment) if form == "mixed" else form.format(moment), text)
            )
        write_rows(directory / f"part-{place:05d}.csv", HEADER, written)
    return directory


def attempt(source: Path, out: Path, **settings: Any) -> Prepared | None:
    try:
        return split(source, out, time_format="iso", content=["text"], **settings)
    except InputError as error:
        if "has no rows" not in str(error):
            raise
        return None


@pytest.mark.slow
@given(tables, asked, forms)
@settings(max_examples=examples(60))
def test_each_alternative_has_the_numbers_of_a_run_with_its_settings(
    tmp_path: Path, table: list[Any], asked: dict[str, Any], form: str
) -> None:
    directory = fresh(tmp_path)
    source = write(directory / "in", table, form)
    made = attempt(source, directory / "out", **asked)
    if made is None:
        return
    found, read = made.manifest.facts.get("guidance"), made.manifest.source["rows"]
    kept = {name: totals.rows for name, totals in made.manifest.splits.items()}

    assert (found is not None) == (sum(made.manifest.dropped.values()) > 0.15 * read or kept["test"] < 0.05 * read)
    for number, each in enumerate(() if found is None else found["alternatives"]):
        other = attempt(source, directory / f"out{number}", **{**asked, **each["settings"]})
        assert other is not None
        assert each["rows"] == {name: totals.rows for name, totals in other.manifest.splits.items()}
        assert each["dropped"] == sum(other.manifest.dropped.values())


@pytest.mark.parametrize("asked", [{"val_in_test": "drop", "gap": "3d"}, {"entity": None, "train_ratio": 0.9}])
def test_the_run_says_what_a_rule_costs_and_any_workers_say_the_same(tmp_path: Path, asked: dict[str, Any]) -> None:
    table = [[("abcdef"[n % 6], 8 * n + part, "pqrs"[n % 4]) for n in range(100)] for part in range(3)]
    if asked.get("entity", "") is None:
        asked["split_date"] = "2025-01-03"
        table = [[row for row in part if row[1] < 800] for part in table]
    source, notes = write(tmp_path / "in", table, "{}"), []

    def hear(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)

    one = split(source, tmp_path / "out1", workers=1, on_event=hear, **asked)
    three = split(source, tmp_path / "out3", workers=3, **asked)

    assert digests(one.run) == digests(three.run)
    assert [each for each in notes if "are dropped" in each]
    assert [each for each in notes if each.startswith("with split_date=")]
    assert "Which settings would keep more rows?" in write_report(tmp_path / "out1").read_text()
