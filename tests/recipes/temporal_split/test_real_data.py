"""The traps of two real data sets, each with the outcome it must have.

Online Retail (UCI, by D. Chen, CC BY 4.0): 305 shards of one day each. CDNOW (Fader and Hardie): one text file.
"""

import csv
import gzip
import io
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import InputError
from headrace.run.events import Note
from headrace.run.prepare import Prepared
from raised import raised
from tables import read_rows, shards, split, split_column, split_rows, write_rows

DATA = Path(__file__).parents[3].parent / "shared" / "data"
RETAIL, CDNOW = DATA / "job1-online-retail" / "by-day", DATA / "job1-cdnow" / "CDNOW_master.txt.gz"
SPLITS = ("train", "val", "test")
RETAIL_COLUMNS = {"time": "InvoiceDate", "entity": "CustomerID", "split_date": "2011-09-01"}

needs_retail = pytest.mark.skipif(
    not RETAIL.is_dir(), reason=f"{RETAIL} is not there: the data set is not in the repository"
)
needs_cdnow = pytest.mark.skipif(
    not CDNOW.is_file(), reason=f"{CDNOW} is not there: the data set is not in the repository"
)


def retail(out: Path, **asked: Any) -> Prepared:
    return split(
        RETAIL / "*.csv.gz",
        out,
        **(RETAIL_COLUMNS | {"train_ratio": 0.9, "null_entity": "drop"} | asked),
    )


@pytest.fixture(scope="module")
def original() -> list[list[str]]:
    """All rows of Online Retail as Python's csv module reads them."""
    rows: list[list[str]] = []
    for path in sorted(RETAIL.glob("*.csv.gz")):
        rows += list(
            csv.reader(io.StringIO(gzip.decompress(path.read_bytes()).decode(), newline=""))
        )[1:]
    return rows


@pytest.fixture(scope="module")
def dropped(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return retail(tmp_path_factory.mktemp("retail") / "out")


@pytest.mark.slow
@needs_retail
def test_rows_without_customer_are_an_error_that_names_file_and_row(
    tmp_path: Path, original: list[list[str]]
) -> None:
    first = next(place for place, row in enumerate(original) if not row[6])

    with raised(InputError, row=first + 1, column="CustomerID", remedy='null_entity="drop"'):
        retail(tmp_path / "out", null_entity="error")


@pytest.mark.slow
@needs_retail
def test_rows_without_customer_are_dropped_and_counted(dropped: Prepared) -> None:
    assert 135_080 == dropped.manifest.dropped["null_entity"]


@pytest.mark.slow
@needs_retail
def test_all_rows_are_conserved(dropped: Prepared) -> None:
    kept = {name: totals.rows for name, totals in dropped.manifest.splits.items()}

    assert (
        541_909
        == dropped.manifest.source["rows"]
        == sum(kept.values()) + sum(dropped.manifest.dropped.values())
    )
    assert {name: len(split_rows(dropped.run, name)) for name in SPLITS} == kept
    assert {"null_entity", "train_entity_after_cutoff"} == {
        reason for reason, count in dropped.manifest.dropped.items() if count
    }


@pytest.mark.slow
@needs_retail
def test_the_customers_are_those_of_the_reference(dropped: Prepared) -> None:
    found = {name: set(split_column(dropped.run, name, "CustomerID")) for name in SPLITS}
    metadata = dropped.manifest.metadata

    assert 3360 == metadata["entities_before_cutoff"] == len(found["train"] | found["val"])
    assert 3360 * 9 // 10 == metadata["train_entities"] == len(found["train"])
    assert not found["train"] & (found["val"] | found["test"])
    assert 1012 == len(found["test"] - found["val"])


@pytest.mark.slow
@needs_retail
def test_without_validation_customers_the_test_is_the_1012_new_ones(
    tmp_path: Path, original: list[list[str]]
) -> None:
    run = retail(tmp_path / "out", val_in_test="drop").run
    after = {row[6] for row in original if row[6] and row[4] >= "2011-09-01"}
    before = {row[6] for row in original if row[6] and row[4] < "2011-09-01"}

    assert (3360, 2996, 1984) == (len(before), len(after), len(before & after))
    assert after - before == set(split_column(run, "test", "CustomerID"))


@pytest.mark.slow
@needs_retail
def test_every_row_keeps_its_text_and_its_copies(
    dropped: Prepared, original: list[list[str]]
) -> None:
    """Ids such as 17850.0, C536379 and A563185, descriptions with commas and other letters, 5,268 repeated rows."""
    trained = set(split_column(dropped.run, "train", "CustomerID"))
    expected: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in SPLITS}
    validated = set(split_column(dropped.run, "val", "CustomerID"))
    for row in original:
        if row[6] and row[4] >= "2011-09-01" and row[6] not in trained:
            expected["test"][tuple(row)] += 1
        elif row[6] and row[4] < "2011-09-01":
            expected["train" if row[6] in trained else "val"][tuple(row)] += 1

    assert trained.isdisjoint(validated)
    assert expected == {name: Counter(split_rows(dropped.run, name)) for name in SPLITS}


@needs_retail
def test_shards_of_one_day_leave_gaps_on_either_side(dropped: Prepared) -> None:
    names = {name: [path.name for path in shards(dropped.run, name)] for name in SPLITS}
    first_late = next(
        place
        for place, path in enumerate(sorted(RETAIL.glob("*.csv.gz")))
        if path.name >= "2011-09-01"
    )

    assert f"part-{first_late - 1:05d}.csv.gz" == names["train"][-1]
    assert f"part-{first_late:05d}.csv.gz" <= names["test"][0]
    assert names["val"][-1] <= names["train"][-1]
    assert "part-00304.csv.gz" == names["test"][-1]


@pytest.mark.slow
@needs_retail
def test_rows_without_customer_may_be_one_customer(
    tmp_path: Path, original: list[list[str]]
) -> None:
    prepared = retail(tmp_path / "out", null_entity="own", train_ratio=0.5)
    before = sum(not row[6] and row[4] < "2011-09-01" for row in original)
    empty = {name: split_column(prepared.run, name, "CustomerID").count("") for name in SPLITS}

    assert 3361 == prepared.manifest.metadata["entities_before_cutoff"]
    assert {0, before} == {empty["train"], empty["val"]}
    assert (135_080 - before if empty["val"] else 0) == empty["test"]


@pytest.mark.slow
@needs_retail
def test_parquet_holds_the_same_rows_as_text(tmp_path: Path, dropped: Prepared) -> None:
    run = retail(tmp_path / "out", format="parquet", layout="single").run
    rows = {
        name: [tuple(value or "" for value in row) for row in split_rows(run, name)]
        for name in SPLITS
    }

    assert rows == {name: split_rows(dropped.run, name) for name in SPLITS}


@needs_cdnow
def test_a_text_file_of_blanks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"CDNOW_master\.txt\.gz: cannot tell the format from the name; use \.csv"
    ):
        split(CDNOW, tmp_path / "out", entity="customer_id")


@needs_cdnow
def test_a_text_file_of_blanks_called_csv_has_not_the_columns_that_are_asked_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "part-0.csv.gz").write_bytes(CDNOW.read_bytes())

    path = tmp_path / "part-0.csv.gz"
    with raised(InputError, path=path, setting="time", value="date"):
        split(tmp_path / "part-0.csv.gz", tmp_path / "out", entity="customer_id")


@pytest.fixture(scope="module")
def purchases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CDNOW as four CSV shards, ids with their leading zeros."""
    header, *rows = [
        line.split()
        for line in gzip.decompress(CDNOW.read_bytes()).decode().splitlines()
        if line.strip()
    ]
    directory = tmp_path_factory.mktemp("cdnow")
    for number in range(4):
        write_rows(
            directory / f"part-{number}.csv",
            header,
            rows[number * len(rows) // 4 : (number + 1) * len(rows) // 4],
        )
    return directory


CDNOW_COLUMNS = {"entity": "customer_id", "train_ratio": 0.9}


@needs_cdnow
def test_dates_of_eight_digits_split_a_file_that_is_sorted_by_customer(
    tmp_path: Path, purchases: Path
) -> None:
    prepared = split(purchases, tmp_path / "out", split_date="1997-03-01", **CDNOW_COLUMNS)
    dates = {name: split_column(prepared.run, name, "date") for name in SPLITS}
    ids = {name: set(split_column(prepared.run, name, "customer_id")) for name in SPLITS}

    assert "yyyymmdd" == prepared.manifest.metadata["date_form"]
    assert max(dates["train"] + dates["val"]) < "19970301" <= min(dates["test"])
    assert not ids["train"] & ids["test"]
    assert {5} == {len(each) for name in SPLITS for each in ids[name]}
    assert 69_659 == sum(prepared.manifest.dropped.values()) + sum(map(len, dates.values()))


@pytest.mark.slow
@needs_cdnow
def test_repeated_purchases_are_kept(tmp_path: Path, purchases: Path) -> None:
    run = split(purchases, tmp_path / "out", split_date="1997-03-01", **CDNOW_COLUMNS).run
    source = Counter(row for path in sorted(purchases.iterdir()) for row in read_rows(path)[1])
    kept = Counter(row for name in SPLITS for row in split_rows(run, name))

    assert 255 == sum(count - 1 for count in source.values())
    assert all(source[row] == count for row, count in kept.items())


@needs_cdnow
def test_a_later_split_date_leaves_only_validation_customers_to_test(
    tmp_path: Path, purchases: Path
) -> None:
    run = split(purchases, tmp_path / "out", split_date="1998-01-01", **CDNOW_COLUMNS).run

    assert set(split_column(run, "test", "customer_id")) <= set(
        split_column(run, "val", "customer_id")
    )


@needs_cdnow
def test_a_later_split_date_without_validation_customers_leaves_an_empty_test_and_a_warning(
    tmp_path: Path, purchases: Path
) -> None:
    events: list[Any] = []
    prepared = split(
        purchases,
        tmp_path / "out",
        split_date="1998-01-01",
        val_in_test="drop",
        duplicates="allow",  # two columns of small numbers
        on_event=events.append,
        **CDNOW_COLUMNS,
    )
    warnings = [
        event.text for event in events if isinstance(event, Note) and event.level == "warning"
    ]

    assert 0 == prepared.manifest.splits["test"].rows
    assert 1 == len(warnings)
    assert "test is empty" in warnings[0]


@pytest.mark.slow
@needs_cdnow
def test_folds_of_customers_have_the_rows_of_group_k_fold(tmp_path: Path, purchases: Path) -> None:
    model_selection = pytest.importorskip("sklearn.model_selection")
    split(
        purchases,
        tmp_path / "out",
        split_date=None,
        folds="group-kfold:k=5",
        entity="customer_id",
        train_ratio=0.9,
    )
    customers = [row[0] for path in sorted(purchases.iterdir()) for row in read_rows(path)[1]]
    expected = [
        len(test) for _, test in model_selection.GroupKFold(5).split(customers, groups=customers)
    ]
    found = [headrace.open(tmp_path / "out").fold(number).split_rows["test"] for number in range(5)]

    assert 69_659 == sum(found)
    assert expected == found
    assert not headrace.verify(tmp_path / "out").problems


@pytest.mark.slow
@needs_retail
def test_folds_that_roll_through_a_year_of_sales(tmp_path: Path, original: list[list[str]]) -> None:
    asked = {
        "split_date": "2011-08-01",
        "gap": "7d",
        "folds": "rolling:n=3,step=30d,window=90d",
        "entity": None,
    }
    retail(tmp_path / "out", layout="single", null_entity="error", **asked)
    cuts = [datetime(2011, 8, 1) + number * timedelta(days=30) for number in range(3)]
    times = [datetime.fromisoformat(row[4]) for row in original]
    for number, cut in enumerate(cuts):
        rows = headrace.open(tmp_path / "out").fold(number).split_rows
        end = cut - timedelta(days=7)
        assert sum(end - timedelta(days=90) <= each < end for each in times) == rows["train"]
        assert sum(cut <= each < cut + timedelta(days=30) for each in times) == rows["test"]
    assert not headrace.verify(tmp_path / "out").problems
