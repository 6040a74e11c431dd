"""Small files of text that are looked at together are found to be what each of them is alone."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.evidence import Evidence
from headrace.formats.joined import look_at_small
from headrace.formats.source import look, look_at_all

HEADER = "id,name,at"
CSV = [
    f"{HEADER}\n1,a,2024-01-02\n",
    f"{HEADER}\n2,b,2024-01-03",
    f"{HEADER}\n2,b,2024-01-03\n3,,x\n",
    f"{HEADER}\n",
    HEADER,
    f'{HEADER}\n4,"a\nb",2024-01-03\n',
    f'{HEADER}\n4,"a""b\n",2024-01-03\n',
    f"{HEADER}\r\n4,a,2024-01-03\r\n",
    f"{HEADER}\n4,a,2024-01-03\r\n",
    f"{HEADER}\n\n4,a,2024-01-03\n",
    f"{HEADER}\n4,a,2024-01-03\n\n\n5,b,2024-01-03\n",
    f"\ufeff{HEADER}\n1.5,a,2024-01-03\n",
    "id;name;at\n1;a;2024-01-02\n",
    "id,name;at\n1,a;2024-01-02\n",
    "id\n1\n",
    "",
    "\n",
]
BROKEN_CSV = [
    f'{HEADER}\n4,"a,2024-01-03\n',
    f"{HEADER}\n4,a\n",
    f"{HEADER}\n4,a,2024-01-03\r",
    f"{HEADER}\n4,a,2024-01-03\r5,b,2024-01-03\n",
    f"{HEADER}\n4,\xff,2024-01-03\n",
    "PK\x03\x04,a\n1,2\n",
]
LINES = [
    '{"a": 1, "b": "x"}\n',
    '{"a": 1, "b": "x"}',
    '{"b": "x", "a": 1}\n',
    '{"a": 1.5, "b": "x"}\n',
    '{"a": 3.0, "b": "x"}\n{"a": 3, "b": "y"}\n',
    '{"a": null, "b": "x"}\n',
    '{"a": 2}\n{"a": null, "b": null}\n',
    '{"a": 2, "b": "2024-01-01T00:00:00"}\n',
    '{"a": 2, "c": true}\n',
    '{"a": 2, "c": {"d": 1}}\n',
    '{"a": 2, "d": []}\n',
    '\n{"a": 2}\n\n',
    ' {"a": 2}\n',
    '\ufeff{"a": 2}\n',
    '{"a": 9007199254740995}\n',
    '{"a": 1e5, "b": "\\u00e9"}\n',
    '{"x__DOT__y": 1}\n',
    "",
]
BROKEN_LINES = [
    '{"a": 1, "a": 2}\n',
    '{"a": NaN}\n',
    '{"a": 1\n',
    '{"a": "x"}\n',
    "{}\n",
    "[1]\n",
    '{"a": 18446744073709551616}\n',
]


def seen_alone(path, evidence):
    try:
        return look(path, path.name, evidence=evidence)
    except HeadraceError as error:
        return str(error)


def told_apart(found):
    shard, spans = found
    return shard, shard.schema, spans


def check_alike(directory, texts, ending):
    files = []
    for number, text in enumerate(texts):
        path = directory / f"part-{number}.{ending}"
        path.write_bytes(text.encode("latin-1") if "\xff" in text else text.encode())
        files.append((path, path.name))
    sizes = [path.stat().st_size for path, _ in files]
    evidence = Evidence()
    together = look_at_small(files, sizes, PLAIN, evidence)
    alone = Evidence()
    for number, (path, _) in enumerate(files):
        expected = seen_alone(path, Evidence() if number not in together else alone)
        if number in together:
            assert told_apart(expected) == told_apart(together[number])
    assert alone.words == evidence.words
    return together


@given(st.lists(st.sampled_from(CSV + BROKEN_CSV), min_size=1, max_size=12))
def test_small_csv_files_are_seen_as_each_is_alone(tmp_path_factory, texts):
    check_alike(tmp_path_factory.mktemp("csv"), texts, "csv")


@given(st.lists(st.sampled_from(LINES + BROKEN_LINES), min_size=1, max_size=12))
def test_small_json_files_are_seen_as_each_is_alone(tmp_path_factory, texts):
    check_alike(tmp_path_factory.mktemp("jsonl"), texts, "jsonl")


def test_plain_small_files_are_all_looked_at_together(tmp_path):
    rows = [f"{HEADER}\n{number},n{number},2024-01-02\n" for number in range(20)]
    assert set(range(20)) == set(check_alike(tmp_path, rows, "csv"))
    rows = [json.dumps({"a": number, "b": number / 2, "c": None}) for number in range(20)]
    assert set(range(20)) == set(check_alike(tmp_path, rows, "jsonl"))


def test_large_compressed_and_lone_files_are_looked_at_alone(tmp_path):
    (tmp_path / "a.csv").write_text(HEADER + "\n" + "1,a,b\n" * 20_000)
    (tmp_path / "b.csv").write_text(HEADER + "\n1,a,b\n")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(f"{HEADER}\n1,a,b\n".encode()))
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(f"{HEADER}\n1,a,b\n".encode()))
    files = [(path, path.name) for path in sorted(tmp_path.iterdir())]
    sizes = [path.stat().st_size for path, _ in files]
    assert {} == look_at_small(files, sizes, PLAIN)
    rows = [sum(span.rows for span in spans) for _, spans in look_at_all(files, sizes)]
    assert [20_000, 1, 1, 1] == rows


@pytest.mark.parametrize("dialect", [TextDialect(quoting="none"), TextDialect(encoding="latin-1")])
def test_files_of_other_dialects_are_looked_at_alone(tmp_path, dialect):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(HEADER + '\n1,"a,b\n')
    files = [(path, path.name) for path in sorted(tmp_path.iterdir())]
    assert {} == look_at_small(files, [20, 20], dialect)
