"""A format is one module and one entry: a toy format is opened, streamed, split, rewritten and packed as the others."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.errors import InputError
from headrace.formats import registry
from headrace.formats.listing import list_files
from headrace.formats.registry import FORMATS, FileType, Format, detect
from headrace.formats.shard import FormatCode, Shard, TableChunk
from raised import raised


class Columns(FormatCode):
    """Reads a JSON object of columns after a line of magic."""

    def survey(
        self,
        path: Path,
        name: str,
        file_type: FileType,
        signature: Sequence[str] | None = None,  # noqa: ARG002 - of CSV
    ) -> Shard:
        return Shard.unread(path, name, file_type).with_columns(self.table(path).schema, [])

    def read(
        self,
        shard: Shard,
        columns: Sequence[str] | None = None,
        **options: object,  # noqa: ARG002 - of Parquet
    ) -> Iterator[TableChunk]:
        table = self.table(shard.path)
        yield TableChunk(table if columns is None else table.select(list(columns)), 0)

    def table(self, path: Path) -> pa.Table:
        return pa.table(json.loads(path.read_bytes().removeprefix(b"TOY\0\n")))


CODE = Columns()
ROWS = {
    "who": [f"customer {n % 30}" for n in range(90)],
    "when": [f"2024-0{1 + n // 10}-01" for n in range(90)],
}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a shard of the toy format, which is registered for one test."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(registry.FORMATS, "_formats", dict(FORMATS._formats))
    before = dict(vars(FORMATS))
    FORMATS.add(
        Format(
            name="toy",
            code=f"{__name__}:CODE",
            extensions=("toy",),
            content="binary",
            magic=(b"TOY\0",),
            written_as="parquet",
        )
    )
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "part-0.toy").write_bytes(b"TOY\0\n" + json.dumps(ROWS).encode())
    yield tmp_path / "raw"
    vars(FORMATS).update(before)


def test_a_toy_format_is_listed_and_detected(source: Path) -> None:
    assert ["part-0.toy"] == list_files([source]).names
    assert FileType.named("toy") == detect(source / "part-0.toy")
    (source / "part-1.csv").write_bytes((source / "part-0.toy").read_bytes())
    with raised(InputError, remedy="rename it to what it is"):
        detect(source / "part-1.csv")


def test_a_toy_format_is_opened_and_streamed(source: Path) -> None:
    opened = headrace.open(source)
    rows = [
        row
        for batch in opened.stream(batch_size=7, shuffle=False, batch_format="arrow")
        for row in batch["who"]
    ]

    assert {"all": 90} == opened.split_rows
    assert ROWS["who"] == [row.as_py() for row in rows][:90]


def test_a_toy_format_is_split_and_rewritten(source: Path, tmp_path: Path) -> None:
    split = headrace.TemporalSplit(
        source=source, time="when", entity="who", split_date="2024-07-01"
    )
    headrace.prepare(split, tmp_path / "split")
    headrace.prepare(headrace.Rewrite(source=source), tmp_path / "rewritten")

    assert {"train", "val", "test"} == {*headrace.open(tmp_path / "split").splits}
    assert 90 == sum(headrace.open(tmp_path / "rewritten").split_rows.values())


def test_a_toy_format_holds_chats(source: Path, tmp_path: Path) -> None:
    from headrace.packing.chats.reader import read_rows

    rows = [row for batch in read_rows(source / "part-0.toy") for row in batch.rows]

    assert [
        dict(zip(ROWS, values, strict=True)) for values in zip(*ROWS.values(), strict=True)
    ] == rows
