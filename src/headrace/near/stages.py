"""Find near duplicates out of core, as stages of a run on any engine, resumed by receipts.

    near_sign        each part of the documents   → one signature per document
    near_copies      once                         → the first copy of each document
    near_propose     each band                    → pairs that share a number of the band
    near_candidates  once                         → all distinct pairs, and the documents in them
    near_shingles    each part                    → the shingles of the documents in pairs
    near_compare     each batch of pairs          → those at or above the threshold

Disk and memory: at most 190 bytes per document (104 at 0.8) and 8 bytes per proposed pair; on disk
also 8 bytes per shingle of the documents in pairs. A document is in few pairs, unless it shares a
template with thousands of others; it is then in at most six per band. The pairs found depend on the
documents and their order, not on parts, tasks, workers or the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.arrays import F64, I64, U32, U64, components
from headrace.errors import InputError, SettingsError, setting_name
from headrace.near import LEAST_NEAR
from headrace.near.shingles import (
    MOST_DOCUMENTS,
    Bands,
    Crowds,
    Shingles,
    distinct,
    documents_of,
    first_copies,
    jaccard,
    pair_words,
    propose,
    sign,
)
from headrace.run.context import STAGE_DIRECTORY, RunContext, Task, TaskFiles, read_arrow
from headrace.run.receipts import Receipt

_PROPOSE_DOCUMENTS = 1 << 24  # per task, about 30 bytes each
_COMPARE_SHINGLES = 1 << 23
_COPIES, _CANDIDATES, _NEEDED = (
    f"{STAGE_DIRECTORY}/near-{name}.arrow" for name in ("copies", "candidates", "needed")
)


@dataclass(frozen=True)
class DocumentPart:
    """Some of the documents, read by one task.

    shingles: yields batches of shingles, in order, of the documents with these numbers in the part
    (ascending int64), or of all documents for None. It must yield the same each time. reads: files
    of the source.
    """

    subject: str
    input_bytes: int
    shingles: Callable[[I64 | None], Iterator[Shingles]]
    reads: Sequence[Path] = ()


@dataclass(frozen=True)
class Near:
    """Pairs and groups of near documents [N], the parts laid end to end.

    first, second: int64 [pairs], ascending. jaccard: float64 [pairs], at or above the threshold.
    Copies are paired only with the first of them, which represents them in other pairs. group:
    int64 [N], the smallest document number of each document's connected component. compared: the
    number of proposed pairs. not_compared: an upper bound for the pairs of different groups that
    were skipped because they share a band with too many documents.
    """

    first: I64
    second: I64
    jaccard: F64
    group: I64
    compared: int
    not_compared: int


def check_near(near: float) -> None:
    """Raise `SettingsError` for a threshold that the bands do not support."""
    if not LEAST_NEAR <= near <= 1:
        raise SettingsError(
            setting="near", value=near, remedy=f"give a Jaccard index from {LEAST_NEAR} to 1"
        )


def find_near(context: RunContext, parts: Sequence[DocumentPart], near: float) -> Near:  # noqa: PLR0914 - each stage needs earlier results
    """Find the pairs of documents with a Jaccard index of `near` or more.

    Raises `InputError` for 2^32 documents.
    """
    bands = Bands.of(near)

    def stage(
        name: str, work: Sequence[tuple[str, Callable[[TaskFiles], dict[str, Any]]]]
    ) -> list[Receipt]:
        tasks = [Task(subject, 0, task_work) for subject, task_work in work]
        return context.stage(name, tasks, durable=False)

    def of_parts(name: str, work: Callable[..., dict[str, Any]]) -> list[Receipt]:
        tasks = []
        for number, part in enumerate(parts):
            of_part = partial(work, part=part, number=number)
            tasks.append(Task(part.subject, part.input_bytes, of_part, part.reads))
        return context.stage(name, tasks, durable=False)

    signed = of_parts("near_sign", partial(_sign, bands=bands))
    counts = [receipt.rows_in for receipt in signed]
    documents = sum(counts)
    firsts = np.cumsum([0, *counts])
    if documents > MOST_DOCUMENTS:
        raise InputError(
            f"{documents:,} documents are too many to compare for {setting_name('near')}",
            remedy=f"split them into sets of {MOST_DOCUMENTS:,}",
        )
    stage("near_copies", [("copies", partial(_find_copies, parts=len(parts)))])
    shares = max(1, -(-documents // _PROPOSE_DOCUMENTS))
    propose_share = partial(_propose, parts=len(parts), bands=bands, shares=shares)
    proposals = []
    for band in range(bands.bands):
        for part_of_band in range(shares):
            work = partial(propose_share, band=band, part_of_band=part_of_band)
            proposals.append((f"band {band}", work))
    stage("near_propose", proposals)
    (gathered,) = stage("near_candidates", [("pairs", partial(_gather, proposals=len(proposals)))])
    compared = int(gathered.extra["pairs"])
    shingle_receipts = of_parts("near_shingles", partial(_keep_shingles, firsts=firsts))
    shingles = sum(int(receipt.extra["shingles"]) for receipt in shingle_receipts)
    size = max(1, _COMPARE_SHINGLES * int(gathered.extra["documents"]) // max(1, 2 * shingles))
    compare = partial(_compare, size=size, parts=len(parts), near=near)
    comparisons = []
    for number, begin in enumerate(range(0, compared, size)):
        comparisons.append((f"pairs from {begin:,}", partial(compare, number=number)))
    stage("near_compare", comparisons)

    run = context.run
    first, second = documents_of(_column(run, "compared", "pair", len(comparisons), np.uint64))
    jaccards = _column(run, "compared", "jaccard", len(comparisons), np.float64)
    group = components(documents, first, second)
    crowd = _crowds(run, len(proposals))
    return Near(first, second, jaccards, group, compared, crowd.pairs_across(group))


def _crowds(run: Path, files: int) -> Crowds:
    """Read the documents of large buckets that were not all compared."""
    crowds = []
    for number in range(files):
        table = read_arrow(run / _file("crowds", number))
        crowds.append(Crowds(table["bucket"].to_numpy(), table["document"].to_numpy()))
    return Crowds.joined(crowds)


def _file(what: str, number: int) -> str:
    return f"{STAGE_DIRECTORY}/near-{what}-{number:05d}.arrow"


def _sign(files: TaskFiles, part: DocumentPart, number: int, bands: Bands) -> dict[str, Any]:
    signatures = [sign(shingles, bands) for shingles in part.shingles(None)]
    digest: U64 = np.concatenate(
        [np.empty(0, np.uint64), *(signature.digest for signature in signatures)]
    )
    numbers: U32 = np.concatenate(
        [np.empty((bands.bands, 0), np.uint32), *(signature.bands for signature in signatures)],
        axis=1,
    )
    columns = {"digest": digest, **{str(band): numbers[band] for band in range(bands.bands)}}
    files.write_arrow(_file("signed", number), pa.table(columns))
    return {"rows_in": len(digest)}


def _column(run: Path, what: str, name: str, files: int, dtype: type[np.generic]) -> Any:
    """Read one column of all files of one kind, end to end."""
    columns = [read_arrow(run / _file(what, number))[name].to_numpy() for number in range(files)]
    return np.concatenate([np.empty(0, dtype), *columns])


def _find_copies(files: TaskFiles, parts: int) -> dict[str, Any]:
    digests = _column(files.run, "signed", "digest", parts, np.uint64)
    files.write_arrow(_COPIES, pa.table({"first": first_copies(digests)}))
    return {}


def _propose(
    files: TaskFiles, parts: int, bands: Bands, shares: int, band: int, part_of_band: int
) -> dict[str, Any]:
    first = read_arrow(files.run / _COPIES)["first"].to_numpy()
    next_band = (band + 1) % bands.bands
    numbers = _column(files.run, "signed", str(band), parts, np.uint32)
    following = _column(files.run, "signed", str(next_band), parts, np.uint32)
    selected = np.flatnonzero((first == np.arange(len(first))) & (numbers % shares == part_of_band))
    pairs, crowds = propose(selected, numbers[selected], following[selected])
    number = band * shares + part_of_band
    files.write_arrow(_file("proposed", number), pa.table({"pair": pairs}))
    files.write_arrow(_file("crowds", number), pa.table(vars(crowds)))
    return {}


def _gather(files: TaskFiles, proposals: int) -> dict[str, Any]:
    first = read_arrow(files.run / _COPIES)["first"].to_numpy()
    copies = np.flatnonzero((first >= 0) & (first != np.arange(len(first))))
    proposed = [pair_words(first[copies], copies)]
    for number in range(proposals):
        table = read_arrow(files.run / _file("proposed", number))
        proposed.append(table["pair"].to_numpy())
    pairs = distinct(np.concatenate(proposed))
    needed = distinct(np.concatenate(documents_of(pairs)).astype(np.uint64)).astype(np.int64)
    files.write_arrow(_CANDIDATES, pa.table({"pair": pairs}))
    files.write_arrow(_NEEDED, pa.table({"document": needed}))
    return {"pairs": len(pairs), "documents": len(needed)}


def _keep_shingles(
    files: TaskFiles, part: DocumentPart, number: int, firsts: I64
) -> dict[str, Any]:
    needed = read_arrow(files.run / _NEEDED)["document"].to_numpy()
    begin, end = np.searchsorted(needed, firsts[number : number + 2])
    lists_of_batches = []
    if end > begin:
        lists_of_batches = [
            batch.lists() for batch in part.shingles(needed[begin:end] - firsts[number])
        ]
    lists = pa.concat_arrays([pa.array([], pa.large_list(pa.uint64())), *lists_of_batches])
    files.write_arrow(_file("shingles", number), pa.table({"shingles": lists}))
    return {"rows_in": len(lists), "shingles": len(lists.flatten())}


def _compare(files: TaskFiles, number: int, size: int, parts: int, near: float) -> dict[str, Any]:
    pairs = read_arrow(files.run / _CANDIDATES)["pair"].to_numpy()[
        number * size : (number + 1) * size
    ]
    documents = distinct(np.concatenate(documents_of(pairs)).astype(np.uint64)).astype(np.int64)
    at = np.searchsorted(read_arrow(files.run / _NEEDED)["document"].to_numpy(), documents)
    lists = [pl.Series("shingles", [], pl.List(pl.UInt64))]
    begin = 0
    for part in range(parts):
        table = read_arrow(files.run / _file("shingles", part))
        low, high = np.searchsorted(at, (begin, begin + len(table)))
        if high > low:
            shingle_lists = pl.Series("shingles", pl.from_arrow(table["shingles"].combine_chunks()))
            lists.append(shingle_lists.gather(at[low:high] - begin))
        begin += len(table)
    similarity = jaccard(
        pl.concat(lists), *(np.searchsorted(documents, ends) for ends in documents_of(pairs))
    )
    near_enough = similarity >= near
    columns = {"pair": pairs[near_enough], "jaccard": similarity[near_enough]}
    files.write_arrow(_file("compared", number), pa.table(columns))
    return {"rows_in": len(pairs)}
