"""A name and its content must agree; where they do not, the error says both."""

import bz2
import gzip
import io
import lzma
import zipfile
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import InputError
from headrace.formats.registry import FileType, detect, file_type_of_name
from raised import raised

TEXT = b"id,date\n1,2024-01-01\n"
LINES = b'{"id": 1, "date": "2024-01-01"}\n'


def parquet_bytes() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": [1]}), sink)
    return sink.getvalue()


def zip_bytes(data: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.csv", data)
    return sink.getvalue()


CODECS = {
    "none": lambda data: data,
    "gz": gzip.compress,
    "zst": lambda data: pa.Codec("zstd").compress(data).to_pybytes(),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zip": zip_bytes,
}
CONTENTS = {"csv": TEXT, "jsonl": LINES, "parquet": parquet_bytes()}
NAMES = [
    f"part-0.{format_}{tail}"
    for format_ in ("csv", "tsv", "jsonl", "parquet")
    for tail in ("", ".gz", ".zst")
]


@pytest.mark.parametrize("name", NAMES)
def test_content_is_believed_only_under_its_own_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    promised = file_type_of_name(name)
    assert promised is not None
    for content, codec in product(CONTENTS, CODECS):
        path.write_bytes(CODECS[codec](CONTENTS[content]))
        agrees = promised.compression == codec and (
            promised.format.name == content or (promised.format.name, content) == ("tsv", "csv")
        )
        if agrees:
            assert promised == detect(path), (content, codec)
            continue
        with pytest.raises(InputError, match="rename it|fetch it again") as caught:
            detect(path)
        assert str(path) == caught.value.path, (content, codec)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("part-0.csv", FileType.named("csv")),
        ("PART-0.CSV.GZ", FileType.named("csv", "gz")),
        ("a.tsv.zst", FileType.named("tsv", "zst")),
        ("a.ndjson", FileType.named("jsonl")),
        ("a.json.gz", FileType.named("json", "gz")),
        ("part-00000-c000.snappy.parquet", FileType.named("parquet")),
        ("a.b.c.parquet.gz", FileType.named("parquet", "gz")),
        ("_SUCCESS", None),
        ("_part-0.csv", None),
        (".part-0.csv.crc", None),
        (".tmp-part-0.csv", None),
        ("notes.txt", None),
        ("part-0.csv.bz2", None),
        ("csv", None),
    ],
)
def test_a_name_promises_a_kind(name: str, kind: FileType | None) -> None:
    assert kind == file_type_of_name(name)


@pytest.mark.parametrize("header", ["ORCID,date", "PAR1,PAR2", "ARROW1,b", "BZh,b", "Obj,b"])
def test_a_header_that_begins_like_a_binary_format_is_text(tmp_path: Path, header: str) -> None:
    path = tmp_path / "part-0.csv"
    path.write_bytes(header.encode() + b"\n1,2\n")

    assert FileType.named("csv") == detect(path)


def test_a_json_array_under_a_csv_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "part-0.csv"
    path.write_bytes(b'[{"id": 1}]')

    with raised(InputError, remedy="rename it to what it is"):
        detect(path)


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes(TEXT)

    with pytest.raises(
        InputError,
        match=r"cannot tell the format.*\.csv, \.tsv, \.jsonl, \.json, \.parquet or \.arrow",
    ):
        detect(path)


def test_a_byte_order_mark_before_json_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "part-0.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + LINES)

    assert FileType.named("jsonl") == detect(path)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"
REPLY = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>'


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (POINTER, "Git LFS pointer.*git lfs pull"),
        (PAGE, "web page.*download"),
        (REPLY, "XML.*download"),
        (b"/annex/objects/SHA256E-s1--a.csv\n", "git-annex.*git annex get"),
    ],
)
def test_what_stands_in_place_of_data_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(InputError, match=message):
        detect(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.feather", b"FEA1\x00\x00\x00\x00", "Feather version 1"),
        ("a.csv", b"SQLite format 3\x00", "SQLite"),
        ("a.parquet", b"\x89HDF\r\n\x1a\n", "HDF5"),
        ("a.csv", b"\x93NUMPY\x01\x00v\x00", "NumPy"),
        ("a.parquet", b"\x80\x04\x95\x10\x00\x00", "pickle"),
        ("a.csv", b"x.csv".ljust(257, b"\x00") + b"ustar\x00", "tar archive"),
        ("a.parquet", b"Obj\x01\x04", "Avro"),
        ("a.csv", b"ORC\x0a\x03", "ORC"),
    ],
)
def test_other_formats_under_our_names_are_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(InputError, match=f"the content is .*{message}.*convert"):
        detect(path)


def test_a_column_called_html_is_no_web_page(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"html,<html>\n1,2\n")

    assert FileType.named("csv") == detect(path)
