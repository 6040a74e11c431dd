"""Recognize directories in another system's layout, so that their files are not read as plain shards.

The files of such a directory are not simply its rows. A Delta table keeps deleted rows in its Parquet files, and a
Hugging Face dataset has JSON metadata files beside its shards. A directory is recognized by the names of its entries;
only `index.json`, which several systems write, is opened. Tables (Delta, Iceberg, Hudi) are also recognized from any
directory below them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import HeadraceError, InputError
from headrace.formats.detect import is_data_name
from headrace.storage.places import place_of

_LOOKED_INTO = 1 << 16  # bytes of index.json; its beginning identifies the writer
_NUMBERED_TAR = re.compile(r".*\d{2,}\.tar(\.gz)?", re.DOTALL)
_WRITERS = (  # by what they write in index.json
    (re.compile(rb'"format"\s*:\s*"mds"'), b'"shards"', "mosaic"),
    (re.compile(rb'"format"\s*:\s*"(json|csv|tsv|xsv)"'), b'"shards"', "mosaic text"),
    (re.compile(rb'"config"\s*:'), b'"chunks"', "litdata"),
    (re.compile(rb'"wids_version"'), b"", "webdataset"),
)
_DOWNLOADS = ("crdownload", "part", "partial", "incomplete", "download", "opdownload", "aria2", "filepart")
_PACKED = ("bz2", "xz", "zip", "lz4", "7z", "rar", "br", "lzma", "sz")
_UNFINISHED = re.compile(rf"(.*)\.({'|'.join([*_DOWNLOADS, *_PACKED])})", re.IGNORECASE | re.DOTALL)
_PARTITION = re.compile(r"[^=]+=.*|\d{1,4}|data", re.DOTALL)  # a directory inside a table, by its name


@dataclass(frozen=True, slots=True)
class Layout:
    """A directory layout of another system.

    name: with its article; export: what to do instead, with PATH for the directory as a Python literal.
    files: "parts" if the data files are not the rows; "plain" if they are, but the directory also holds other files;
    "saved" if the directory as a whole can be read, as `formats.saved` describes.
    """

    name: str
    export: str
    files: Literal["parts", "plain", "saved"] = "parts"

    def refusal(self, directory: str | Path) -> str:
        """Explain the kind of directory and what to do, without the directory's name in front."""
        export = self.export.replace("PATH", repr(str(directory)))
        return f"is {self.name}{'' if self.files == 'saved' else ', which headrace does not read as files'}; {export}"


def _python(code: str) -> str:
    return f"export it to Parquet in Python with `{code}`"


_ROWS_TO_PARQUET = "pq.write_table(pa.Table.from_pylist(list(rows)), PATH + '.parquet')"
_DELTA = Layout(
    "a Delta table",
    "put 'delta:' before its path (extra deltalake), or "
    + _python("import polars; polars.scan_delta(PATH).sink_parquet(PATH + '.parquet')")
    + " (needs deltalake)",
)
_ICEBERG = Layout(
    "an Iceberg table",
    "put 'iceberg:' before its path (extra pyiceberg), or "
    + _python(
        "import glob, os, polars; polars.scan_iceberg(max(glob.glob(PATH + '/metadata/*.metadata.json'),"
        " key=os.path.getmtime)).sink_parquet(PATH + '.parquet')"
    )
    + " (needs pyiceberg), or from its catalog",
)
_HUDI = Layout("a Hudi table", _python("spark.read.format('hudi').load(PATH).write.parquet(PATH + '-parquet')"))
_CONVERT = "convert it to Parquet once with `headrace convert PATH OUT`, or headrace.convert(PATH, OUT) in Python"
_LAYOUTS = {
    "lance": Layout(
        "a Lance dataset",
        "put 'lance:' before its path (extra pylance), or "
        + _python(
            "import lance, pyarrow.dataset as ds; ds.write_dataset(lance.dataset(PATH).scanner().to_reader(),"
            " PATH + '-parquet', format='parquet')"
        ),
    ),
    "mosaic": Layout(
        "a dataset of MosaicML Streaming (MDS)",
        _CONVERT,
    ),
    "mosaic text": Layout(
        "a dataset of MosaicML Streaming, as JSON or separated text",
        _python(
            "import streaming, pyarrow as pa, pyarrow.parquet as pq; rows = streaming.StreamingDataset(local=PATH, "
            f"shuffle=False, batch_size=1); {_ROWS_TO_PARQUET}"
        ),
    ),
    "litdata": Layout(
        "a litData dataset",
        _python(
            "import litdata, pyarrow as pa, pyarrow.parquet as pq; rows = litdata.StreamingDataset(PATH);"
            f" {_ROWS_TO_PARQUET}"
        ),
    ),
    "webdataset": Layout("a directory of WebDataset shards", _CONVERT),
    "zarr": Layout(
        "a Zarr store",
        "give series reader 'xarray' (extra xarray), or "
        + _python("import xarray; xarray.open_zarr(PATH).to_dataframe().reset_index().to_parquet(PATH + '.parquet')"),
    ),
    "tfds": Layout(
        "a dataset of TensorFlow Datasets",
        _python(
            "import tensorflow_datasets as tfds; made = tfds.builder_from_directory(PATH);"
            " [tfds.as_dataframe(made.as_dataset(split=name)).to_parquet(PATH + f'-{name}.parquet') for name in"
            " made.info.splits]"
        ),
    ),
    "saved dict": Layout(
        "a Hugging Face DatasetDict (save_to_disk)",
        "give this directory itself, PATH, or that of a split in it",
        "saved",
    ),
    "saved": Layout(
        "a Hugging Face dataset (save_to_disk)",
        "give this directory itself, PATH, as it lists which of its files count",
        "saved",
    ),
    "loaded": Layout(
        "a directory that Hugging Face's load_dataset prepared",
        "write each split as Parquet with `load_dataset(…, split=name).to_parquet(…)`, or give single files by name",
    ),
    "hub cache": Layout(
        "a download cache of the Hugging Face Hub",
        "give the directory of the data files below its directory snapshots",
        "plain",
    ),
    "hub": Layout(
        "a download of a Hugging Face Hub repository", "give the directory of its data files, such as data", "plain"
    ),
    "run": Layout(
        "a run that headrace prepared, with files about it beside its shards",
        "open it with headrace.open(PATH), or give the directory of one split's shards",
    ),
}


# A layout, names that must all exist, and names of which at least one must exist.
_MARKS: tuple[tuple[str, set[str], set[str]], ...] = (
    ("run", {"manifest.json"}, {"index.parquet", "receipts"}),
    ("lance", {"_versions"}, {"data", "_transactions", "_indices"}),
    ("saved", {"dataset_info.json", "state.json"}, set()),
    ("saved dict", {"dataset_dict.json"}, set()),
    ("tfds", {"dataset_info.json", "features.json"}, set()),
    ("loaded", {"dataset_info.json"}, set()),
    ("hub", {"dataset_infos.json"}, set()),
    ("hub cache", {"blobs", "refs", "snapshots"}, set()),
    ("zarr", set(), {"zarr.json", ".zgroup", ".zarray", ".zmetadata"}),
)


def layout_of(directory: Path, names: Collection[str]) -> Layout | None:
    """Recognize the layout of a directory from the names of its entries; None for an ordinary one."""
    table = _table(directory, names.__contains__)
    if table is not None:
        return table
    held = frozenset(names)
    word = next((word for word, every, some in _MARKS if every <= held and (not some or some & held)), None)
    if word is None and "index.json" in held:
        with suppress(OSError, HeadraceError), (directory / "index.json").open("rb") as file:
            start = file.read(_LOOKED_INTO)
            word = next((word for sign, key, word in _WRITERS if key in start and sign.search(start)), None)
    if word is None and any(_NUMBERED_TAR.fullmatch(name) for name in held):
        others = any(name.endswith((".csv", ".tsv", ".jsonl", ".parquet", ".arrow")) for name in held)
        word = None if others else "webdataset"
    return None if word is None else _LAYOUTS[word]


def _table(directory: Path, has: Callable[[str], bool]) -> Layout | None:
    if has("_delta_log"):
        return _DELTA
    if has(".hoodie") or has(".hoodie_partition_metadata"):
        return _HUDI
    if has("metadata"):
        with suppress(OSError, HeadraceError):  # it is not a directory, or cannot be read
            if any(path.name.endswith(".metadata.json") for path in (directory / "metadata").iterdir()):
                return _ICEBERG
    return None


def table_around(directory: Path) -> tuple[Path, Layout] | None:
    """Find the table that contains a directory, at any depth, and its layout.

    In an object store only the directories above partitions (`year=2024`, `2024`) and `data` are checked, because each
    check is a request.
    """
    inside, place = directory, place_of(directory)
    for above in place.absolute().parents:
        if place.reads == "requests" and (not _PARTITION.fullmatch(inside.name) or len(above.parts) < 2):
            return None
        layout = _table(above, lambda name, above=above: _is_directory(above / name))  # type: ignore[misc]
        if layout is not None:
            return above, layout
        inside = above
    return None


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # not permitted
        return False


def refuse_foreign(directory: Path, names: Collection[str]) -> None:
    """Raise `InputError` for a directory of another system, or inside a table. names: of its entries."""
    layout, root = layout_of(directory, names), directory
    if layout is None:
        root, layout = table_around(directory) or (directory, None)
    if layout is not None:
        raise InputError(f"{root}: {layout.refusal(root)}")


def table_of_file(path: Path) -> str | None:
    """Return a warning if a file belongs to a table; None if not, or if checking would cost requests.

    The rows of such a file may have been deleted or replaced.
    """
    directory = path.parent
    if place_of(path).reads == "requests":
        return None
    layout, root = _table(directory, lambda name: _is_directory(directory / name)), directory
    if layout is None:
        root, layout = table_around(directory) or (directory, None)
    if layout is None:
        return None
    return f"{path}: belongs to {root}, {layout.name}; its rows are read as they are, deleted and replaced ones too"


def refuse_unfinished(names: Iterable[str]) -> None:
    """Raise `InputError` for an unfinished or packed data file, because its rows would be missing."""
    for name in names:
        match = _UNFINISHED.fullmatch(name)
        if match is None or not is_data_name(os.path.basename(match[1])):
            continue
        remedy = "finish the download or delete it" if match[2].lower() in _DOWNLOADS else "decompress it or delete it"
        raise InputError(f"{name}: is not read, and its rows would be missing; {remedy}, or give files by pattern")
