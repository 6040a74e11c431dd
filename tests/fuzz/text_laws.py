"""What must hold when others read the same text.

headrace may refuse a file. If it reads it, its rows and values are those of the strict majority: of csv or json of the
standard library, pandas and DuckDB at least two read exactly the same; one that refuses the file has no such reading.
Where DuckDB is not installed one of the other two is enough.
Every peer reads all columns as text, by one rule: the given separator, doubled quotes, LF, CRLF or CR outside quotes,
empty lines are no rows (in a file of one column they are missing values). A peer that fills up short rows refuses them
here. Runs of these files – rewritten, split – hold the rows of the plain file, and no entity is in train and elsewhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import text_inputs
from fuzz_run import Difference
from text_readers import DELIMITED, JSON, Rows, in_one_form, ours

import headrace
from tables import shards

Parser = tuple[str, Callable[..., bytes], Callable[[bytes], object], dict[str, int]]
SEPARATORS = {"csv": ",", "tsv": "\t"}
COLUMNS = ["id", "date", "x"]


def csv_text(directory: Path) -> Parser:
    return _plain(
        directory, "csv", lambda random_: text_inputs.delimited(random_, random_.choice(",,,,;|"))
    )


def tsv_text(directory: Path) -> Parser:
    return _plain(directory, "tsv", lambda random_: text_inputs.delimited(random_, "\t"))


def jsonl_text(directory: Path) -> Parser:
    return _plain(directory, "jsonl", text_inputs.json_lines)


def csv_runs(directory: Path) -> Parser:
    return _runs(directory, "csv", lambda random_: text_inputs.delimited(random_, ",", COLUMNS))


def jsonl_runs(directory: Path) -> Parser:
    return _runs(directory, "jsonl", lambda random_: text_inputs.json_lines(random_, COLUMNS))


def _plain(directory: Path, form: str, make: Callable[..., bytes]) -> Parser:
    counts = {"read": 0}

    def check(data: bytes) -> None:
        path = _fresh(directory) / f"part-0.{form}"
        path.write_bytes(data)
        rows = ours(path, directory / "cache")
        counts["read"] += 1
        agree(path, rows)

    return form, make, check, counts


def agree(path: Path, rows: Rows) -> None:
    """Raise `Difference` unless at least half of the peers, two of three, read these rows."""
    found: dict[str, Any] = {}
    if path.suffix == ".jsonl":
        for name, read in JSON.items():
            found[name] = _answer(lambda read=read: read(path))
    else:
        separator = headrace_separator(path)
        for name, read_text in DELIMITED.items():
            found[name] = _answer(lambda read=read_text: read(path, separator, len(rows[0])))
    if 2 * sum(answer == rows for answer in found.values()) < len(found):
        others = "\n".join(f"{name}: {answer!r:.600}" for name, answer in found.items())
        raise Difference(f"headrace: {rows!r:.600}\n{others}")


def headrace_separator(path: Path) -> str:
    from headrace.formats.source import survey

    dialect = survey(path, path.name).dialect
    assert dialect is not None
    return dialect.separator


def _answer(read: Callable[[], Rows]) -> Rows | str:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - whatever a peer raises, it has no rows
        return f"refused: {type(error).__name__}: {error}"


def _runs(directory: Path, form: str, make: Callable[..., bytes]) -> Parser:
    counts = {"read": 0, "rewritten": 0, "split": 0}

    def check(data: bytes) -> None:
        path = _fresh(directory) / "in" / f"part-0.{form}"
        path.parent.mkdir()
        path.write_bytes(data)
        rows = ours(path, directory / "cache")
        counts["read"] += 1
        _check_rewrite(path, directory, rows)
        counts["rewritten"] += 1
        _check_split(path, directory, rows)
        counts["split"] += 1

    return f"{form} runs", make, check, counts


def _check_rewrite(path: Path, directory: Path, rows: Rows) -> None:
    form = "json" if path.suffix == ".jsonl" else "text"
    recipe = headrace.Rewrite(
        source=path.parent,
        cache_dir=directory / "cache",
        types="text" if form == "text" else None,
    )
    run = headrace.prepare(recipe, directory / "rewritten").run
    written = [pq.read_table(each) for each in sorted(run.rglob("part-*.parquet"))]
    names = written[0].column_names if written else list(rows[0]) if form == "text" else []
    values = [tuple(row.values()) for table in written for row in table.to_pylist()]
    found = in_one_form(names, values, form)
    if found != rows:
        raise Difference(f"rewritten rows are others: {rows!r:.600} and {found!r:.600}")


def _check_split(path: Path, directory: Path, rows: Rows) -> None:
    recipe = headrace.TemporalSplit(
        source=path.parent,
        time="date",
        entity="id",
        split_date="2025-01-01",
        train_ratio=0.5,
        bad_rows="drop",
        null_entity="drop",
    )
    run = headrace.prepare(recipe, directory / "split").run
    manifest = headrace.open(directory / "split").manifest
    splits = {
        name: [row for each in shards(run, name) for row in _read_out(each, len(rows[0]))]
        for name in ("train", "val", "oot")
    }
    named = path.suffix != ".jsonl"
    before = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]] if named else rows
    out = [row for part in splits.values() for row in part]
    kept, known = sorted(map(_sorted, out)), sorted(map(_sorted, before))
    dropped = sum(manifest.dropped.values())
    if (
        len(kept) + dropped != len(known)
        or any(row not in known for row in kept)
        or (not dropped and kept != known)
    ):
        raise Difference(
            f"split rows are others: {known!r:.600} and {kept!r:.600}, {dropped} dropped"
        )
    entities = {name: {str(row.get("id")) for row in part} for name, part in splits.items()}
    if entities["train"] & (entities["val"] | entities["oot"]):
        raise Difference(f"entities in train and elsewhere: {entities!r}")


def _sorted(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


def _read_out(path: Path, width: int) -> list[dict[str, Any]]:
    """A shard of a split as a trainer reads it that knows nothing of headrace."""
    if path.suffix == ".jsonl":
        return JSON["json"](path)
    header, *rows = DELIMITED["csv"](path, ",", width)
    return [dict(zip(header, row, strict=True)) for row in rows]


def _fresh(directory: Path) -> Path:
    shutil.rmtree(directory)
    directory.mkdir()
    return directory
