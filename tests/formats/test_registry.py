"""A format is one module and one entry: toy formats are opened, streamed, split, rewritten and packed as the others."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.errors import InputError
from headrace.formats import registry, write
from headrace.formats.listing import list_files
from headrace.formats.registry import FORMATS, FileType, Format, detect
from headrace.formats.shard import (
    BlockRead,
    FormatCode,
    Shard,
    Sink,
    Span,
    TableChunk,
    WriteSettings,
)
from headrace.formats.types import Target, in_schema
from headrace.formats.write import HashingFile
from raised import raised


class Columns(FormatCode):
    """Reads a JSON object of columns after a line of magic."""

    def survey(
        self,
        path: Path,
        name: str,
        file_type: FileType,
        signature: Sequence[str] | None = None,  # noqa: ARG002 - of CSV
        dialect: object = None,  # noqa: ARG002 - of text
    ) -> Shard:
        return Shard.unread(path, name, file_type).with_columns(self.table(path).schema)

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


class Lines(FormatCode):
    """Reads and writes lines of columns between a line of magic and a last line, a line for each block."""

    FIRST, LAST = b"LINES\0\n", b"END\n"

    def survey(self, path: Path, name: str, file_type: FileType, *of_text: object) -> Shard:  # noqa: ARG002
        return Shard.unread(path, name, file_type).with_columns(self.tables(path)[0].schema)

    def read(
        self,
        shard: Shard,
        columns: Sequence[str] | None = None,
        **options: object,  # noqa: ARG002 - of Parquet
    ) -> Iterator[TableChunk]:
        row = 0
        for table in self.tables(shard.path):
            yield TableChunk(table if columns is None else table.select(list(columns)), row)
            row += len(table)

    def blocks(self, shard: Shard) -> list[Span]:
        spans, offset = [], len(self.FIRST)
        lines = shard.path.read_bytes().splitlines(keepends=True)[1:-1]
        for number, line in enumerate(lines):
            spans.append(Span(number, len(self.table(line)), offset, len(line)))
            offset += len(line)
        return spans

    def read_block(self, block: BlockRead, target: Target) -> pa.Table:
        data = block.path.read_bytes()[block.offset : block.offset + block.length]
        return in_schema(self.table(data).select(target.schema.names), target)

    def open_sink(self, file: HashingFile, settings: WriteSettings) -> Sink:  # noqa: ARG002 - as declared
        return LinesSink(file)

    def tables(self, path: Path) -> list[pa.Table]:
        return [self.table(line) for line in path.read_bytes().splitlines()[1:-1]]

    def table(self, line: bytes) -> pa.Table:
        return pa.table(json.loads(line))


class LinesSink:
    def __init__(self, file: HashingFile) -> None:
        self.file = file
        file.write(Lines.FIRST)

    def write(self, batch: pa.Table) -> None:
        self.file.write(json.dumps(batch.to_pydict()).encode() + b"\n")

    def close(self) -> None:
        self.file.write(Lines.LAST)


CODE = Columns()
LINES = Lines()
ROWS = {
    "who": [f"customer {n % 30}" for n in range(90)],
    "when": [f"2024-0{1 + n // 10}-01" for n in range(90)],
}


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two toy formats, which are registered for one test."""
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
    FORMATS.add(
        Format(
            name="lines",
            code=f"{__name__}:LINES",
            extensions=("lines",),
            content="binary",
            magic=(b"LINES\0",),
            compressions=("none",),
        )
    )
    yield
    vars(FORMATS).update(before)


@pytest.fixture
def source(registered: None, tmp_path: Path) -> Path:
    """A directory with a shard of the toy format that is only read."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "part-0.toy").write_bytes(b"TOY\0\n" + json.dumps(ROWS).encode())
    return tmp_path / "raw"


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


@pytest.mark.parametrize("layout", ["sharded", "single"])
@pytest.mark.parametrize("extra", [{}, {"label": "when"}], ids=["as_it_is", "derived"])
def test_a_toy_format_is_written_in_blocks_and_verified(
    registered: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    extra: dict[str, str],
) -> None:
    monkeypatch.setattr(write, "BLOCK_ROWS", 7)
    (tmp_path / "raw").mkdir()
    for part in range(2):
        rows = {name: values[part::2] for name, values in ROWS.items()}
        table = {"id": list(range(part, 90, 2)), "day": rows["when"], **rows}
        lines = Lines.FIRST + json.dumps(table).encode() + b"\n" + Lines.LAST
        (tmp_path / "raw" / f"part-{part}.lines").write_bytes(lines)
    split = headrace.TemporalSplit(
        source=tmp_path / "raw", time="day", entity="who", split_date="2024-07-01", layout=layout, **extra
    )  # fmt: skip
    headrace.prepare(split, tmp_path / "out")
    opened = headrace.open(tmp_path / "out")

    assert headrace.verify(tmp_path / "out").problems == []
    streamed = {}
    for name in opened.splits:
        batches = opened.stream(name, batch_size=4, shuffle=False, batch_format="arrow", remainder="exact")  # fmt: skip
        streamed[name] = sorted(number for batch in batches for number in batch["id"].to_pylist())
    assert opened.split_rows == {name: len(ids) for name, ids in streamed.items()}
    assert all(len(set(ids)) == len(ids) for ids in streamed.values())
    shards = sorted((tmp_path / "out").rglob("training_data/train/*.lines"))
    assert shards
    assert any(len(LINES.tables(shard)) > 1 for shard in shards)


def test_a_format_that_writes_must_read_its_blocks() -> None:
    with pytest.raises(TypeError, match="write its blocks and read_block too"):

        class Forgetful(Columns):
            def open_sink(self, file: HashingFile, settings: WriteSettings) -> Sink:
                raise NotImplementedError

    with pytest.raises(TypeError, match="has blocks without read_block; write both"):

        class Half(Columns):
            def blocks(self, shard: Shard) -> list[Span]:
                raise NotImplementedError
