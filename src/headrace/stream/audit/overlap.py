"""Find the items of benchmarks in rows: verbatim, embedded in longer texts, or in part.

Pure, except `read_items`.

An item and a row overlap if they share n consecutive words (Brown et al. 2020, appendix C, with n =
13). An item with fewer words must match whole, and one with fewer than `LEAST_WORDS` is not looked
for, which is counted. Words are those of `headrace.near.words`. Runs of words are compared by
64-bit hashes and then word for word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U64, Bools, concatenated
from headrace.dataset.open import is_prepared
from headrace.digest import sha256_file
from headrace.errors import InputError, SettingsError
from headrace.formats.plain_types import check_read
from headrace.formats.registry import FORMATS
from headrace.formats.types import is_text
from headrace.near.shingles import hash_runs
from headrace.near.words import words_of
from headrace.stream.loader.dataset import open_dataset

if TYPE_CHECKING:
    from headrace.stream.audit.near import SplitBlocks

_ITEMS = (".txt", *FORMATS.endings)
LEAST_WORDS = 5  # of an item's text; shorter ones occur in too many other texts


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """A benchmark item that a row holds.

    source: the benchmark's file. item: number of the item in the file, from 0.
    location: SHARD:ROW, rows from 0. fraction: of the item's runs of words, those that the row
    holds; 1.0 means all of one of its texts.
    text: the first shared run, as the row has it.
    """

    source: str
    item: int
    split: str
    location: str
    fraction: float
    text: str


@dataclass(frozen=True)
class RowTexts:
    """The texts of rows.

    A row may have several, or none. row: the row of each text, int64 [texts].
    """

    row: I64
    texts: pl.Series


@dataclass(frozen=True)
class _Words:
    """The words of texts, end to end.

    text: the text of each word, int64 [words]; hashes: uint64 [words].
    """

    words: pl.Series
    text: I64
    hashes: U64

    @classmethod
    def of(cls, texts: pl.Series) -> _Words:
        words, counts = words_of(texts)
        return cls(words, np.repeat(np.arange(len(counts)), counts), words.hash(seed=0).to_numpy())

    def runs(self, n: int) -> tuple[I64, U64]:
        """Return the positions where n words of one text begin, ascending, and a hash of
        each run.
        """
        hashes = hash_runs(self.hashes, n)
        starts = np.flatnonzero(self.text[: len(hashes)] == self.text[n - 1 :])
        return starts, hashes[starts]


def texts_of(table: pa.Table) -> RowTexts:
    """Return all texts in a table's rows, including those inside lists and structs, column by
    column.
    """
    rows = [np.empty(0, np.int64)]
    texts = [pa.array([], pa.large_string())]
    for column in table.columns:
        for rows_of_leaf, values in _leaves(column.combine_chunks(), np.arange(len(table))):
            rows.append(rows_of_leaf)
            texts.append(values)
    return RowTexts(np.concatenate(rows), pl.Series("text", pl.from_arrow(pa.concat_arrays(texts))))


def texts_of_blocks(splits: Iterable[SplitBlocks]) -> Iterator[tuple[str, str, int, RowTexts]]:
    """Yield (split, shard, number of the first row in the shard, texts) of each block."""
    for split in splits:
        index = split.index
        shard_starts = index.first_row[np.unique(index.shard_of_block, return_index=True)[1]]
        for start in range(0, len(index.rows), split.workers):
            numbers = range(start, min(start + split.workers, len(index.rows)))
            for number, texts in zip(numbers, split.map(None, texts_of, numbers), strict=True):
                shard = int(index.shard_of_block[number])
                first = int(index.first_row[number] - shard_starts[shard])
                yield split.name, index.shards[shard], first, texts


def holds_texts(schema: pa.Schema) -> bool:
    """Check whether any column can hold texts, including inside lists and structs."""
    check_read(schema)
    nowhere = np.empty(0, np.int64)
    return any(
        list(_leaves(column.combine_chunks(), nowhere)) for column in schema.empty_table().columns
    )


def texts_in(rows: Sequence[Any]) -> RowTexts:
    """Return all texts in rows of Python values, including those inside lists and objects."""
    strings: list[tuple[int, str]] = []
    for number, row in enumerate(rows):
        left = [row]
        while left:
            value = left.pop()
            if isinstance(value, str):
                strings.append((number, value))
            elif isinstance(value, Mapping):
                left += value.values()
            elif isinstance(value, list | tuple):
                left += value
    # JSON may hold half of a surrogate pair
    texts = [text.encode("utf-8", "replace").decode() for _, text in strings]
    return RowTexts(
        np.array([row for row, _ in strings], np.int64), pl.Series("text", texts, pl.String)
    )


def _leaves(values: pa.Array, row: I64) -> Iterator[tuple[I64, pa.Array]]:
    dtype = values.type
    if isinstance(values, pa.ExtensionArray):
        values, dtype = values.storage, values.storage.type
    if pa.types.is_dictionary(dtype):
        values = values.dictionary_decode()
        dtype = dtype.value_type
    if is_text(dtype):
        valid = pc.is_valid(values).to_numpy(zero_copy_only=False)
        yield row[valid], values.drop_null().cast(pa.large_string())
    elif (
        pa.types.is_list(dtype)
        or pa.types.is_large_list(dtype)
        or pa.types.is_fixed_size_list(dtype)
    ):
        # a list that is null may have values behind it
        counts = pc.list_value_length(values).fill_null(0).to_numpy()
        yield from _leaves(values.flatten(), np.repeat(row, counts))
    elif pa.types.is_map(dtype):
        entries = pa.ListArray.from_arrays(
            values.offsets, pa.StructArray.from_arrays([values.keys, values.items], ["k", "v"])
        )
        yield from _leaves(entries, row)
    elif pa.types.is_struct(dtype):
        for child in values.flatten():
            yield from _leaves(child, row)


def find_benchmarks(paths: Sequence[str | Path]) -> dict[Path, str]:
    """List the files of benchmarks with their names: the file name or, below a directory, directory
    name and path.

    paths: files, or directories whose data and .txt files all count, at any depth. Raises
    `InputError` for a place without such a file, `SettingsError` for two files with the same name.
    """
    # by absolute path, so that a file named twice counts once
    benchmarks: dict[Path, tuple[Path, str]] = {}
    for root in map(Path, paths):
        if not root.exists():
            raise InputError(
                "no such file or directory", path=root, remedy="give the files of a benchmark"
            )
        if not root.is_dir():
            benchmarks.setdefault(root.absolute(), (root, root.name))
            continue
        if is_prepared(root):
            raise InputError(
                "is a prepared dataset",
                path=root,
                remedy="give the directory of a split, such as splits/test in it",
            )
        files = _files_of_items(root)
        if not files:
            raise InputError(
                "holds no file of items",
                path=root,
                remedy=f"give files whose names end with {', '.join(_ITEMS)}",
            )
        for file, name in files.items():
            benchmarks.setdefault(file.absolute(), (file, name))
    owners: dict[str, Path] = {}
    for path, name in benchmarks.values():
        if owners.setdefault(name, path) != path:
            raise SettingsError(
                f"is called {name}, as another benchmark is: {owners[name]}",
                path=path,
                remedy="rename one of them",
            )
    return dict(benchmarks.values())


def _files_of_items(root: Path) -> dict[Path, str]:
    """Return the files of items in a directory, without hidden ones, and a name for each."""
    files = {}
    for file in sorted(root.rglob("*")):
        name = file.relative_to(root)
        is_hidden = any(part[0] in "._" for part in name.parts)
        if file.is_file() and file.name.endswith(_ITEMS) and not is_hidden:
            files[file] = f"{root.resolve().name}/{name.as_posix()}"
    return files


def read_items(path: str | Path) -> RowTexts:
    """Read the items of a benchmark: each row is an item, and in a .txt file each line.

    Raises what `headrace.open` raises, and `InputError` if no item has enough words to be searched
    for.
    """
    if Path(path).suffix == ".txt":
        try:
            text = Path(path).read_text("utf-8")
            # not splitlines, which cuts at form feeds too
            lines = text.removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"is not UTF-8 (byte {error.start})", path=path, remedy="convert it to UTF-8"
            ) from error
        items = RowTexts(np.arange(len(lines)), pl.Series("text", lines, pl.String))
    else:
        dataset = open_dataset(path)
        parts = []
        first = 0
        for split in dataset.splits:
            read = dataset.block_reader(split)
            for block, count in enumerate(dataset.split_index(split).rows.tolist()):
                part = texts_of(read(block, None))
                parts.append(RowTexts(part.row + first, part.texts))
                first += count
        rows = concatenated((part.row for part in parts), np.int64)
        items = RowTexts(
            rows, pl.concat([pl.Series("text", [], pl.String), *(part.texts for part in parts)])
        )
    words = _Words.of(items.texts)
    if not len(words.runs(LEAST_WORDS)[0]):
        raise InputError(
            f"no item has {LEAST_WORDS} words or more",
            path=path,
            remedy="give a file of questions or texts",
        )
    return items


def find_overlaps(
    benchmarks: Mapping[str, Benchmark], blocks: Iterable[tuple[str, str, int, RowTexts]]
) -> Iterator[Overlap]:
    """Yield the rows that hold items, in the order of blocks, rows and items.

    blocks: (split, shard, number of the first row, texts of the rows).
    """
    for split, shard, first, texts in blocks:
        words = _Words.of(texts.texts)
        for source, benchmark in benchmarks.items():
            for row, item, fraction, text in benchmark.matches_in(words, texts.row):
                location = f"{shard}:{first + row}"
                yield Overlap(
                    source=source,
                    item=item,
                    split=split,
                    location=location,
                    fraction=fraction,
                    text=text,
                )


@dataclass(frozen=True)
class Benchmark:
    """The runs of words of a benchmark's items.

    count: items that can be searched for, those with a text of enough words. short: items with
    words, but too few to be searched for. item, runs: of each text, its item and its number of
    runs. by_length: n → (hashes ascending, their positions among the words).
    """

    words: _Words
    count: int
    short: int
    item: I64
    runs: I64
    by_length: Mapping[int, tuple[U64, I64]]

    @classmethod
    def of(cls, items: RowTexts, ngram: int) -> Benchmark:
        """Prepare to search for items. ngram: consecutive words that must match."""
        words = _Words.of(items.texts)
        counts = np.bincount(words.text, minlength=len(items.row))
        length = np.where(counts < LEAST_WORDS, 0, np.minimum(counts, ngram))
        by_length: dict[int, tuple[U64, I64]] = {}
        for n in np.unique(length[length > 0]).tolist():
            starts, hashes = words.runs(n)
            is_whole = length[words.text[starts]] == n
            starts = starts[is_whole]
            hashes = hashes[is_whole]
            order = np.argsort(hashes, kind="stable")
            by_length[n] = hashes[order], starts[order]
        count = len(np.unique(items.row[length > 0]))
        return cls(
            words=words,
            count=count,
            short=len(np.unique(items.row[counts > 0])) - count,
            item=items.row,
            runs=np.where(length > 0, counts - length + 1, 0),
            by_length=by_length,
        )

    def matches_in(self, words: _Words, row: I64) -> list[tuple[int, int, float, str]]:
        """Return (row, item, share of the runs of one of its texts, first run) of each row and item
        that overlap.
        """
        best: dict[tuple[int, int], tuple[float, str]] = {}
        for n, theirs, ours in self.shared(words):
            rows = row[words.text[theirs]]
            texts = self.words.text[ours]
            pairs = pl.DataFrame({"row": rows, "text": texts, "ours": ours, "theirs": theirs})
            matches = pairs.group_by("row", "text", maintain_order=True).agg(
                pl.col("ours").n_unique().alias("runs"), pl.col("theirs").min()
            )
            for match in matches.iter_rows(named=True):
                key = match["row"], int(self.item[match["text"]])
                text = " ".join(words.words[match["theirs"] : match["theirs"] + n])
                fraction = match["runs"] / int(self.runs[match["text"]])
                if key not in best or best[key][0] < fraction:
                    best[key] = fraction, text
        return [
            (row, item, fraction, text) for (row, item), (fraction, text) in sorted(best.items())
        ]

    def shared(self, words: _Words) -> Iterator[tuple[int, I64, I64]]:
        """Yield n, and the positions where the words and the items have the same n consecutive
        words.
        """
        for n, (hashes, hashes_of_items) in self.by_length.items():
            starts, mixed = words.runs(n)
            begin = np.searchsorted(hashes, mixed)
            hit = np.flatnonzero(hashes[np.minimum(begin, len(hashes) - 1)] == mixed)
            begin = begin[hit]
            counts = np.searchsorted(hashes, mixed[hit], side="right") - begin
            theirs = np.repeat(starts[hit], counts)
            ours = hashes_of_items[
                np.repeat(begin - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
            ]
            same = np.ones(len(theirs), np.bool_)
            for turn in range(n):
                same &= (
                    self.words.words.gather(ours + turn)
                    .eq(words.words.gather(theirs + turn))
                    .to_numpy()
                )
            yield n, theirs[same], ours[same]


@dataclass(frozen=True)
class Benchmarks:
    """Benchmarks whose items are excluded from rows, and the digests of their files, by name."""

    digests: Mapping[str, str]
    known: Mapping[str, Benchmark]

    @classmethod
    def read(cls, paths: Sequence[str | Path], ngram: int) -> Benchmarks:
        """Read the benchmarks at these paths.

        Raises what `find_benchmarks` and `read_items` raise.
        """
        files = find_benchmarks(paths)
        digests = {name: sha256_file(path) for path, name in files.items()}
        return cls(
            digests, {name: Benchmark.of(read_items(path), ngram) for path, name in files.items()}
        )

    def mask(self, texts: RowTexts, rows: int, excluded: Counter[str]) -> Bools:
        """Mask the rows that overlap a benchmark, bool [rows], and add to their counts by
        benchmark.
        """
        words = _Words.of(texts.texts)
        mask = np.zeros(rows, np.bool_)
        for name, benchmark in self.known.items():
            holding = [texts.row[words.text[at]] for _, at, _ in benchmark.shared(words)]
            rows_of_items = np.unique(concatenated(holding, np.int64))
            excluded[name] += len(rows_of_items)
            mask[rows_of_items] = True
        return mask

    def metadata(self, counts: Iterable[Mapping[str, int]]) -> dict[str, dict[str, Any]]:
        """Return the digest, the items, those too short to look for, and the overlapping rows of
        each benchmark.

        counts: rows per task, by name.
        """
        rows: Counter[str] = Counter()
        for count in counts:
            rows.update(count)
        return {
            name: {
                "digest": digest,
                "items": self.known[name].count,
                "short_items": self.known[name].short,
                "rows": rows[name],
            }
            for name, digest in self.digests.items()
        }
