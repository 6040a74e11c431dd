"""Small gzip and ZIP files that become gigabytes are refused before they do; honest ones are read."""

import gzip
import io
import zipfile
import zlib
from pathlib import Path

import pytest

from headrace.errors import CorruptShard, InputError
from headrace.gate.compressed import check_archive, gunzip
from headrace.packing.chats.settings import read_tokenizer
from headrace.series.pipelines.objects import from_skops
from raised import raised


def squeezed(size: int) -> bytes:
    """So many zeros, as gzip."""
    made = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [made.compress(bytes(1 << 20)) for _ in range(size >> 20)]
    return b"".join([*parts, made.flush()])


def archive(size: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for number in range(size >> 24):
            made.writestr(str(number), bytes(1 << 24))
    return file.getvalue()


def test_what_is_honest_is_decompressed() -> None:
    text = b"text" * 100_000

    assert text == gunzip(gzip.compress(text))
    check_archive(archive(64 << 20))


@pytest.mark.parametrize(
    "data",
    [b"text", squeezed(1 << 20)[:-9], b"\x1f\x8b\x08" + b"x" * 20],
    ids=["text", "cut", "noise"],
)
def test_what_is_damaged_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        gunzip(data)


def test_bombs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json.gz").write_bytes(squeezed(80 << 20))
    skops = archive(80 << 20)

    with raised(InputError, path=tmp_path / "tokenizer.json.gz"):
        read_tokenizer(tmp_path)
    with raised(CorruptShard, path="x.skops"):
        from_skops(skops, "x.skops")


@pytest.mark.parametrize(
    "config",
    [
        '{"a":' * 100_000,
        "[]",
        '{"chat_template": 7}',
        '{"chat_template": [{"name": "default"}, 5, {"name": 3, "template": "x"}]}',
    ],
    ids=["deep", "list", "number", "entries"],
)
def test_a_strange_configuration_of_a_tokenizer_is_named_or_names_no_template(
    tmp_path: Path, config: str
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(config)

    if "chat_template" in config:
        assert {} == read_tokenizer(tmp_path).templates
        return
    with raised(InputError, path=tmp_path / "tokenizer_config.json"):
        read_tokenizer(tmp_path)
