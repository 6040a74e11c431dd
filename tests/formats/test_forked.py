"""Reading text in a process that was forked after its parent used polars: never a wait without an end."""

import json
import multiprocessing
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.formats.delimited_rows import parse

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork")  # the subject

FIELD = st.text('ab" ,;\n\r7é', max_size=4) | st.none()


def quoted(value):
    if value is None:
        return ""
    return (
        '"' + value.replace('"', '""') + '"'
        if value == "" or set(value) & set('",;\n\r ')
        else value
    )


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(FIELD, min_size=width, max_size=width), min_size=1)
    )
)
def test_the_parser_finds_what_polars_finds(rows):
    width = len(rows[0])
    data = "".join(",".join(map(quoted, row)) + "\n" for row in rows).encode()
    columns = list(range(0, width, 2))
    found = parse(data, ",", width, dict.fromkeys(columns, pa.large_string()))
    usual = pl.read_csv(data, has_header=False, infer_schema=False, columns=columns).to_arrow()
    expected = [[row[place] for row in rows] for place in columns]

    assert expected == [column.to_pylist() for column in found.columns]
    assert expected == [column.to_pylist() for column in usual.columns]


def read_all(path: Path, folder: Path) -> None:
    try:
        stream = headrace.open(path, cache_dir=folder).stream(batch_size=4, batch_format="arrow")
        answer = [row for batch in stream for row in batch.drop_columns("valid").to_pylist()]
    except headrace.errors.StreamError as error:
        answer = str(error)
    folder.mkdir(exist_ok=True)
    (folder / "answer.json").write_text(json.dumps(answer))


def forked(path: Path, folder: Path):
    """What a forked process reads, or None if it is still waiting."""
    child = multiprocessing.get_context("fork").Process(target=read_all, args=(path, folder))
    child.start()
    child.join(120)
    if child.is_alive():
        child.kill()
        child.join()
        return None
    return json.loads((folder / "answer.json").read_text())


def test_forked_processes_read_csv_after_their_parent_did(tmp_path):
    rows = [{"a": n, "b": None if n % 3 else "", "c": f"x, {n}"} for n in range(10)]
    text = "a,b,c\n" + "".join(
        f"{row['a']},{quoted(row['b'])},{quoted(row['c'])}\n" for row in rows
    )
    (tmp_path / "part-0.csv").write_text(text)
    read_all(tmp_path / "part-0.csv", tmp_path)
    own = json.loads((tmp_path / "answer.json").read_text())

    assert rows == own
    assert rows == forked(tmp_path / "part-0.csv", tmp_path)


def test_forked_processes_read_json_lines_after_their_parent_did(tmp_path):
    rows = [{"a": str(n), "b": {"c": [n, None]}} for n in range(10)]
    (tmp_path / "part-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pl.read_ndjson(tmp_path / "part-0.jsonl")
    read_all(tmp_path / "part-0.jsonl", tmp_path)

    assert rows == json.loads((tmp_path / "answer.json").read_text())
    assert rows == forked(tmp_path / "part-0.jsonl", tmp_path / "other")
