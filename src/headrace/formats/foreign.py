"""Refuse directories of other systems, because their files are not simply their rows.

The error has the Python that hands the rows over: any object with an Arrow stream is a source.
"""

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from headrace.errors import HeadraceError, InputError

# Kind; marks that must all be there: entries, "words of index.json, *endings; and what to do.
_LAYOUTS = """Delta table; _delta_log; deltalake.DeltaTable(PATH).to_pyarrow_dataset()
Hudi table; .hoodie|.hoodie_partition_metadata; spark.read.format('hudi').load(PATH).toArrow()
Iceberg table; *.metadata.json; pyiceberg.table.StaticTable.from_metadata(PATH + \
'/metadata/NEWEST.metadata.json').scan().to_arrow_batch_reader()
run that headrace prepared; manifest.json index.parquet|receipts; give headrace.open(PATH)[split]
Lance dataset; _versions data; lance.dataset(PATH).scanner(scan_in_order=True).to_reader()
Hugging Face dataset of save_to_disk; dataset_info.json state.json; give PATH itself
Hugging Face DatasetDict of save_to_disk; dataset_dict.json; give PATH itself
TensorFlow dataset; dataset_info.json features.json; \
tfds.as_dataframe(tfds.builder_from_directory(PATH).as_dataset(split='train'))
Hugging Face load_dataset cache; dataset_info.json; give what load_dataset returns
Zarr store; zarr.json|.zgroup|.zarray|.zmetadata; xarray.open_zarr(PATH)
MosaicML dataset; "shards "format "mds|"json|"csv|"tsv|"xsv; \
pyarrow.Table.from_pylist([*streaming.StreamingDataset(local=PATH)])
litData dataset; "chunks "config; pyarrow.Table.from_pylist([*litdata.StreamingDataset(PATH)])
WebDataset; "wids_version|tars; datasets.load_dataset('webdataset', data_dir=PATH, split='train')"""


_WORKBOOKS = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"  # as .xlsx and as .xls begin
_DIRECTORY_BYTES = 1 << 16  # of the list of files at the end of a zip archive
_ZIPPED = b"xl/", b"[Content_Types].xml"


def workbook(path: str | Path) -> InputError | None:
    """Return the error for an Excel workbook, which has sheets, not rows; None for others."""
    size = 0
    with suppress(OSError), Path(path).open("rb") as file:
        head = file.read(4)
        size = file.seek(0, 2)
        file.seek(max(0, size - _DIRECTORY_BYTES))
        tail = file.read()
    if not size or head not in _WORKBOOKS:
        return None
    if head == _WORKBOOKS[0] and not all(name in tail for name in _ZIPPED):
        return None
    return InputError(
        "is an Excel workbook",
        path=path,
        remedy=(
            "hand a sheet over as a table, in Python:"
            f" `table = polars.read_excel({str(path)!r})` or"
            f" `table = pandas.read_excel({str(path)!r})`, then `headrace.init(table)` or"
            " a recipe of it"
        ),
    )


def refusal(directory: Path, names: Collection[str]) -> InputError | None:
    """Return the error for a directory of another system with these entries; None for others."""
    marks = set(names)
    if not any(name.endswith((".csv", ".tsv", ".jsonl", ".parquet", ".arrow")) for name in names):
        marks.update("tars" for name in names if re.search(r"\d\d\.tar(\.gz)?$", name))
    with suppress(OSError, HeadraceError):
        if "metadata" in marks:
            marks.update("*" + "".join(at.suffixes) for at in (directory / "metadata").iterdir())
        if "index.json" in marks:
            with (directory / "index.json").open("rb") as file:
                marks.update(re.findall(r'"\w+', file.read(1 << 16).decode("utf-8", "replace")))
    for layout, needed, remedy in (line.split("; ") for line in _LAYOUTS.splitlines()):
        if not any(marks.isdisjoint(words.split("|")) for words in needed.split()):
            remedy = remedy.replace("PATH", repr(str(directory)))
            if not remedy.startswith("give "):
                remedy = f"hand its rows over as a table, in Python: `source = {remedy}`"
            return InputError(f"is not simply its files ({layout})", path=directory, remedy=remedy)
    return None


def table_above(directory: Path) -> InputError | None:
    """Return the error for a directory of partitions or data of a table; None for others."""
    above = directory.absolute().parent
    if not re.match(r"[^=]+=|\d{1,4}$|data$", directory.name) or len(above.parts) < 2:
        return None
    with suppress(OSError, HeadraceError):  # not permitted
        names = ("_delta_log", ".hoodie", "metadata")
        return refusal(above, [n for n in names if (above / n).is_dir()]) or table_above(above)
    return None
