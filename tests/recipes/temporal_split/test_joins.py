"""The laws of point-in-time joins: each row has the latest feature that was known at its time, and none later."""

import datetime as dt
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.dataset.open import FinishedRun, find_run
from headrace.errors import InputError, SettingsError
from headrace.split.allocate import Hashes, hash_entities
from headrace.split.joins import pieces, stages
from headrace.split.joins.known import Timed, latest_known, ranks, reachable
from headrace.split.joins.numbers import EntityNumbers
from headrace.split.sorting import in_order
from headrace.split.verify import checks_of
from laws import examples
from tables import digests, fresh, split, split_rows, write_rows

START = dt.datetime(2024, 12, 1)
HEADER = ("id", "date", "row")
Feature = tuple[str, dt.datetime, dt.datetime, int | None, str]  # entity, event, known, two values

moments = st.integers(0, 60).map(lambda days: START + dt.timedelta(days=days))
ids = st.sampled_from(["a", "b", "c", "7"])
rows_of = st.lists(st.tuples(ids, moments), min_size=1, max_size=25)
features_of = st.lists(
    st.tuples(ids, moments, moments, st.none() | st.integers(0, 2), st.sampled_from(["x", "y"])), max_size=25
)


def naive(
    features: Sequence[Feature], entity: str, time: dt.datetime, *, known: bool, max_age: dt.timedelta | None
) -> tuple[Any, ...]:
    """Look at all features for one row, by the words of the documentation."""

    def rank(each: Feature) -> tuple[Any, ...]:
        return each[1], each[2] if known else 0, each[3] is not None, each[3] or 0, each[4]

    usable = [each for each in features if each[0] == entity and each[1] <= time and (not known or each[2] <= time)]
    best = max(usable, key=rank, default=None)
    if best is None or (max_age is not None and time - best[1] > max_age):
        return (None, None)
    return best[3:]


def write(directory: Path, features: Sequence[Feature], files: int = 2, extension: str = ".parquet") -> Path:
    for number in range(files):
        columns = list(zip(*features[number::files], strict=True)) or [()] * 5
        types = (pa.string(), pa.timestamp("us"), pa.timestamp("us"), pa.int64(), pa.string())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        path = directory / f"features-{number}{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(arrays, ["who", "day", "arrived", "count", "word"]), path)
    return directory


def joined(source: Path, features: Any, out: Path, **asked: Any) -> headrace.Prepared:
    own = {name: asked.pop(name) for name in ("known_at", "max_age", "columns", "prefix", "types") if name in asked}
    table = headrace.Features(source=features, entity="who", event_time="day", **own)
    return split(source, out, join=[table], train_ratio=0.5, **asked)


@pytest.mark.slow
@given(rows_of, features_of, st.booleans(), st.none() | st.integers(1, 20), st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_rows_get_what_a_look_at_all_features_finds(
    tmp_path: Path, rows: list[Any], features: list[Feature], known: bool, days: int | None, draw: random.Random
) -> None:
    directory = fresh(tmp_path)
    for entity in ("t0", "t1"):  # so that train and val are never empty
        rows = [*rows, (entity, START)]
    numbered_rows = [(entity, time, place) for place, (entity, time) in enumerate(rows)]
    source = directory / "in"
    write_rows(source / "part-00000.parquet", HEADER, numbered_rows[::2])
    write_rows(source / "part-00001.parquet", HEADER, numbered_rows[1::2])
    asked = {"known_at": "arrived" if known else None, "max_age": days and f"{days}d", "columns": ("count", "word")}
    prepared = joined(source, write(directory / "f", features), directory / "out", **asked)
    shuffled = list(features)
    draw.shuffle(shuffled)
    again = joined(source, write(directory / "g", shuffled, files=3), directory / "again", **asked)
    max_age = None if days is None else dt.timedelta(days=days)

    for name in ("train", "val", "test"):
        found = split_rows(prepared.run, name)
        assert [(*row[:3], *naive(features, row[0], row[1], known=known, max_age=max_age)) for row in found] == found
        assert found == split_rows(again.run, name)
    assert headrace.verify(prepared.run).problems == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5), st.integers(-5, 5), st.integers(0, 2)), max_size=40),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-6, 6)), max_size=20),
    st.sampled_from([1, 10**6, 2**57]),
)
@settings(max_examples=examples(300))
def test_the_kernel_agrees_with_a_loop_for_times_of_any_size(features: list[Any], rows: list[Any], scale: int) -> None:
    entity, event, known, value = np.array(features, np.int64).reshape(-1, 4).T
    own, time = np.array(rows, np.int64).reshape(-1, 2).T
    table = pa.table({"value": value})
    timed = Timed(entity.copy(), event * scale, known * scale)
    found, _ = latest_known(timed, own.copy(), time * scale, None, lambda places: ranks(table.take(pa.array(places))))

    for place, (who, at) in enumerate(rows):
        usable = [each for each in features if each[0] == who and each[1] <= at and each[2] <= at]
        best = max(usable, key=lambda each: each[1:], default=None)
        assert (None if found[place] < 0 else tuple(features[found[place]])) == best


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5), st.integers(-5, 5), st.integers(0, 2)), max_size=40),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-6, 6)), max_size=20),
    st.booleans(), st.none() | st.integers(0, 5),
)  # fmt: skip
@settings(max_examples=examples(300))
def test_rows_get_the_same_of_the_features_that_are_fetched(
    features: list[Any], rows: list[Any], knows: bool, max_age: int | None
) -> None:
    entity, event, known, value = np.array(features, np.int64).reshape(-1, 4).T.copy()
    own, time = np.array(rows, np.int64).reshape(-1, 2).T.copy()

    def values(places: Any) -> tuple[list[Any], int]:
        timed = Timed(entity[places], event[places], known[places] if knows else None)
        found, too_old = latest_known(timed, own, time, max_age, lambda ties: value[places[ties]])
        return [None if place < 0 else value[places[place]] for place in found.tolist()], too_old

    every = np.arange(len(features))
    fetched, matched, too_old = reachable(Timed(entity, event, known if knows else None), own, time, max_age)
    expected, old = values(every)

    assert sorted(set(fetched.tolist())) == fetched.tolist()
    assert values(fetched)[0] == expected
    assert (matched, too_old) == (len(expected) - expected.count(None), old)


@given(st.lists(st.integers(0, 40) | st.integers(0, 2**63 - 1) | st.integers(2**62, 2**62 + 40), min_size=1))
def test_keys_are_put_in_order_to_their_last_bit(keys: list[int]) -> None:
    order, ordered = in_order(np.array(keys, np.uint64))

    assert list(range(len(keys))) == sorted(order.tolist())
    assert sorted(keys) == [keys[place] for place in order.tolist()] == ordered.tolist()


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=30), st.lists(st.integers(0, 2**64 - 1), max_size=10))
def test_hashes_are_found_among_known_ones(known: list[int], others: list[int]) -> None:
    ordered = np.array(sorted(known), np.uint64)
    asked = np.array([*known, *others], np.uint64)
    found = Hashes(ordered, ordered ^ np.uint64(5)).places(Hashes(asked, asked ^ np.uint64(5)))

    assert [sorted(known).index(each) if each in known else -1 for each in [*known, *others]] == found.tolist()


def test_entities_that_share_half_a_hash_are_told_apart() -> None:
    high, low = np.array([7, 7, 7, 9], np.uint64), np.array([1, 2, 5, 1], np.uint64)

    found = Hashes(high, low).places(Hashes(np.array([7, 7, 7, 9, 9], np.uint64), np.array([5, 1, 3, 1, 2], np.uint64)))

    assert [2, 0, -1, 3, -1] == found.tolist()


whole = st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5).map(lambda near: near << 40)


@given(st.lists(st.lists(st.none() | whole, max_size=20), min_size=1, max_size=4), st.data())
def test_whole_numbers_are_numbered_as_their_text_is(batches: list[list[int | None]], data: st.DataObject) -> None:
    met = sorted({str(each) for batch in batches for each in batch if each is not None})
    high, low = (each.tolist() for each in vars(hash_entities(pa.array(met, pa.string()), 3)).values())
    kept = sorted(zip(high, low, met, strict=True))[:: data.draw(st.integers(1, 3))]
    entities = Hashes(*(np.array([each[place] for each in kept], np.uint64) for place in (0, 1)))
    numbers = EntityNumbers(entities, ["-3", "4"], seed=3)
    place = {text: number for number, (*_, text) in enumerate(kept)}

    for batch in [*batches, *batches]:  # the second time all have been met
        number, nobody = numbers.of(pa.chunked_array([pa.array(batch, pa.int64())]))
        nothing = [each in (None, -3, 4) for each in batch]
        expected = [-1 if absent else place.get(str(each), -1) for each, absent in zip(batch, nothing, strict=True)]
        assert (expected, nothing) == (number.tolist(), nobody.tolist())


def test_values_have_one_order_whatever_their_type() -> None:
    table = pa.table({"a": pa.array([0.0, -0.0, None, -1.5, float("nan"), 2.0]), "b": list("abcdef")})

    assert [2, 3, 1, 0, 5, 4] == np.argsort(ranks(table)).tolist()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, pl.DataFrame, pl.DataFrame]:
    """Rows and features, as files and as frames; events of one entity are at different times."""
    directory = tmp_path_factory.mktemp("joins")
    draw = np.random.default_rng(3)

    def times(count: int) -> pl.Series:
        return pl.Series(np.datetime64("2024-06-01", "us") + draw.choice(10**12, count, replace=False))

    rows = pl.DataFrame({"id": draw.integers(0, 60, 3000), "date": times(3000), "row": np.arange(3000)})
    features = pl.DataFrame(
        {
            "who": draw.integers(0, 70, 8000),
            "day": times(8000),
            "amount": draw.random(8000),
            "word": draw.integers(0, 9, 8000),
        }
    ).with_columns(pl.col("word").cast(pl.String))
    for name, table, files in (("rows", rows, 5), ("features", features, 4)):
        (directory / name).mkdir()
        for number in range(files):
            table[number::files].write_parquet(directory / name / f"part-{number:05d}.parquet")
    return directory / "rows", directory / "features", rows, features


def output(run: Path) -> pl.DataFrame:
    return pl.concat(map(pl.read_parquet, sorted((run / "training_data").rglob("*.parquet")))).sort("row")


def test_a_value_that_no_row_gets_is_refused_too_if_it_is_not_of_its_type(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "part-00000.csv", HEADER, [("a", "2024-12-03", 1), ("b", "2024-12-03", 2)])
    facts = [("a", "2024-12-02", "1.5"), ("nobody", "2024-12-04", "much")]
    write_rows(tmp_path / "f.csv", ("who", "day", "amount"), facts)
    with pytest.raises(InputError, match="row 2: amount is 'much', declared float"):
        joined(tmp_path / "in", tmp_path / "f.csv", tmp_path / "out", types={"amount": "float32"})


def test_polars_join_asof_finds_the_same(tables: Any, tmp_path: Path) -> None:
    source, features, rows, frame = tables
    found = output(joined(source, features, tmp_path / "out", max_age="3d", val_in_test="keep").run)
    asof = rows.sort("date").join_asof(
        frame.sort("day"),
        left_on="date",
        right_on="day",
        by_left="id",
        by_right="who",
        tolerance="3d",
        check_sortedness=False,
    )
    expected = asof.sort("row").filter(pl.col("row").is_in(found["row"].implode())).select(found.columns)

    assert len(found) > 1000
    assert found["amount"].null_count() > 0
    assert expected.equals(found)


def test_duckdb_asof_finds_the_same(tables: Any, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    source, features, _, _ = tables
    found = output(joined(source, features, tmp_path / "out").run)
    expected = duckdb.sql(
        f"select r.*, f.amount, f.word from '{source}/*.parquet' r asof left join '{features}/*.parquet' f"
        " on r.id = f.who and r.date >= f.day order by r.row"
    ).pl()

    assert expected.filter(pl.col("row").is_in(found["row"].implode())).equals(found)


@pytest.mark.slow
def test_workers_and_partitions_do_not_change_a_byte(
    tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, features, _, _ = tables
    one = joined(source, features, tmp_path / "one", workers=1)
    four = joined(source, features, tmp_path / "four", workers=4)
    monkeypatch.setattr(stages, "_PARTITION_ROWS", 1000)
    monkeypatch.setattr(stages, "STRETCH_ROWS", 128)
    monkeypatch.setattr("headrace.split.recipe.STRETCH_ROWS", 128)
    monkeypatch.setattr(pieces, "BATCH_ROWS", 300)
    monkeypatch.setattr(pieces, "_BATCH_BYTES", 1000)
    (tmp_path / "f").mkdir()
    for path in features.iterdir():
        pq.write_table(pq.read_table(path), tmp_path / "f" / path.name, row_group_size=130)
    many = joined(source, tmp_path / "f", tmp_path / "many")

    assert digests(one.run) == digests(four.run)
    shards = {name: digest for name, digest in digests(one.run).items() if name.startswith(("training_data", "oot"))}
    assert shards == {name: digest for name, digest in digests(many.run).items() if name in shards}


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["join_features", "join_rows", "join_choose", "join_fetch", "join_match", "split"])
def test_what_is_interrupted_goes_on_to_the_same_run(tables: Any, tmp_path: Path, stage: str) -> None:
    source, features, _, _ = tables
    whole = joined(source, features, tmp_path / "whole", workers=1)

    def interrupt(event: Any) -> None:
        if getattr(event, "stage", None) == stage and hasattr(event, "subject"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        joined(source, features, tmp_path / "out", workers=1, on_event=interrupt)
    resumed = joined(source, features, tmp_path / "out", workers=1)

    assert digests(whole.run) == digests(resumed.run)


@pytest.mark.parametrize("extension", [".csv", ".jsonl", ".parquet"])
def test_features_of_any_format_go_into_shards_of_any(tmp_path: Path, extension: str) -> None:
    rows = [("a", "2024-12-03", 1), ("b", "2024-12-03", 2), ("c", "2024-12-05", 3), ("a", "2025-01-05", 4)]
    write_rows(tmp_path / "in" / f"part-00000{extension}", HEADER, rows)
    facts = [("a", "2024-12-02", "1.5"), ("b", "2024-12-04", "2.5"), ("", "2024-12-01", "9"), ("c", "2024-12-05", "")]
    write_rows(tmp_path / "f.csv", ("who", "day", "amount"), facts)
    prepared = joined(tmp_path / "in", tmp_path / "f.csv", tmp_path / "out", types={"amount": "float32"}, prefix="f_")
    data = headrace.open(tmp_path / "out")
    found = {
        int(row["row"]): row["f_amount"]
        for name in ("train", "val", "test")
        for row in pl.from_arrow(data[name].to_arrow()).iter_rows(named=True)
    }

    assert prepared.manifest.facts["join"][0]["without_entity"] == 1
    assert {1: 1.5, 2: None, 3: None}.items() <= {**found, 3: found.get(3)}.items()
    assert headrace.verify(tmp_path / "out").problems == []


def test_a_late_correction_is_seen_by_later_rows_alone_and_hides_no_newer_event(tmp_path: Path) -> None:
    def day(number: int) -> dt.datetime:
        return START + dt.timedelta(days=number)

    features: list[Feature] = [
        ("a", day(1), day(1), 1, "first"),
        ("a", day(1), day(6), 2, "corrected"),
        ("a", day(4), day(9), 3, "newer, late"),
        ("a", day(1), day(11), 4, "corrected again"),
    ]
    rows = [("a", day(number), number) for number in (0, 2, 7, 10, 12)] + [("b", day(2), 99)]
    write_rows(tmp_path / "in" / "part-00000.parquet", HEADER, rows)
    run = joined(
        tmp_path / "in", write(tmp_path / "f", features), tmp_path / "out", known_at="arrived", columns=["word"]
    ).run
    found = {row[2]: row[3] for name in ("train", "val") for row in split_rows(run, name)}

    assert {0: None, 2: "first", 7: "corrected", 10: "newer, late", 12: "newer, late", 99: None} == found


def test_a_time_that_happens_twice_is_the_later_of_a_feature_and_the_earlier_of_a_row(tmp_path: Path) -> None:
    rows = [("a", "2024-10-27 02:45:00", 1), ("a", "2024-10-27 03:00:00", 2), ("b", "2024-10-01 00:00:00", 3)]
    write_rows(tmp_path / "in" / "part-00000.csv", HEADER, rows)
    write_rows(tmp_path / "f.csv", ("who", "day", "v"), [("a", "2024-10-27 02:30:00", "x")])
    run = joined(tmp_path / "in", tmp_path / "f.csv", tmp_path / "out", timezone="Europe/Berlin").run
    found = {row[2]: row[3] for name in ("train", "val") for row in split_rows(run, name)}

    assert {"1": "", "2": "x", "3": ""} == found


@pytest.mark.slow
def test_tables_in_memory_are_sources_and_their_content_names_the_run(tables: Any, tmp_path: Path) -> None:
    source, features, _, frame = tables
    files = output(joined(source, features, tmp_path / "files").run)
    memory = joined(source, frame, tmp_path / "memory")
    other = joined(source, frame.with_columns(pl.lit("z").alias("word")), tmp_path / "other")

    assert files.equals(output(memory.run))
    assert memory.manifest.run_id != other.manifest.run_id


def test_other_features_make_another_run_and_no_features_the_old_one(tables: Any, tmp_path: Path) -> None:
    source, features, _, _ = tables
    plain = headrace.TemporalSplit(source=source, time="date", entity="id", split_date="2025-01-01")
    one = headrace.Features(source=features, entity="who", event_time="day")

    assert "join" not in plain.identity_settings()
    assert plain.source_files() == headrace.TemporalSplit(**{**dict(plain), "join": ()}).source_files()
    assert len(headrace.TemporalSplit(**{**dict(plain), "join": [one]}).source_files()) == 9


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"columns": ["nothing"]}, "no column 'nothing' (join[0].columns[0]); its columns are who, day, amount, word"),
        ({"known_at": "arrival"}, "no column 'arrival' (join[0].known_at)"),
    ],
)
def test_columns_that_are_not_there_are_named(tables: Any, tmp_path: Path, asked: Any, told: str) -> None:
    source, features, _, _ = tables
    with pytest.raises(InputError) as raised:
        joined(source, features, tmp_path / "out", **asked)
    assert told in str(raised.value)


def test_names_that_clash_are_refused_with_the_remedy(tables: Any, tmp_path: Path) -> None:
    source, features, _, _ = tables
    one = headrace.Features(source=features, entity="who", event_time="day", columns=["amount"])
    with pytest.raises(InputError, match=r"'amount', which is a column of join\[0\] already; give join\[1\] a prefix="):
        split(source, tmp_path / "out", join=[one, one])
    frame = pl.DataFrame({"who": [1], "day": ["2024-01-01"], "row": [3]})
    with pytest.raises(InputError, match="'row', which is a column of the source already"):
        joined(source, frame, tmp_path / "out")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"max_age": "soon"}, "max_age is 'soon'; give a number and s, m, h, d or w"),
        ({"event_time": "who"}, "event_time and entity are both 'who'"),
        ({"columns": ["a", "a"]}, "columns names 'a' twice"),
        ({"known": "x"}, "'known' is not a setting; did you mean 'known_at'?"),
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError) as raised:
        headrace.Features(**{"source": "f", "entity": "who", "event_time": "day", **values})
    assert told in str(raised.value)


def test_a_join_needs_an_entity() -> None:
    with pytest.raises(SettingsError, match="join is given without entity"):
        headrace.TemporalSplit(
            source="in", time="date", split_date="2025-01-01", join={"source": "f", "event_time": "day"}
        )


def test_vectors_are_refused_as_nothing_settles_their_ties(tables: Any, tmp_path: Path) -> None:
    frame = pl.DataFrame({"who": [1], "day": ["2024-01-01"], "v": [[1.0, 2.0]]})
    with pytest.raises(InputError, match=r"column v is .*list.*, whose values have no order"):
        joined(tables[0], frame, tmp_path / "out")


def test_verify_refuses_features_that_were_not_known_yet_and_others_than_the_latest(tmp_path: Path) -> None:
    def day(number: int) -> dt.datetime:
        return START + dt.timedelta(days=number)

    rows = [("a", day(5), 1), ("b", day(5), 2), ("b", day(40), 3)]
    write_rows(tmp_path / "in" / "part-00000.parquet", HEADER, rows)
    source = write(tmp_path / "f", [(who, day(3), day(9), 1, "x") for who in ("a", "b")])
    run = joined(tmp_path / "in", source, tmp_path / "out", columns=["word"]).run
    finished = FinishedRun(*find_run(run))
    asked = {"source": source, "entity": "who", "event_time": "day", "columns": ["word"]}
    names = {"source": tmp_path / "in", "time": "date", "entity": "id", "split_date": "2025-01-01"}

    def problems(**other: str) -> list[str | None]:
        settings = headrace.TemporalSplit(**names, join=[asked | other])
        checks = checks_of(finished, settings, 1)
        return [check.problem for check in checks if check.name == "features of join[0]"]

    assert [None] == problems()
    for other in ({"known_at": "arrived"}, {"max_age": "1d"}):
        (problem,) = problems(**other)
        assert problem is not None
        assert problem.endswith("row 1: its features are not the latest of join[0] that were known at its time")


def test_verify_says_what_it_cannot_prove_where_the_source_is_gone_or_changed(tmp_path: Path) -> None:
    rows = [("a", START, 1), ("b", START, 2)]
    write_rows(tmp_path / "in" / "part-00000.parquet", HEADER, rows)
    source = write(tmp_path / "f", [("a", START, START, 1, "x")])
    run = joined(tmp_path / "in", source, tmp_path / "out").run
    write(tmp_path / "f", [("a", START, START, 2, "x")])
    changed = headrace.verify(run)
    for path in source.iterdir():
        path.unlink()
    gone = headrace.verify(run)

    assert ([], []) == (changed.problems, gone.problems)
    assert "is not what it was when the run read it" in changed.checks[-1].detail
    assert "cannot be read" in gone.checks[-1].detail
    assert ("unchecked", "unchecked") == (changed.checks[-1].kind, gone.checks[-1].kind)


def test_one_file_per_split_and_a_manifest_that_counts(tables: Any, tmp_path: Path) -> None:
    source, features, _, _ = tables
    shards = joined(source, features, tmp_path / "shards")
    single = joined(source, features, tmp_path / "single", layout="single")
    facts = single.manifest.facts["join"][0]

    assert output(shards.run).equals(output(single.run))
    assert facts == shards.manifest.facts["join"][0]
    assert facts["rows"] == sum(each.rows for each in single.manifest.splits.values())
    assert facts["matched"] == len(output(single.run)["amount"].drop_nulls())


@pytest.mark.slow
def test_rows_of_folds_get_features_too_and_they_are_verified(tables: Any, tmp_path: Path) -> None:
    source, features, _, _ = tables
    one = output(joined(source, features, tmp_path / "one").run)
    table = headrace.Features(source=features, entity="who", event_time="day")
    folds = headrace.TemporalSplit(source=source, time="date", entity="id", folds=headrace.GroupKFold(3), join=[table])
    made = headrace.prepare(folds, tmp_path / "folds")
    found = pl.concat(headrace.open(tmp_path / "folds")[name].to_polars().collect() for name in made.manifest.splits)
    verdict = headrace.verify(tmp_path / "folds")

    assert one.equals(found.sort("row").filter(pl.col("row").is_in(one["row"].implode())))
    assert verdict.problems == []
    assert verdict.checks[-1].name == "features of join[0]"
