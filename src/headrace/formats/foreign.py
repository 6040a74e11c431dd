"""Recognise directories in another system's layout, whose files are not simply its rows.

A Delta table keeps deleted rows in its Parquet files, and a Hugging Face dataset has JSON metadata
beside its shards. Such a directory is refused with the line of Python that hands its rows over as a
table, because any object with an Arrow stream is a source. A directory is recognised by the names
of its entries; only `index.json`, which several systems write, is opened. Tables are also
recognised from any directory below them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from headrace.errors import HeadraceError, InputError
from headrace.formats.registry import is_data_name
from headrace.storage.places import place_of

_INDEX_BYTES = 1 << 16  # of index.json; its beginning identifies the writer
_NUMBERED_TAR = re.compile(r".*\d{2,}\.tar(\.gz)?", re.DOTALL)
_DOWNLOADS = (
    "crdownload",
    "part",
    "partial",
    "incomplete",
    "download",
    "opdownload",
    "aria2",
    "filepart",
)
_PACKED = ("bz2", "xz", "zip", "lz4", "7z", "rar", "br", "lzma", "sz")
_UNFINISHED = re.compile(rf"(.*)\.({'|'.join([*_DOWNLOADS, *_PACKED])})", re.IGNORECASE | re.DOTALL)
# a directory inside a table, by its name
_TABLE_DIRECTORY = re.compile(r"[^=]+=.*|\d{1,4}|data", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Layout:
    """A directory layout of another system.

    name: with its article. remedy: Python that makes `source` of its rows, or a sentence that
    begins with "give"; PATH stands for the directory as a Python literal. marks: names that must
    exist, with `|` between alternatives; none if other means recognise the layout. index: a pattern
    that must match the beginning of index.json.
    files: "parts" if the data files are not the rows; "plain" if they are, but the directory also
    holds other files; "saved" if the directory as a whole can be read, as `formats.saved`
    describes.
    """

    name: str
    remedy: str
    marks: str = ""
    index: bytes = b""
    files: Literal["parts", "plain", "saved"] = "parts"

    def matches(self, names: frozenset[str], index: bytes) -> bool:
        """Check the names of a directory's entries, and the beginning of its index.json."""
        if self.index:
            return re.match(self.index, index, re.DOTALL) is not None
        alternatives = [word.split("|") for word in self.marks.split()]
        return bool(alternatives) and all(not names.isdisjoint(words) for words in alternatives)

    def refusal(self, directory: str | Path) -> str:
        """Explain what the directory is and what to do, without the directory's name in front."""
        remedy = self.remedy.replace("PATH", repr(str(directory)))
        if not remedy.startswith("give "):
            remedy = f"hand its rows over as a table, in Python: `{remedy}`"
        return f"is {self.name}; {remedy}"


_DELTA = Layout("a Delta table", "source = deltalake.DeltaTable(PATH).to_pyarrow_dataset()")
_HUDI = Layout("a Hudi table", "source = spark.read.format('hudi').load(PATH).toArrow()")
_ICEBERG = Layout(
    "an Iceberg table",
    "source = pyiceberg.table.StaticTable.from_metadata(PATH +"
    " '/metadata/NEWEST.metadata.json').scan().to_arrow_batch_reader()",
)
_WEBDATASET = Layout(
    "a directory of WebDataset shards",
    "source = datasets.load_dataset('webdataset', data_dir=PATH, split='train')",
)
_LAYOUTS = (
    Layout(
        "a run that headrace prepared, with files about it beside its shards",
        "give it to headrace.open(PATH), or give the directory of one split's shards",
        "manifest.json index.parquet|receipts",
    ),
    Layout(
        "a Lance dataset",
        "source = lance.dataset(PATH).scanner(scan_in_order=True).to_reader()",
        "_versions data|_transactions|_indices",
    ),
    Layout(
        "a Hugging Face dataset (save_to_disk)",
        "give this directory itself, PATH, as it lists which of its files count",
        "dataset_info.json state.json",
        files="saved",
    ),
    Layout(
        "a Hugging Face DatasetDict (save_to_disk)",
        "give this directory itself, PATH, or that of a split in it",
        "dataset_dict.json",
        files="saved",
    ),
    Layout(
        "a dataset of TensorFlow Datasets",
        "source = tfds.as_dataframe(tfds.builder_from_directory(PATH).as_dataset(split='train'))",
        "dataset_info.json features.json",
    ),
    Layout(
        "a directory that Hugging Face's load_dataset prepared",
        "give the object that load_dataset returns, or single files by name",
        "dataset_info.json",
    ),
    Layout(
        "a download of a Hugging Face Hub repository",
        "give the directory of its data files, such as data",
        "dataset_infos.json",
        files="plain",
    ),
    Layout(
        "a download cache of the Hugging Face Hub",
        "give the directory of the data files below its directory snapshots",
        "blobs refs snapshots",
        files="plain",
    ),
    Layout(
        "a Zarr store", "source = xarray.open_zarr(PATH)", "zarr.json|.zgroup|.zarray|.zmetadata"
    ),
    Layout(
        "a dataset of MosaicML Streaming",
        "source = pyarrow.Table.from_pylist(list(streaming.StreamingDataset(local=PATH)))",
        index=rb'(?=.*"shards").*"format"\s*:\s*"(mds|json|csv|tsv|xsv)"',
    ),
    Layout(
        "a litData dataset",
        "source = pyarrow.Table.from_pylist(list(litdata.StreamingDataset(PATH)))",
        index=rb'(?=.*"chunks").*"config"\s*:',
    ),
    replace(_WEBDATASET, index=rb'.*"wids_version"'),
)


def layout_of(directory: Path, names: Collection[str]) -> Layout | None:
    """Recognize the layout of a directory from the names of its entries; None for an
    ordinary one.
    """
    table = _table(directory, names.__contains__)
    if table is not None:
        return table
    entries = frozenset(names)
    index = b""
    if "index.json" in entries:
        with suppress(OSError, HeadraceError), (directory / "index.json").open("rb") as file:
            index = file.read(_INDEX_BYTES)
    for layout in _LAYOUTS:
        if layout.matches(entries, index):
            return layout
    holds_tars = any(_NUMBERED_TAR.fullmatch(name) for name in entries)
    holds_data = any(
        name.endswith((".csv", ".tsv", ".jsonl", ".parquet", ".arrow")) for name in entries
    )
    if holds_tars and not holds_data:
        return _WEBDATASET
    return None


def _table(directory: Path, has: Callable[[str], bool]) -> Layout | None:
    if has("_delta_log"):
        return _DELTA
    if has(".hoodie") or has(".hoodie_partition_metadata"):
        return _HUDI
    if has("metadata"):
        with suppress(OSError, HeadraceError):  # it is not a directory, or cannot be read
            if any(
                path.name.endswith(".metadata.json") for path in (directory / "metadata").iterdir()
            ):
                return _ICEBERG
    return None


def table_around(directory: Path) -> tuple[Path, Layout] | None:
    """Find the table that contains a directory, at any depth, and its layout.

    In an object store only the directories above partitions (`year=2024`, `2024`) and `data` are
    checked, because each check is a request.
    """
    inside = directory
    location = place_of(directory)
    for above in location.absolute().parents:
        if location.reads == "requests" and (
            not _TABLE_DIRECTORY.fullmatch(inside.name) or len(above.parts) < 2
        ):
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
    """Raise `InputError` for a directory of another system, or inside a table.

    names: of its entries.
    """
    layout = layout_of(directory, names)
    root = directory
    if layout is None:
        root, layout = table_around(directory) or (directory, None)
    if layout is not None:
        raise InputError(f"{layout.refusal(root)}", path=root)


def table_of_file(path: Path) -> str | None:
    """Return a warning if a file belongs to a table; None if not, or if checking would cost
    requests.

    The rows of such a file may have been deleted or replaced.
    """
    directory = path.parent
    if place_of(path).reads == "requests":
        return None
    layout = _table(directory, lambda name: _is_directory(directory / name))
    root = directory
    if layout is None:
        root, layout = table_around(directory) or (directory, None)
    if layout is None:
        return None
    return (
        f"{path}: belongs to {root}, {layout.name}; its rows are read as they are, deleted and"
        " replaced ones too"
    )


def refuse_unfinished(names: Iterable[str]) -> None:
    """Raise `InputError` for an unfinished or packed data file, because its rows would be
    missing.
    """
    for name in names:
        match = _UNFINISHED.fullmatch(name)
        if match is None or not is_data_name(os.path.basename(match[1])):
            continue
        remedy = "decompress it or delete it"
        if match[2].lower() in _DOWNLOADS:
            remedy = "finish the download or delete it"
        raise InputError(
            f"{name}: is not read, and its rows would be missing; {remedy}, or give files by"
            " pattern"
        )
