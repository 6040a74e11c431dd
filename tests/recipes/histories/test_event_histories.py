"""Laws of histories of events: texts as entities and peers, and value columns beside or instead of a latency."""

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from events import event_histories, expected_events, random_events, read_back, rows_of, write_events

import headrace
from headrace.contexts import decode_context, open_contexts, read_measurements
from headrace.dataset.entities import find_entities
from headrace.errors import InputError, SettingsError
from headrace.histories.config import Histories
from headrace.histories.dictionary import Dictionary
from headrace.run.prepare import prepare
from raised import raised

EVENTS = random_events(1, 1500)


def shards_of(run: Path) -> dict[str, bytes]:
    files = [
        *(run / "histories").rglob("part-*"),
        *(run / "dictionaries").iterdir(),
        run / "rows.parquet",
    ]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in sorted(files)}


@pytest.mark.parametrize("format_", ["array_record", "arrow"])
@pytest.mark.parametrize("max_row_bytes", [1, 600, 8 << 20])
def test_every_event_comes_back_with_its_texts_and_values(
    tmp_path: Path, format_: str, max_row_bytes: int
) -> None:
    source = write_events(tmp_path / "in", EVENTS, 3)
    prepared = event_histories(
        source, tmp_path / "out", format=format_, max_row_bytes=max_row_bytes
    )
    found = read_back(prepared)

    assert expected_events(EVENTS) == rows_of(found)
    assert found["user"].rle().struct.field("value").n_unique() == len(found["user"].rle())
    for _, history in found.group_by("user"):
        assert history["when"].is_sorted()
        assert history["part"].is_sorted()
    if format_ == "arrow":
        longest = max(len(table["measurements"][0].as_py()) for table in _rows(prepared.run))
        assert max_row_bytes == 1 or longest <= max_row_bytes
    assert headrace.verify(tmp_path / "out").problems == []


def _rows(run: Path) -> list[pa.RecordBatch]:
    tables = [
        pa.ipc.open_file(path).read_all() for path in sorted((run / "histories").rglob("*.arrow"))
    ]
    return [
        batch.slice(row, 1)
        for table in tables
        for batch in table.to_batches()
        for row in range(len(batch))
    ]


@pytest.mark.slow
def test_shards_workers_and_memory_change_no_byte(tmp_path: Path) -> None:
    plain = shards_of(
        event_histories(write_events(tmp_path / "in", EVENTS, 3), tmp_path / "out").run
    )
    many = event_histories(
        write_events(tmp_path / "many", EVENTS[::-1], 7), tmp_path / "many_out", workers=2
    )
    merged = event_histories(tmp_path / "in", tmp_path / "merged", memory_limit=1 << 20)

    for other in (many, merged):
        assert plain == shards_of(other.run)


def test_a_dictionary_has_every_text_once_in_order(tmp_path: Path) -> None:
    prepared = event_histories(write_events(tmp_path / "in", EVENTS, 3), tmp_path / "out")
    told = prepared.manifest.metadata["dictionaries"]

    for role, column in (("entity", "user"), ("peer", "page"), ("value-02", "kind")):
        texts = Dictionary(prepared.run / "dictionaries" / f"{role}.arrow").texts.to_pylist()
        assert sorted({event[column] for event in EVENTS if event[column]}, key=str.encode) == texts
        assert (column, len(texts)) == (told[role]["column"], told[role]["texts"])
    assert "uint8" == prepared.manifest.metadata["values"]["kind"]


def test_a_text_keeps_its_side_when_others_come(tmp_path: Path) -> None:
    few = event_histories(write_events(tmp_path / "in", EVENTS, 2), tmp_path / "out")
    more = [*EVENTS, *({**event, "user": f"another {event['user']}"} for event in EVENTS[:200])]
    many = event_histories(write_events(tmp_path / "more", more, 2), tmp_path / "more_out")

    def sides(prepared: headrace.types.Prepared) -> dict[str, str]:
        rows = pl.read_parquet(prepared.run / "rows.parquet")
        return dict(zip(rows["src_id"], rows["split"], strict=True))

    assert sides(few).items() <= sides(many).items()


@pytest.mark.parametrize("settings", [{}, {"value": "count", "values": {"kind": "category"}}])
def test_contexts_show_what_was_measured(tmp_path: Path, settings: dict[str, object]) -> None:
    prepared = event_histories(
        write_events(tmp_path / "in", EVENTS, 2), tmp_path / "out", **settings
    )
    contexts = open_contexts(tmp_path / "out", "train", shuffle="none", context_tokens=512)
    known = {
        role: Dictionary(prepared.run / "dictionaries" / f"{role}.arrow").texts
        for role in ("entity", "peer")
    }
    names = list(contexts.rows.values)
    held = read_back(prepared).with_columns(pl.col("kind").cast(pl.String))
    if "value" not in settings:
        held = held.drop("part")
    kinds = Dictionary(next(prepared.run.glob("dictionaries/value-*.arrow"))).texts
    expected = {
        tuple(row[name] for name in ("user", "page", *names)) for row in held.iter_rows(named=True)
    }

    for position in range(len(contexts)):
        for segment in decode_context(contexts[position], values=contexts.rows.values):
            for each in segment:
                user, page = (
                    known[role][int.from_bytes(code or b"", "big")].as_py()
                    for role, code in (("entity", each.entity), ("peer", each.peer))
                )
                values = dict(zip(names, each.values, strict=True))
                values["kind"] = None if values["kind"] is None else kinds[values["kind"]].as_py()
                assert (user, page, *values.values()) in expected
                assert (each.code is None) == ("value" not in settings)
    assert contexts.vocabulary_size == 268 + len(names)
    if "value" not in settings:
        with raised(SettingsError, setting="context_tokens", value=64):
            open_contexts(tmp_path / "out", "train", context_tokens=64)


@pytest.mark.slow
def test_leaks_streams_and_entities_work_on_texts(tmp_path: Path) -> None:
    copies = [{**event, "user": f"copy of {event['user']}"} for event in EVENTS]
    source = write_events(tmp_path / "in", [*EVENTS, *copies], 2)
    prepared = event_histories(source, tmp_path / "out")
    dropped = event_histories(source, tmp_path / "dropped", duplicates="drop")
    by_kind = event_histories(source, tmp_path / "by_kind", content=("kind", "when"))

    assert 0 < prepared.manifest.metadata["duplicates"]["in_earlier_split"]["test"]
    assert 0 < headrace.find_leaks(headrace.open(tmp_path / "out")).worst
    assert len(EVENTS) == dropped.manifest.dropped["duplicate"]
    assert 0 < by_kind.manifest.metadata["duplicates"]["in_earlier_split"]["test"]
    for out in ("out", "dropped", "by_kind"):
        assert headrace.verify(tmp_path / out).problems == []
    dataset = headrace.open(tmp_path / "out")
    names = [
        name
        for batch in dataset.stream("train", batch_size=8, batch_format="arrow")
        for name in batch["src_id"].to_pylist()
    ]
    assert {"user 0", "copy of user 0"} & set(names)
    _, rows = find_entities(dataset, "src_id", [names[0]])["train"]
    assert len(rows) == names.count(names[0])


@pytest.mark.parametrize("file", ["dictionaries/entity.arrow", "dictionaries/value-02.arrow"])
def test_verify_finds_a_changed_dictionary(tmp_path: Path, file: str) -> None:
    prepared = event_histories(write_events(tmp_path / "in", EVENTS[:200], 1), tmp_path / "out")
    path = prepared.run / file
    data = bytearray(path.read_bytes())
    data[data.index(b"user 1" if "entity" in file else b"cart") + 1] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)

    assert any(file in problem for problem in headrace.verify(tmp_path / "out").problems)


@pytest.mark.parametrize(
    ("column", "value", "kind", "wanted"),
    [
        (
            "x",
            "many",
            "int32",
            "a whole number from -2,147,483,647 to 2,147,483,647, which int32 holds",
        ),
        ("x", "2147483648", "int32", "a whole number"),
        ("x", "-128", "int8", "a whole number from -127 to 127, which int8 holds"),
        ("x", "1.5", "int64", "a whole number"),
        ("x", "inf", "float32", "a finite number that float32 holds"),
        ("x", "1e300", "float32", "a finite number that float32 holds"),
        ("y", "inf", "float64", "a finite number that float64 holds"),
    ],
)
def test_a_value_that_does_not_fit_names_file_row_column_and_value(
    tmp_path: Path, column: str, value: str, kind: str, wanted: str
) -> None:
    (tmp_path / "in").mkdir()
    other = "y" if column == "x" else "x"
    text = f"user,when,{column},{other}\na,2024-01-01,3.0,1\na,2024-01-01,{value},1\n"
    (tmp_path / "in" / "a.csv").write_text(text)
    settings = {
        "source": tmp_path / "in",
        "entity": "user",
        "entity_kind": "text",
        "time": "when",
        "format": "arrow",
    }
    wrong = Histories(**settings, values={column: kind, other: "int8"})
    with raised(InputError, row=2, column=column, value=value) as caught:
        prepare(wrong, tmp_path / "out")
    assert f"not {wanted}" in str(caught.value)
    dropped = prepare(
        wrong.model_copy(update={"bad_rows": "drop"}), tmp_path / "out"
    ).manifest.dropped

    assert 1 == dropped["unreadable_value"]


def test_an_id_is_one_entity_whatever_the_type_of_its_column(tmp_path: Path) -> None:
    ids = [7, 123_456_789_012, 2**52 + 1]
    (tmp_path / "in").mkdir()
    for kind in (pl.Int64, pl.Float64, pl.String):
        rows = {
            "user": pl.Series(ids).cast(pl.Int64).cast(kind),
            "when": [1_700_000_000] * 3,
            "x": [1] * 3,
        }
        pl.DataFrame(rows).write_parquet(tmp_path / "in" / f"{kind}.parquet")
    asked = {
        "entity": "user",
        "entity_kind": "text",
        "time": "when",
        "dialect": {"time_format": "epoch_s"},
        "format": "arrow",
    }
    made = prepare(
        Histories(source=tmp_path / "in", values={"x": "int8"}, **asked), tmp_path / "out"
    ).manifest

    assert len(ids) == sum(made.metadata["entities"].values())


def test_null_values_are_missing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(
        "user,when,x,kind\na,2024-01-01,NA,NA\nNA,2024-01-01,1,b\n"
    )
    settings = {
        "source": tmp_path / "in",
        "entity": "user",
        "entity_kind": "text",
        "time": "when",
        "format": "arrow",
    }
    asked = Histories(
        **settings,
        values={"x": "int32", "kind": "category"},
        dialect={"null_values": "NA"},
        bad_rows="drop",
    )
    prepared = prepare(asked, tmp_path / "out")
    rows = [
        row
        for split in ("train", "test")
        for batch in read_measurements(prepared.out, split)
        for row in batch.to_pylist()
    ]

    assert [(None, None)] == [(row["x"], row["kind"]) for row in rows]
    assert 1 == prepared.manifest.dropped["null_entity"]


def test_settings_of_values_that_cannot_work_say_so() -> None:
    with raised(SettingsError, setting="values"):
        Histories(source="in", values={"x": "int31"})
    with raised(SettingsError, setting="value"):
        Histories(source="in", value=None)
    with raised(SettingsError, setting="entity"):
        Histories(source="in", value="x", values={"x": "int32"})
    assert Histories(source="in", values={"b": "int32", "a": "category"}).columns() == [
        "src_addr",
        "event_time",
        "a",
        "b",
    ]
    assert Histories(source="in").value == "rtt"


def test_failures_are_told_by_reason_with_place_and_values(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, values in enumerate((["1.5", "", "-3", "-4"], ["-3", "0", "-5", "2"])):
        lines = [f"10.0.0.1,2024-01-01,{value}" for value in values]
        (tmp_path / "in" / f"part-{number}.csv").write_text(
            "\n".join(["src_addr,event_time,rtt", *lines]) + "\n"
        )
    settings = Histories(source=tmp_path / "in", format="arrow", zero="failed")
    told = prepare(settings, tmp_path / "out").manifest.metadata["failed_by"]

    expected = {
        "missing": {"rows": 1, "first": "part-0.csv: row 2", "values": []},
        "negative": {"rows": 4, "first": "part-0.csv: row 3", "values": [-3.0, -4.0, -5.0]},
        "zero": {"rows": 1, "first": "part-1.csv: row 2", "values": []},
    }
    assert expected == told
    assert json.dumps(told)


@pytest.mark.slow
def test_texts_out_of_core_are_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [{**EVENTS[0], "user": f"{number * 7919 % 5000:x}"} for number in range(6000)]
    source = write_events(tmp_path / "in", events, 3)
    plain = shards_of(event_histories(source, tmp_path / "out").run)
    monkeypatch.setattr("headrace.histories.dictionary._TEXT_BYTES", 1 << 18)
    monkeypatch.setattr("headrace.histories.dictionary._SAMPLE_EVERY", 3)
    monkeypatch.setattr("headrace.histories.dictionary._BATCH", 100)
    merged = event_histories(source, tmp_path / "merged", memory_limit=1 << 24)

    assert 5000 == merged.manifest.metadata["dictionaries"]["entity"]["texts"]
    dictionary = Dictionary(merged.run / "dictionaries/entity.arrow")
    assert dictionary.is_sorted()
    assert 10 < dictionary.texts.num_chunks
    assert sorted({event["user"] for event in events}) == dictionary.texts.to_pylist()
    assert {name: data for name, data in plain.items() if "dictionaries" not in name} == {
        name: data for name, data in shards_of(merged.run).items() if "dictionaries" not in name
    }


def test_entities_of_file_names_are_read_back_beside_a_peer_of_the_same_column_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    for file, page in (("ann", "/a"), ("bob", "/b")):
        frame = pl.DataFrame({"src_addr": [page] * 3, "when": [10, 20, 30], "amount": [1, 2, 3]})
        frame.write_parquet(tmp_path / "data" / f"{file}.parquet")
    of_files = {
        "entity_from": "file_name",
        "entity_kind": "text",
        "peer": "src_addr",
        "peer_kind": "text",
    }
    settings = headrace.Histories(source=tmp_path / "data", time="when", dialect={"time_format": "epoch_s"}, values={"amount": "int32"}, format="arrow", **of_files)  # fmt: skip

    prepared = headrace.prepare(settings, tmp_path / "out")

    found = [each for split in ("train", "test") for each in read_measurements(prepared.out, split)]
    read = sorted(
        {(row["file_name"], row["src_addr"]) for batch in found for row in batch.to_pylist()}
    )
    assert [("ann", "/a"), ("bob", "/b")] == read


def test_a_date_and_a_clock_in_two_columns_are_one_time(tmp_path: Path) -> None:
    rows = [(f"u{n % 5}", f"2024-01-{1 + n % 28:02d}", f"{n % 24:02d}:30:00", n) for n in range(60)]
    apart = "user,day,clock,n\n" + "".join(f"{who},{day},{at},{n}\n" for who, day, at, n in rows)
    joined = "user,day,n\n" + "".join(f"{who},{day} {at},{n}\n" for who, day, at, n in rows)
    read = {}
    for form, text, time in (("apart", apart, ["day", "clock"]), ("joined", joined, "day")):
        (tmp_path / form).mkdir()
        (tmp_path / form / "a.csv").write_text(text)
        settings = Histories(
            source=tmp_path / form,
            entity="user",
            entity_kind="text",
            time=time,
            values={"n": "int32"},
            format="arrow",
        )
        prepare(settings, tmp_path / f"{form}-out")
        read[form] = [
            batch.to_pylist()
            for split in ("train", "test")
            for batch in read_measurements(tmp_path / f"{form}-out", split)
        ]

    assert read["apart"] == read["joined"]
    assert 60 == sum(map(len, read["apart"]))
