"""A dotted path names a field of a struct wherever a recipe names a column.

The law: a run over rows with fields inside structs is as the run over the same rows whose columns
lie side by side, under the names of the paths.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from chats import small_tokenizer

import headrace
from headrace.contexts import read_measurements
from headrace.errors import InputError, SettingsError
from headrace.formats.column_paths import columns_without, value_at
from headrace.run.events import silent
from raised import raised

KINDS = ("jsonl", "parquet")
Row = dict[str, Any]


def nested(count: int) -> list[Row]:
    """Rows whose keys lie in structs, of two levels, some of them null."""
    return [
        {
            "n": n,
            "data": {
                "user": {"id": f"u{n % 17}", "group": "ab"[n % 2]},
                "at": f"2024-0{1 + n % 9}-0{1 + n % 7}T00:00:00",
                "x": n % 5,
            },
            "note": {"text": f"note {n % 50}", "known": f"2024-0{1 + n % 7}-01"} if n % 3 else None,
        }
        for n in range(count)
    ]


def flat(rows: list[Row]) -> list[Row]:
    """The same rows with a column for each field, under its path."""

    def leaves(prefix: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            return {prefix: value}
        result: dict[str, Any] = {}
        for key, inner in value.items():
            result |= leaves(f"{prefix}.{key}", inner)
        return result

    columns = {}
    for row in rows:
        for key, value in row.items():
            columns |= dict.fromkeys(leaves(key, value))
    columns.pop("note", None)
    result = []
    for row in rows:
        whole: dict[str, Any] = dict.fromkeys(columns)
        for key, value in row.items():
            whole |= {name: leaf for name, leaf in leaves(key, value).items() if name in columns}
        result.append(whole)
    return result


def write(directory: Path, rows: list[Row], kind: str, shards: int = 3) -> Path:
    """The rows in shards of a kind."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(shards):
        part = rows[number::shards]
        path = directory / f"part-{number:05d}.{kind}"
        if kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in part))
            continue
        table = pa.Table.from_pylist(part)
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=40)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=40)
    return directory


def numbers(run: headrace.types.Prepared) -> dict[str, list[int]]:
    """The rows of each split, by their numbers."""
    dataset = headrace.open(run.run)
    return {
        split: sorted(dataset[split].to_arrow(["n"])["n"].to_pylist()) for split in dataset.splits
    }


SPLITS: dict[str, Callable[[Path], Any]] = {
    "temporal": lambda source: headrace.TemporalSplit(
        source=source,
        time="data.at",
        entity="data.user.id",
        split_date="2024-06-01",
        duplicates="drop",
        content=["note.text", "data.x"],
    ),
    "temporal, by all others": lambda source: headrace.TemporalSplit(
        source=source,
        time="data.at",
        entity="data.user.id",
        split_date="2024-06-01",
        duplicates="drop",
    ),
    "group folds": lambda source: headrace.TemporalSplit(
        source=source,
        time="data.at",
        entity="data.user.id",
        folds="group-kfold:k=3,stratify=data.user.group",
    ),
    "of joined values": lambda source: headrace.TemporalSplit(
        source=source,
        time="data.at",
        entity="data.user.id",
        split_date="2024-06-01",
        known_at=["note.known"],
        known_late="drop",
    ),
    "by a group": lambda source: headrace.RandomSplit(source=source, by="data.user.id"),
    "by content": lambda source: headrace.RandomSplit(
        source=source, by="content", content=["data.user.id", "data.x"]
    ),
    "by strata": lambda source: headrace.RandomSplit(
        source=source, by="data.user.id", stratify="data.user.group"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SPLITS)
def test_a_split_of_nested_rows_is_that_of_flat_ones(name: str, kind: str, tmp_path: Path) -> None:
    rows = nested(240)
    runs = {}
    for form, of_form in (("nested", rows), ("flat", flat(rows))):
        source = write(tmp_path / form, of_form, kind)
        runs[form] = headrace.prepare(
            SPLITS[name](source), tmp_path / f"{form}-out", on_event=silent
        )
        assert headrace.verify(tmp_path / f"{form}-out").problems == []

    assert numbers(runs["nested"]) == numbers(runs["flat"])
    assert sum(map(len, numbers(runs["nested"]).values())) > 40


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_split_writes_keeps_its_structs(kind: str, tmp_path: Path) -> None:
    rows = nested(60)
    source = write(tmp_path / "source", rows, kind)

    run = headrace.prepare(
        headrace.RandomSplit(source=source, by="data.user.id"), tmp_path / "out", on_event=silent
    )

    dataset = headrace.open(run.run)
    written = [row for split in dataset.splits for row in dataset[split].to_arrow().to_pylist()]
    assert sorted(written, key=lambda row: row["n"]) == rows


def test_a_stream_masks_entities_by_a_path(tmp_path: Path) -> None:
    source = write(tmp_path / "source", nested(60), "parquet")
    run = headrace.prepare(
        headrace.RandomSplit(source=source, by="data.user.id"), tmp_path / "out", on_event=silent
    )
    dataset = headrace.open(run.run)
    stream = dataset.stream("train", batch_size=8, columns=["n"], mask_entities=["u3"])

    streamed = [n for batch in stream for n in batch["n"][batch["valid"]].tolist()]
    kept = dataset["train"].to_arrow(["n", "data.user.id"]).to_pylist()
    assert sorted(streamed) == sorted(row["n"] for row in kept if row["data.user.id"] != "u3")


def test_a_label_inside_a_struct_becomes_a_column_if_it_is_chosen(tmp_path: Path) -> None:
    source = write(tmp_path / "source", nested(60), "parquet")
    settings = {"source": source, "by": "rows", "label": "data.user.group"}

    with raised(InputError, column="data.user.group", remedy="columns="):
        headrace.prepare(headrace.RandomSplit(**settings), tmp_path / "out", on_event=silent)
    run = headrace.prepare(
        headrace.RandomSplit(**settings, columns=["n", "data.user.group"]),
        tmp_path / "chosen",
        on_event=silent,
    )

    table = headrace.open(run.run)["train"].to_arrow()
    assert table.column_names == ["n", "data.user.group"]
    assert table["data.user.group"].to_pylist() == [n % 2 for n in table["n"].to_pylist()]
    with raised(SettingsError, setting="columns"):
        headrace.prepare(
            headrace.RandomSplit(source=source, by="data.user.id", columns=["n", "data.x"]),
            tmp_path / "left-out",
            on_event=silent,
        )


@pytest.mark.parametrize("drift", ["error", "widen"])
@pytest.mark.parametrize("kind", KINDS)
def test_histories_of_nested_rows_are_those_of_flat_ones(
    kind: str, drift: str, tmp_path: Path
) -> None:
    rows = nested(120)
    measurements = {}
    for form, of_form in (("nested", rows), ("flat", flat(rows))):
        source = write(tmp_path / form, of_form, kind)
        out = tmp_path / f"{form}-out"
        headrace.prepare(
            headrace.Histories(
                source=source,
                entity="data.user.id",
                entity_kind="text",
                time="data.at",
                values={"data.x": "int32", "data.user.group": "category"},
                schema_drift=drift,
                format="arrow",
            ),
            out,
            on_event=silent,
        )
        assert headrace.verify(out).problems == []
        measurements[form] = [
            [batch.to_pylist() for batch in read_measurements(out, split)]
            for split in ("train", "test")
        ]

    assert measurements["nested"] == measurements["flat"]
    assert sum(map(len, measurements["nested"][0])) > 60


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("long", [True, False], ids=["one table", "a file per entity"])
def test_series_of_nested_rows_are_those_of_flat_ones(
    long: bool, kind: str, tmp_path: Path
) -> None:
    days = [f"{year}-01-{day:02d}" for year in range(2001, 2031) for day in range(1, 29)]
    rows = [
        {
            "row": {"at": day, "who": f"u{who}"},
            "data": {"q": float((number * 7 + who) % 11), "rain": {"mm": float(number % 5)}},
        }
        for who in range(2)
        for number, day in enumerate(days)
    ]
    stores = {}
    for form, of_form in (("nested", rows), ("flat", flat(rows))):
        source = tmp_path / form
        if long:
            write(source, of_form, kind, shards=1)
        else:
            for who in range(2):
                own = of_form[who * len(days) : (who + 1) * len(days)]
                write(source, own, kind, shards=1)
                (source / f"part-00000.{kind}").rename(source / f"u{who}.{kind}")
        out = tmp_path / f"{form}-out"
        headrace.prepare(
            headrace.Series(
                source=source,
                target="data.q",
                future_features=["data.rain.mm"],
                time="row.at",
                frequency="1d",
                min_train_years=0.1,
                **({"entity": "row.who"} if long else {}),
            ),
            out,
            on_event=silent,
        )
        dataset = headrace.open(out)
        stores[form] = [dataset[split].to_polars().collect() for split in dataset.splits]

    for mine, other in zip(stores["nested"], stores["flat"], strict=True):
        assert mine.equals(other)
    assert len(stores["nested"][0]) > len(days)


@pytest.mark.parametrize("kind", [pytest.param("jsonl", marks=pytest.mark.slow), "parquet"])
def test_chats_of_nested_rows_are_those_of_flat_ones(kind: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path / "tokenizer")
    rows = [
        {
            "meta": {"task": f"t{n % 12}", "kind": "ab"[n % 2]},
            "turn": {"ask": f"apples {n}", "say": {"good": f"{n} it is", "bad": "no idea"}},
        }
        for n in range(40)
    ]
    mapping = {"user": "turn.ask", "assistant": "turn.say.good"}
    pairs = {"prompt": "turn.ask", "chosen": "turn.say.good", "rejected": "turn.say.bad"}
    bins, answers = {}, {}
    for form, of_form in (("nested", rows), ("flat", flat(rows))):
        source = write(tmp_path / form, of_form, kind, shards=2)
        dataset = {"name": "d", "path": str(source), "filters": {"meta.kind": ["a"]}}
        common = {"tokenizer": tokenizer, "entity": "meta.task", "content": ["turn.ask"]}
        packed = headrace.prepare(
            headrace.PackedSequences(blend=[{**dataset, "mapping": mapping}], **common),
            tmp_path / f"{form}-packed",
            on_event=silent,
        )
        bins[form] = {
            path.name: pq.read_table(path).to_pylist()
            for path in sorted(packed.run.rglob("*.parquet"))
            if path.name.startswith("shard_")
        }
        judged = headrace.prepare(
            headrace.Preferences(
                blend=[{**dataset, "mapping": pairs}], columns=["meta.kind"], **common
            ),
            tmp_path / f"{form}-pairs",
            on_event=silent,
        )
        opened = headrace.open(judged.run)
        answers[form] = [opened[split].to_arrow().to_pylist() for split in opened.splits]

    assert bins["nested"] == bins["flat"]
    assert answers["nested"] == answers["flat"]
    assert sum(map(len, answers["nested"])) == 20
    assert answers["nested"][0][0]["meta.kind"] == "a"


def test_a_rewrite_chooses_fields(tmp_path: Path) -> None:
    rows = nested(30)
    source = write(tmp_path / "source", rows, "parquet")

    run = headrace.prepare(
        headrace.Rewrite(source=source, columns=["data.user.id", "n"]),
        tmp_path / "out",
        on_event=silent,
    )

    table = headrace.open(run.run)["all"].to_arrow()
    assert table.to_pylist() == sorted(
        ({"data.user.id": row["data"]["user"]["id"], "n": row["n"]} for row in rows),
        key=lambda row: row["n"] % 3,
    )


def test_a_name_that_two_fields_fit_is_refused(tmp_path: Path) -> None:
    rows = [{"a": {"b": {"c": 1}, "b.c": 2}, "n": n} for n in range(9)]
    source = write(tmp_path / "source", rows, "parquet")

    with raised(InputError, column="a.b.c", remedy="rename"):
        headrace.prepare(
            headrace.RandomSplit(source=source, by="a.b.c"), tmp_path / "out", on_event=silent
        )
    with raised(InputError, column="a.b.c", remedy="rename"):
        value_at(rows[0], "a.b.c")


def test_a_key_that_is_the_whole_name_comes_first() -> None:
    row = {"a.b": 1, "a": {"b": 2, "c": {"d": None}}}

    assert value_at(row, "a.b") == 1
    assert value_at(row, "a.c.d") is None
    assert value_at(row, "a.x") is None
    assert value_at(row, "a") == row["a"]


def test_a_struct_of_which_a_field_has_a_role_is_compared_by_the_others() -> None:
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("s", pa.struct([("t", pa.string()), ("u", pa.struct([("v", pa.int8())]))])),
        ]
    )

    assert columns_without(schema, {"n"}) == ["s"]
    assert columns_without(schema, {"s.t", None}) == ["n", "s.u"]
    assert columns_without(schema, {"s.u.v"}) == ["n", "s.t"]
