"""`headrace convert`: tars and MDS shards become Parquet, sample for sample, or are refused with the reason."""

from __future__ import annotations

import base64
import io
import json
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from commands import headrace as command
from headrace.errors import CorruptShard, InputError, SettingsError

# Three samples as mosaicml-streaming 0.13.0 writes them, compressed.
_INDEX = """{"shards": [{"column_encodings": ["int", "ndarray", "str", "ndarray:int32", "float32"], "column_names": ["id",
"more", "text", "tokens", "x"], "column_sizes": [8, null, null, null, 4], "compression": "zstd:3", "format": "mds",
"hashes": ["xxh64"], "raw_data": {"basename": "shard.00000.mds", "bytes": 1318, "hashes": {"xxh64":
"e637cf8ad0329af3"}}, "samples": 3, "size_limit": 67108864, "version": 2, "zip_data": {"basename":
"shard.00000.mds.zstd", "bytes": 574, "hashes": {"xxh64": "b41c71a3c8d8f500"}}}], "version": 2}"""
_SHARD = (
    "D77#BU?v2m5dg#;0{{R3B>?~cM*#o;odN&=CItWhdm>|RY;|pJUuAA%Z)9n1XLBMtAX_47Zge6nAR=yLVRCX|d2@7fI%#fnGcsmuZ(&_"
    "5AZ}r8Wn^t{a%FU7cyw=TWo~nLb7^`wEFf-mY-}`baB^jHb7^mGB03-<dUJGSIx}W(a&2LBZDeR+b7&%XcxW~>b7^{IUu<b@X*M@8FgQ"
    "3iG%O$@c4cxheFOjo00;yD00aR5F#!Mo0{{R33IG5A2n8(x009C61O)~M2nh-c3=Iws5D^j+6crX17#SKH9337XAR!_nBqb&%C@Cr{EG"
    ";fCFflSSG&MFiI5|2yJUu=?KtV!7L`6nNNJ&adOifNtP*GA-R8>}2SXo+ITwPvYU}0ioWMyV&XlZI|Y;A6DaB*^Tbai%jczJqze0_d@f"
    "PsR8goTEOh>41ejE#<ukdcy;l$Dm3n3<ZJoSmMZprN9pq@|{(sHv)}tgWuEu(7hUw6(UkxVgH!yuH4^z`?@9#Kp$P$jQpf%+1cv(9zP<"
    ")YaD4*xB0K+}+;a;Njxq<mKk)=;`X~?CtLF@bU8V^!4`l`1$(#{Qds_Zo{br0suc<0uBHG00LP8Zo{bq0ssI2004kLA|PM_DMlDPKmt*"
    "MX@E@VX9)#VP&jK^-+7FpZUun@n2CMK&H#uR6PBiG+hJ)X3Q6b2_m)g6kitYDjj_?;TQiL&%aUPTMUFW8;g%3rDaS~&0SW"
)


def _tar(path: Path, members: Sequence[tuple[str, bytes]], mode: str = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # the mode is a parameter
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _photos(root: Path, shards: int = 3, *, masks: int = 2) -> list[tuple[str, bytes]]:
    every = []
    for shard in range(shards):
        own = []
        for sample in range(shard, 7):
            key = f"dir.d/{shard}-{sample}"
            own += [(f"{key}.bin", bytes([shard, sample])), (f"{key}.txt", f"né {sample}".encode())]
            own += [(f"{key}.cls", str(sample).encode()), (f"{key}.json", b'{"a": [%d]}' % sample)]
            own += [(f"{key}.seg.bin", b"\0\1")] * (sample % masks)
        _tar(root / f"photos-{shard:06}.tar", own)
        every += own
    return every


def _mds(root: Path, columns: Mapping[str, tuple[str, int | None]], rows: Sequence[Sequence[bytes]]) -> None:
    """Write a shard, as the format is described. columns: encoding and fixed size of each."""
    sized = [place for place, (_, size) in enumerate(columns.values()) if size is None]
    samples = [struct.pack(f"<{len(sized)}I", *(len(row[at]) for at in sized)) + b"".join(row) for row in rows]
    head = b"{}"
    first = 4 * (len(rows) + 2) + len(head)
    ends = np.cumsum([first, *map(len, samples)]).astype("<u4")
    data = struct.pack("<I", len(rows)) + ends.tobytes() + head + b"".join(samples)
    root.mkdir(parents=True, exist_ok=True)
    (root / "shard.00000.mds").write_bytes(data)
    entry = {
        "column_names": list(columns),
        "column_encodings": [encoding for encoding, _ in columns.values()],
        "column_sizes": [size for _, size in columns.values()],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}},
        "samples": len(rows),
        "version": 2,
        "zip_data": None,
    }
    (root / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))


def _rows(out: Path, split: str | None = None) -> list[dict[str, Any]]:
    dataset = headrace.open(out)
    rows: list[dict[str, Any]] = dataset[split or dataset.splits[0]].to_arrow().to_pylist()
    return rows


def test_a_shard_of_mosaic_streaming_itself_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "index.json").write_text(_INDEX)
    (tmp_path / "in" / "shard.00000.mds.zstd").write_bytes(base64.b85decode(_SHARD))

    made = headrace.convert(tmp_path / "in", tmp_path / "out")

    assert (made.rows, made.shards) == (3, 1)
    assert _rows(tmp_path / "out") == [
        {
            "id": row,
            "more": [value % 256 for value in range(300 * row + 1)],
            "text": "né" * row,
            "tokens": list(range(row + 1)),
            "x": row / 2,
        }
        for row in range(3)
    ]


def test_every_encoding_of_mds_keeps_its_values(tmp_path: Path) -> None:
    columns = {
        "blob": ("bytes", None), "text": ("str", None), "half": ("float16", 2), "whole": ("uint64", 8),
        "digits": ("str_int", None), "real": ("str_float", None), "exact": ("str_decimal", None),
        "record": ("json", None), "grid": ("ndarray:int16:2,3", 12), "lists": ("ndarray:int64", None),
    }  # fmt: skip
    rows, wanted = [], []
    for n in range(20):
        lists = np.arange(n * 20 + 1)
        width = 1 if lists.size < 256 else 2
        head = bytes([1 << 2 | width - 1]) + int(lists.size).to_bytes(width, "little")
        grid = np.arange(6, dtype=np.int16).reshape(2, 3) * n
        rows.append([
            b"\0" * (n % 3), ("ü" * n).encode(), np.float16(n / 3).tobytes(), np.uint64(2**63 + n).tobytes(),
            str(-n).encode(), str(n / 7).encode(), b"0.1000", b'{"n": %d}' % n, grid.tobytes(), head + lists.tobytes(),
        ])  # fmt: skip
        wanted.append({
            "blob": b"\0" * (n % 3), "text": "ü" * n, "half": float(np.float16(n / 3)), "whole": 2**63 + n,
            "digits": -n, "real": n / 7, "exact": "0.1000", "record": f'{{"n": {n}}}', "grid": grid.tolist(),
            "lists": lists.tolist(),
        })  # fmt: skip
    _mds(tmp_path / "in" / "train", columns, rows)
    _mds(tmp_path / "in" / "val", columns, rows[:4])

    headrace.convert(tmp_path / "in", tmp_path / "out")

    assert headrace.open(tmp_path / "out").splits == ("train", "val")
    assert _rows(tmp_path / "out", "train") == wanted
    assert _rows(tmp_path / "out", "val") == wanted[:4]


@pytest.mark.parametrize(
    ("encoding", "size", "value", "reason"),
    [
        ("pkl", None, b"", "may run any code"),
        ("pil", None, b"", "is not read"),
        ("ndarray:float32", None, bytes([2 << 2, 1, 1]) + b"\0" * 4, "2 dimensions"),
        ("str_int", None, b"many", "is not what its encoding"),
        ("str", None, b"\xff", "is not what its encoding"),
        ("ndarray:int32", None, b"", "has a value of 0 bytes"),
        ("ndarray:int32:2", None, bytes(4), "has a value of 4 bytes"),
        ("int", 4, bytes(4), "has a value of 4 bytes"),
    ],
)
def test_what_cannot_be_read_of_mds_is_refused(
    tmp_path: Path, encoding: str, size: int | None, value: bytes, reason: str
) -> None:
    _mds(tmp_path / "in", {"x": (encoding, size)}, [[value]])

    with pytest.raises(InputError, match=reason) as caught:
        headrace.convert(tmp_path / "in", tmp_path / "out")
    assert "'x'" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [{"samples": "1"}, {"raw_data": {"basename": "../shard.00000.mds"}}])
def test_an_index_of_mds_that_names_files_elsewhere_or_no_numbers_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    _mds(tmp_path / "deep" / "in", {"x": ("int", 8)}, [[bytes(8)]])
    index = tmp_path / "deep" / "in" / "index.json"
    told = json.loads(index.read_text())
    told["shards"][0] = {**told["shards"][0], **change}
    index.write_text(json.dumps(told))

    with pytest.raises(InputError, match=r"index\.json: is not an index of MDS shards"):
        headrace.convert(tmp_path / "deep", tmp_path / "out")
    assert {tmp_path / "deep"} == {path for path in tmp_path.iterdir() if not path.name.startswith(".")}


def test_a_damaged_shard_of_mds_is_found_wherever_it_is_damaged(tmp_path: Path) -> None:
    _mds(tmp_path / "in", {"n": ("int", 8), "t": ("str", None)}, [[bytes(8), b"abc"]] * 3)
    shard = tmp_path / "in" / "shard.00000.mds"
    whole = shard.read_bytes()
    heads = [*range(4 * 5), *(struct.unpack_from("<5I", whole)[1] + place for place in range(4))]

    for place in heads:  # the count, the begins, the size of the first text
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CorruptShard, match=r"shard\.00000\.mds"):
            headrace.convert(tmp_path / "in", tmp_path / "out")
    shard.write_bytes(whole[:-1])
    with pytest.raises(CorruptShard, match="index.json says"):
        headrace.convert(tmp_path / "in", tmp_path / "out")


def test_samples_of_tars_equal_those_of_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    _photos(tmp_path / "in", masks=1)  # none: it refuses samples that lack a field

    made = headrace.convert(tmp_path / "in", tmp_path / "out")

    files = sorted(str(path) for path in (tmp_path / "in").iterdir())
    wanted = datasets.load_dataset(
        "webdataset", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path / "cache")
    )
    texts = [
        (row["__key__"], row["txt"].decode() if isinstance(row["txt"], bytes) else row["txt"], row["bin"])
        for row in wanted
    ]
    rows = _rows(tmp_path / "out")
    assert [(row["__key__"], row["txt"], row["bin"]) for row in rows] == texts
    assert made.rows == len(texts)


def test_fields_of_tars_have_the_types_of_their_extensions(tmp_path: Path) -> None:
    members = _photos(tmp_path / "in")

    made = headrace.convert(tmp_path / "in", tmp_path / "out")

    assert made.columns == {
        "__key__": "string", "bin": "binary", "cls": "int64", "json": "string", "seg.bin": "binary", "txt": "string"
    }  # fmt: skip
    by_name = dict(members)
    for row in _rows(tmp_path / "out"):
        key = row["__key__"]
        assert row["cls"] == int(by_name[f"{key}.cls"])
        assert row["json"].encode() == by_name[f"{key}.json"]
        assert row["seg.bin"] == by_name.get(f"{key}.seg.bin")


def test_files_of_no_sample_are_counted_by_reason(tmp_path: Path) -> None:
    _tar(tmp_path / "a.tar.gz", [("__meta__/a.txt", b""), ("README", b""), ("0.txt", b"x")], "w:gz")

    shown = command("convert", tmp_path / "a.tar.gz", tmp_path / "out")

    assert shown.returncode == 0, shown.stderr
    assert "files without an extension: 1" in shown.stdout
    assert "files about the archive (__NAME__): 1" in shown.stdout
    assert [row["txt"] for row in _rows(tmp_path / "out")] == ["x"]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("0.cls", b"cat")], "'0.cls': is b'cat', not an integer"),
        ([("0.cls", b"9" * 20)], "'0.cls': is b'99999999999999999999', not an integer of 64 bits"),
        ([("0.txt", b"\xff")], "not UTF-8"),
        ([("0.txt", b"a"), ("0.TXT", b"b")], "two files 'txt'"),
        ([("README", b"")], "no shard holds a file named KEY.FIELD"),
        ([("0.__key__", b"")], "the column of keys"),
    ],
)
def test_tars_that_cannot_be_read_are_refused(tmp_path: Path, members: list[tuple[str, bytes]], reason: str) -> None:
    _tar(tmp_path / "in" / "a.tar", members)

    with pytest.raises(InputError) as caught:
        headrace.convert(tmp_path / "in", tmp_path / "out")
    assert reason in str(caught.value)


def test_a_conversion_that_failed_goes_on_after_its_last_shard(tmp_path: Path) -> None:
    members = _photos(tmp_path / "in")
    last = tmp_path / "in" / "photos-000002.tar"
    whole = last.read_bytes()
    _tar(last, [("9.cls", b"no number"), ("9.bin", b""), ("9.json", b""), ("9.txt", b""), ("9.seg.bin", b"")])
    with pytest.raises(InputError, match="no number"):
        headrace.convert(tmp_path / "in", tmp_path / "out")
    (work,) = tmp_path.glob(".tmp-out*")
    kept = {path.name: path.stat().st_mtime_ns for path in work.glob("*.parquet")}
    assert sorted(kept) == ["photos-000000.parquet", "photos-000001.parquet"]
    assert not (tmp_path / "out").exists()

    with pytest.raises(InputError, match="no number"):  # the same files: finished shards stay
        headrace.convert(tmp_path / "in", tmp_path / "out")
    assert {path.name: path.stat().st_mtime_ns for path in work.glob("*.parquet")} == kept

    last.write_bytes(whole)  # another file: all shards are made anew
    headrace.convert(tmp_path / "in", tmp_path / "out")
    assert len(_rows(tmp_path / "out")) == len({name.partition(".cls")[0] for name, _ in members if ".cls" in name})
    assert not work.exists()


def test_a_tar_that_is_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    _photos(tmp_path / "in", 1)
    path = tmp_path / "in" / "photos-000000.tar"
    whole = path.read_bytes()
    last = whole.rindex(b"\0ustar") // 512 * 512

    for cut in (100, 512, 600, 1024, 1500, last, last + 512, last + 520, last + 1024):
        path.write_bytes(whole[:cut])
        with pytest.raises(CorruptShard, match="photos-000000"):
            headrace.convert(tmp_path / "in", tmp_path / "out")
    path.write_bytes(whole[:last] + b"x" + whole[last + 1 :])  # a header that does not fit its checksum
    with pytest.raises(CorruptShard, match="photos-000000"):
        headrace.convert(tmp_path / "in", tmp_path / "out")


def test_an_output_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    _photos(tmp_path / "in", 1)
    headrace.convert(tmp_path / "in", tmp_path / "out")

    with pytest.raises(SettingsError, match="is not empty"):
        headrace.convert(tmp_path / "in", tmp_path / "out")
    with pytest.raises(InputError, match="neither tars nor an index"):
        headrace.convert(tmp_path / "out", tmp_path / "other")


def test_shards_with_other_columns_than_the_first_are_refused(tmp_path: Path) -> None:
    _mds(tmp_path / "in", {"n": ("int", 8)}, [[bytes(8)]])
    index = tmp_path / "in" / "index.json"
    first = json.loads(index.read_text())["shards"]
    (tmp_path / "in" / "shard.00000.mds").rename(tmp_path / "in" / "shard.00001.mds")
    first[0]["raw_data"]["basename"] = "shard.00001.mds"
    _mds(tmp_path / "in", {"n": ("float64", 8)}, [[bytes(8)]])
    both = json.loads(index.read_text())
    index.write_text(json.dumps({**both, "shards": both["shards"] + first}))

    with pytest.raises(InputError, match="has other columns or types than"):
        headrace.convert(tmp_path / "in", tmp_path / "out")
