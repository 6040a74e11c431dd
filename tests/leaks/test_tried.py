"""A scan says what it compared, what it tried, and what it could not look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.near.words import plain_names
from headrace.stream.audit.leaks import LeakReport
from headrace.stream.audit.names import spelled


def scan(root: Path, train: Mapping[str, Any], test: Mapping[str, Any], **asked: Any) -> LeakReport:
    for name, columns in (("train", train), ("test", test)):
        (root / name).mkdir(parents=True)
        pq.write_table(pa.table(dict(columns)), root / name / "a.parquet", row_group_size=500)
    return headrace.find_leaks(headrace.open(root), **asked)


def table(rows: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "text": [f"review {seed} {n} of a thing" for n in range(rows)],
        "x": rng.normal(size=rows),
        "y": rng.lognormal(size=rows),
        "stars": rng.integers(0, 5, rows),
    }


def head(columns: Mapping[str, Any], rows: int) -> dict[str, Any]:
    return {name: values[:rows] for name, values in columns.items()}


def test_identifiers_of_rows_are_left_out_and_named(tmp_path: Path) -> None:
    train = table(800)
    test = head(train, 200)
    train |= {"row_id": range(800), "uuid": [f"a{n:x}-0" for n in range(800)]}
    test |= {"row_id": range(800, 1000), "uuid": [f"b{n:x}-0" for n in range(200)]}
    report = scan(tmp_path, train, test)

    assert ("row_id", "uuid") == report.left_out
    assert 200 == report.shared[0].rows
    assert report.worst == pytest.approx(1, abs=0.001)


def test_texts_and_measures_that_distinguish_rows_are_compared_and_named(tmp_path: Path) -> None:
    report = scan(tmp_path, table(800), table(200, 1))

    assert ("text", "x", "y", "stars") == report.content
    assert ("text",) == report.distinguishing
    assert 0 == report.worst


def test_an_identifier_stays_where_nothing_else_tells_rows_apart(tmp_path: Path) -> None:
    rows = {"row_id": list(range(500)), "stars": [n % 5 for n in range(500)]}
    other = {"row_id": list(range(500, 600)), "stars": [n % 5 for n in range(100)]}
    report = scan(tmp_path, rows, other)

    assert ((), ("row_id",), 0) == (report.left_out, report.distinguishing, report.worst)


@pytest.mark.parametrize("noise", ["float32", "1e-9", "written again"])
def test_copies_with_other_digits_are_counted(tmp_path: Path, noise: str) -> None:
    rng = np.random.default_rng(1)
    train = {"x": rng.normal(size=600), "y": rng.normal(size=600), "n": list(range(600))}
    test = head(train, 200)
    if noise == "float32":
        test["x"] = test["x"].astype(np.float32).astype(np.float64)
    elif noise == "1e-9":
        test |= {name: test[name] + 1e-9 * rng.normal(size=200) for name in "xy"}
    else:
        train |= {"x": [f"{value:.4f}" for value in train["x"]]}
        test |= {"x": [f"{value:.6f}" for value in map(float, train["x"][:200])]}
    report = scan(tmp_path, train, test)

    assert (0, 200) == (report.shared[0].rows, report.shared[0].rounded)
    assert 1 == report.worst


def test_few_combinations_are_judged_by_what_chance_gives(tmp_path: Path) -> None:
    """Users rate films: their pairs return. Users whose ratings are copied stand out no more."""
    rng = np.random.default_rng(0)

    def ratings(users: range) -> dict[str, Any]:
        rows = len(users) * 40
        film = (rng.zipf(1.3, rows) % 150).astype(np.int64)
        return {
            "user": np.repeat(list(users), 40),
            "film": film,
            "stars": rng.integers(1, 6, rows),
        }

    report = scan(tmp_path, ratings(range(100)), ratings(range(100, 125)), entity="user")

    (shared,) = report.shared
    assert shared.fraction > 0.8
    assert shared.by_chance == pytest.approx(shared.fraction, abs=0.03)
    assert report.worst < 0.02


def test_independent_columns_that_meet_are_judged_by_what_chance_gives(tmp_path: Path) -> None:
    """Amounts in cents, visits and a yes or no of two splits meet; a copied twentieth stands out."""
    rng = np.random.default_rng(3)

    def events(rows: int) -> dict[str, Any]:
        return {
            "amount": np.round(rng.exponential(50, rows), 2),
            "visits": rng.integers(1, 20, rows),
            "bought": rng.integers(0, 2, rows),
        }

    train = events(20_000)
    test = events(2_000)
    clean = scan(tmp_path / "clean", train, test)
    copied = {name: np.concatenate([train[name][:100], test[name][100:]]) for name in train}
    leaking = scan(tmp_path / "leaking", train, copied)

    assert clean.shared[0].fraction > 0.04
    assert clean.shared[0].by_chance == pytest.approx(clean.shared[0].fraction, abs=0.03)
    assert 0 == clean.worst
    assert 0.02 < leaking.worst < 0.05


def test_a_copied_row_does_not_excuse_itself(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    train = {"x": rng.normal(size=2_000), "label": rng.integers(0, 2, 2_000)}
    test = {name: values[:50] for name, values in train.items()}

    report = scan(tmp_path, train, test)

    assert 1 == report.worst


def test_endless_combinations_are_not_excused_by_chance(tmp_path: Path) -> None:
    """Every text is in both splits, as it would be however rows were dealt."""
    texts = [f"a thing of number {n} that somebody said" for n in range(600)] * 3
    report = scan(
        tmp_path,
        {"who": list(range(1800)), "text": texts},
        {"who": list(range(1800, 2400)), "text": texts[:600]},
        entity="who",
    )

    assert (None, 1.0) == (report.shared[0].by_chance, report.worst)


def test_each_column_says_how_it_was_tried(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def rows(count: int, seed: int) -> dict[str, Any]:
        label = rng.integers(0, 2, count)
        leak = label + rng.normal(0, 0.1, count)
        return {
            **table(count, seed),
            "mostly": ["n/a" if n % 40 == 0 else f"{leak[n]:.5f}" for n in range(count)],
            "when": (leak * 1e6).astype("datetime64[us]"),
            "one": ["same"] * count,
            "code": [f"{seed} {n}" for n in range(count)],
            "nested": [[n] for n in range(count)],
            "label": label,
        }

    report = scan(tmp_path, rows(1500, 0), rows(500, 1), label="label")

    assert {"mostly", "when"} == {telling.column for telling in report.telling}
    how = {tried.column: tried.how for tried in report.tried}
    assert how == {
        "text": "words",
        "x": "numbers",
        "y": "numbers",
        "stars": "values",
        "mostly": "numbers",
        "when": "numbers",
        "one": "constant",
        "code": "words",
        "nested": "nested",
    }


SPELLINGS: Sequence[Sequence[str]] = (
    ("Anna Meier", "anna meier", "ANNA  MEIER ", "Meier, Anna", "Anna-Meier", "anna_meier"),
    ("Zoë", "Zoe\u0308", "\uff3aoë", "Zo\u200bë"),
    ("7", "007", "7.0", "+7", "7e0"),
    ("1,234", "1234", "01234"),
    ("anna@example.com", "Anna+news@example.com"),
    ("+49 151 1234567", "0049 (151) 123-4567"),
    ("A-0012", "a12", "A 12"),
)
OTHERS = (
    "10.0.0.5",
    "100.0.5",
    "12-3",
    "1-23",
    "1.12.3",
    "11.2.3",
    "x1",
    "x10",
    "---",
    "...",
    "12",
)


def test_spellings_of_one_name_have_one_key_and_others_do_not() -> None:
    keys = [set(spelled(plain_names(pl.Series(names)))) for names in SPELLINGS]
    others = spelled(plain_names(pl.Series(OTHERS)))

    assert [1] * len(SPELLINGS) == [len(key) for key in keys]
    assert len(SPELLINGS) == len(set().union(*keys))
    assert others.n_unique() == len(OTHERS)


def test_values_that_entities_of_two_splits_share_link_them_and_hubs_do_not(tmp_path: Path) -> None:
    def people(first: int, count: int) -> dict[str, Any]:
        numbers = range(first, first + count)
        emails = [f"person{n}@example.com" if n % 10 else "none@x" for n in numbers]
        return {
            "who": [f"c{n}" for n in numbers],
            "email": emails,
            "city": [f"city {n % 7}" for n in numbers],
        }

    train = people(0, 400)
    test = people(1000, 100)
    test["email"][3:5] = ["Person11@example.com", "person12@example.com "]
    report = scan(tmp_path, train, test, entity="who", content=["city"])
    (link,) = report.links

    assert ("email", 2, 2, 1, 50) == (
        link.column,
        link.entities,
        link.values,
        link.hubs,
        link.largest_hub,
    )
    assert ("train/a.parquet:11", "test/a.parquet:3") == link.example


def test_later_dates_of_rows_before_the_cutoff_are_counted(tmp_path: Path) -> None:
    lines = ["loaded,ordered,who,n"]
    for n in range(600):
        ordered = f"2024-{1 + n % 12:02d}-0{1 + n % 9}"
        loaded = ordered if n >= 40 else "2023-01-01"
        lines.append(f"{loaded},{ordered if n % 50 else 'unknown'},c{n},{n}")
    (tmp_path / "raw.csv").write_text("\n".join(lines) + "\n")
    split = headrace.TemporalSplit(
        source=tmp_path / "raw.csv", time="loaded", entity="who", split_date="2024-07-01"
    )
    headrace.prepare(split, tmp_path / "out")
    report = headrace.find_leaks(headrace.open(tmp_path / "out"))

    expected = sum(1 for n in range(1, 40) if n % 12 >= 6)
    assert ("ordered",) == report.dates
    assert expected == sum(later.rows for later in report.later_dates)
