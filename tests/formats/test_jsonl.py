"""JSON lines: types come from JSON, one per key for the whole file; nothing is re-typed on the way."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import InputError
from headrace.formats import jsonl
from headrace.formats.json_text import array_as_lines
from headrace.formats.source import copied_records, read_chunks, survey
from laws import examples
from raised import raised
from tables import fresh, write_bytes


def written(tmp_path: Path, text: str | bytes, name: str = "part-0.jsonl") -> Path:
    return write_bytes(tmp_path / name, text.encode() if isinstance(text, str) else text)


def rows(path: Path) -> list[dict[str, object]]:
    shard = survey(path, path.name)
    return [row for chunk in read_chunks(shard) for row in chunk.table().to_pylist()]


def types(path: Path) -> dict[str, pa.DataType]:
    schema = survey(path, path.name).schema
    return dict(zip(schema.names, schema.types, strict=True))


def test_types_are_those_of_json(tmp_path: Path) -> None:
    path = written(tmp_path, '{"t": "007", "i": 7, "f": 0.5, "b": true, "n": null, "l": [1, 2]}\n')

    assert {
        "t": pa.string(), "i": pa.int64(), "f": pa.float64(), "b": pa.bool_(), "n": pa.null(), "l": pa.list_(pa.int64()),
    } == types(path)  # fmt: skip


def test_19_digit_integers_keep_every_digit(tmp_path: Path) -> None:
    path = written(tmp_path, '{"id": 1234567890123456789}\n{"id": -9223372036854775808}\n')

    assert [1234567890123456789, -(2**63)] == [row["id"] for row in rows(path)]


@pytest.mark.parametrize(
    "digits", ["12345678901234567890", "9223372036854775808", "123456789012345678901234567890"]
)
def test_an_integer_that_fits_no_64_bits_is_an_error(tmp_path: Path, digits: str) -> None:
    path = written(tmp_path, f'{{"id": {digits}}}\n')

    with raised(InputError, row="line 1", column="id", value=digits, remedy="write it as text"):
        survey(path, path.name)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", '"x"'), ('"x"', "1"), ("true", "1"), ("1", "true"), ("true", '"x"'), ('{"a": 1}', "[1]"), ("[1]", "1"), ('["x"]', "[1]"),
     ('{"a": "x"}', '{"a": 1}'), ('"x"', "0.5"), ('"x"', "[]")],
)  # fmt: skip
@pytest.mark.parametrize("name", ["part-0.jsonl", "part-0.json"])
def test_two_types_under_one_key_are_an_error(
    tmp_path: Path, one: str, other: str, name: str
) -> None:
    objects = [f'{{"k": {one}}}', f'{{"k": {other}}}']
    path = written(
        tmp_path,
        "\n".join(objects) + "\n" if name.endswith("l") else f"[{','.join(objects)}]",
        name,
    )

    with pytest.raises(InputError, match=r"part-0\.json.*: .*(type|JSON)"):
        survey(path, path.name)


def test_two_types_are_an_error_also_when_far_apart(tmp_path: Path) -> None:
    path = written(
        tmp_path, '{"k": 1, "pad": "%s"}\n' % ("x" * 1000) * 20_000 + '{"k": "x", "pad": ""}\n'
    )

    with raised(InputError, column="k"):
        survey(path, path.name)


def test_whole_numbers_and_fractions_are_fractions_where_that_is_exact(tmp_path: Path) -> None:
    path = written(tmp_path, '{"k": 5}\n{"k": 5.99}\n{"k": -3}\n')

    assert [5.0, 5.99, -3.0] == [row["k"] for row in rows(path)]


@pytest.mark.slow
def test_whole_numbers_and_fractions_are_fractions_also_when_far_apart(tmp_path: Path) -> None:
    path = written(
        tmp_path, '{"k": 1, "pad": "%s"}\n' % ("x" * 1000) * 20_000 + '{"k": 0.5, "pad": ""}\n'
    )

    assert pa.float64() == types(path)["k"]
    assert [1.0] * 20_000 + [0.5] == [row["k"] for row in rows(path)]


@pytest.mark.parametrize("gap", [0, 20_000])
def test_whole_numbers_that_no_fraction_type_holds_are_an_error_beside_fractions(
    tmp_path: Path, gap: int
) -> None:
    path = written(
        tmp_path,
        '{"k": 9007199254740993}\n' + '{"pad": "%s"}\n' % ("x" * 1000) * gap + '{"k": 2.5}\n',
    )

    with raised(InputError, column="k"):
        survey(path, path.name)


def test_an_absent_key_is_null(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a": 1}\n{"b": "x"}\n{}\n')

    assert [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": None, "b": None}] == rows(path)
    assert {"a", "b"} == survey(path, path.name).null_columns


def test_a_key_that_every_row_has_is_not_null(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a": 1, "b": 1}\n{"a": 2, "b": null}\n')

    assert {"b"} == survey(path, path.name).null_columns


@pytest.mark.parametrize("name", ["part-0.json", "part-0.json.gz", "part-0.json.zst"])
@pytest.mark.parametrize(
    "text",
    [
        '[{"a": 1}, {"a": 2, "b": "x"}]',
        '[\n {"a": 1},\n {"a": 2,\n "b": "x"}\n]\n',
        '{"a": 1}\n{"a": 2, "b": "x"}\n',
    ],
)
def test_a_json_file_is_an_array_or_lines(tmp_path: Path, name: str, text: str) -> None:
    path = written(tmp_path, text, name)

    assert [{"a": 1, "b": None}, {"a": 2, "b": "x"}] == rows(path)


def test_an_array_in_a_jsonl_file_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, '[{"a": 1}, {"a": 2}]\n')

    with pytest.raises(InputError, match=r"part-0\.jsonl: "):
        survey(path, path.name)


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        '[{"a": 1}, 2]',
        '[{"a": 1}',
        "[]x",
        '[{"a": 1} {"a": 2}]',
        '[{"a": 1},]',
        '[,{"a": 1}]',
        '[{"a": 1},,{"a": 2}]',
        '[{"a": 1}]]',
        '[[{"a": 1}]]',
        '[{"a": 1], {]',
    ],
)
def test_an_array_of_other_things_is_an_error(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text, "part-0.json")

    with pytest.raises(InputError, match=r"part-0\.json"):
        survey(path, path.name)


@pytest.mark.parametrize("name", ["part-0.jsonl", "part-0.json", "part-0.jsonl.gz"])
def test_a_file_of_0_bytes_has_no_rows(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, "", name)

    assert [] == rows(path)


def test_an_empty_array_has_no_rows(tmp_path: Path) -> None:
    path = written(tmp_path, "[]", "part-0.json")

    assert [] == rows(path)


@pytest.mark.parametrize("blank", ["\n", "\r\n", "  \n", "\t\r\n", "\n \n\n"])
def test_blank_lines_are_no_rows(tmp_path: Path, blank: str) -> None:
    path = written(tmp_path, f'{blank}{{"a": 1}}\n{blank}{{"a": 2}}\n{blank}')
    chunks = list(read_chunks(survey(path, path.name)))

    assert [1, 2] == [row["a"] for row in rows(path)]
    assert 2 == sum(chunk.rows for chunk in chunks)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path, "\ufeff" + '{"a": 1}' + ending)
    (chunk,) = read_chunks(survey(path, path.name))

    assert [{"a": 1}] == rows(path)
    assert chunk.sizes() is None


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}\n{"a": 2',
        '{"a": 1}\n{"a"',
        '{"a": 1}\n{"a": 2}}\n',
        '{"a": 1}{"a": 2}\n',
        '{"a": 1}\n7\n',
        '{"a": 1}\nnull\n',
    ],
)
def test_what_is_no_object_a_line_is_an_error(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)

    with raised(InputError, path=path, row="line 2" if text[8] == "\n" else "line 1"):
        survey(path, path.name)


@pytest.mark.parametrize("name", ["part-0.jsonl.gz", "part-0.jsonl.zst"])
def test_a_truncated_file_is_an_error(tmp_path: Path, name: str) -> None:
    path = written(
        tmp_path, "".join(json.dumps({"a": n * 7919 % 10007}) + "\n" for n in range(20_000)), name
    )
    path.write_bytes(path.read_bytes()[:-20])

    with raised(InputError, remedy="fetch it again"):
        survey(path, path.name)


def test_bytes_that_are_not_utf8_are_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"a": "caf\xe9"}\n')

    with raised(InputError, path=path, row="line 1", remedy="utf-8"):
        survey(path, path.name)


def test_dot_words_in_keys_are_dots_and_stay_words_in_values(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a__DOT__b": "x__DOT__y"}\n')

    assert [{"a.b": "x__DOT__y"}] == rows(path)


def test_a_real_dot_in_a_key_survives_dot_words_in_values(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a.b": 1, "c": "__DOT__"}\n')

    assert [{"a.b": 1, "c": "__DOT__"}] == rows(path)


json_rows = st.lists(st.fixed_dictionaries({"i": st.none() | st.integers(-(2**63), 2**63 - 1), "t": st.none() | st.text(st.characters(codec="utf-8"), max_size=5)}), min_size=1, max_size=8)  # fmt: skip


@pytest.mark.slow
@given(json_rows, st.integers(1, 60))
@settings(max_examples=examples(150))
def test_any_chunk_size_gives_the_rows_that_the_json_module_reads(
    tmp_path: Path, objects: list[dict[str, object]], chunk_bytes: int
) -> None:
    path = written(
        fresh(tmp_path), "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in objects)
    )
    shard = survey(path, path.name)
    chunks = list(jsonl.chunks(shard, chunk_bytes))

    assert objects == [row for chunk in chunks for row in chunk.table().to_pylist()]
    sizes = np.concatenate([chunk.sizes() for chunk in chunks])
    copied = [
        record for part in copied_records(shard, sizes, chunk_bytes) for record in part.to_pylist()
    ]
    assert path.read_bytes() == b"".join(copied)
    assert len(objects) == len(copied)


@given(json_rows)
@settings(max_examples=examples(100))
def test_what_is_rendered_the_json_module_reads(objects: list[dict[str, object]]) -> None:
    table = pa.Table.from_pylist(objects, pa.schema([("i", pa.int64()), ("t", pa.string())]))

    assert objects == [
        json.loads(line) for line in jsonl.render(table).decode().split("\n") if line
    ]


nested = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.text(alphabet=st.sampled_from('a"\\{}[],:\n é'), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "}", '"', "\\"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "{", '"', "\\"]), nested, max_size=3), max_size=6
    ),
    st.sampled_from([None, 1]),
    st.booleans(),
)
@settings(max_examples=examples(300))
def test_an_array_becomes_one_line_for_each_object(
    objects: list[dict[str, object]], indent: int | None, ascii_: bool
) -> None:
    lines = array_as_lines(json.dumps(objects, indent=indent, ensure_ascii=ascii_).encode())

    assert objects == [json.loads(line) for line in lines.split(b"\n")[:-1]]
    assert (not objects) == (lines == b"")


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (b'null\n{"a": 1}\n', "one object per line"),
        (b"\n12\n", "one object per line"),
        (b'// first\n{"a": 1}\n', "comments"),
        (b'/* first */ {"a": 1}\n', "comments"),
        ('{"a": 1}\n'.encode("utf-16"), "iconv -f utf-16"),
        ('{"a": 1}\n'.encode("utf-16-le"), "iconv -f utf-16"),
        ('{"a": 1}\n'.encode("utf-32"), "iconv -f utf-32"),
    ],
    ids=["null", "number", "line comment", "comment", "utf-16", "utf-16 without mark", "utf-32"],
)
@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_what_is_nearly_json_is_refused_with_what_it_lacks(
    tmp_path: Path, data: bytes, remedy: str, suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(data)

    with raised(InputError, path=path, remedy=remedy):
        headrace.open(path, cache_dir=tmp_path / "cache")
