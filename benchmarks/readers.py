"""The contestants of `streaming.py`: each the fastest honest way its library has, giving dicts of tensors or arrays.

How rows are mixed: `headrace*` as the size of the data decides, which is 2,300,000 rows from all files for the numbers;
`loop*`, `raw*`, `packed_workers` and `nodes` whole files, one after the other; `hf` a buffer of 10,000 rows; `mapped`
all rows; `lance` only the order of fragments. `loop*` is what anyone writes in twenty lines: two threads, each a file
ahead, read a file and permute its rows, and the loop cuts slices of them. A library that is not installed is left out
and named.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from streaming_data import CSV, NUMBERS, TOKENS
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import headrace

SEED = 1
TEXT = [*NUMBERS, "name"]


def nothing(_root: Path) -> None:
    """There is nothing to prepare."""


@dataclass(frozen=True)
class Contestant:
    """batches: an epoch over the data under a root, as objects with the number of rows as their length."""

    batches: Callable[[Path], Iterable[Any]]
    prepare: Callable[[Path], None] = nothing
    warm: Callable[[], None] = field(default=lambda: None)


Arrays = dict[str, np.ndarray[Any, Any]]


class Sized(dict[str, Any]):
    """A batch: a dict whose length is its number of rows."""

    def __len__(self) -> int:
        return len(self["id"])


CSV_TYPES = {name: "int64" if name in ("id", "ts") else "float32" for name in CSV}


def batch_rows(columns: list[str]) -> int:
    return 8 if columns is TOKENS else 1024


def files(root: Path, folder: str) -> list[Path]:
    return sorted((root / folder).glob("part-*"))


# headrace


def ours(
    folder: str, columns: list[str], *, workers: int = 0, **options: Any
) -> Callable[[Path], Iterable[Any]]:
    def batches(root: Path) -> Iterator[Any]:
        settings = {
            "batch_size": batch_rows(columns),
            "columns": columns,
            "shuffle": True,
            "seed": SEED,
            **options,
        }
        if not settings["shuffle"]:
            del settings["seed"]
        if columns is TOKENS:
            settings["lists"] = "padded"
        types = CSV_TYPES if columns is CSV else None
        dataset = headrace.open(root / folder, cache_dir=root / "index", types=types)
        if not workers:
            return map(Sized, dataset.stream(**settings))
        streamed = dataset.torch_dataset(num_workers=workers, **settings)
        return map(Sized, streamed.data_loader(method="fork"))

    return batches


def index_first(folder: str) -> Callable[[Path], None]:
    """The index is made once in the life of the data; here, before the clock."""

    def prepare(root: Path) -> None:
        types = CSV_TYPES if folder == "csv" else None
        headrace.open(root / folder, cache_dir=root / "index", types=types)

    return prepare


def rewrite(source: str, folder: str) -> Callable[[Path], None]:
    def prepare(root: Path) -> None:
        if not (root / folder / "splits").exists():
            headrace.rewrite(root / source, out=root / folder)

    return prepare


def warm_headrace() -> None:
    import headrace.stream.loader.dataset  # noqa: F401
    import headrace.stream.loader.torch_dataset  # noqa: F401

    pa.array([1])  # pyarrow imports pandas here, where it is installed


# the loop that anyone writes


def loop(
    reads: Callable[[Path, list[str]], Arrays],
    folder: str,
    columns: list[str],
    *,
    shuffle: bool = True,
    form: str = "torch",
) -> Callable[[Path], Iterable[Any]]:
    """Two threads, each a file ahead: read a file, permute its rows; the loop cuts slices of them."""

    def arrays(path: Path) -> dict[str, Any]:
        made = reads(path, columns)
        if shuffle:
            random = np.random.default_rng([SEED, int(path.stem[-5:])])
            order = random.permutation(len(made[columns[0]]))
            made = {name: array[order] for name, array in made.items()}
        if form == "torch":
            return {name: torch.from_numpy(array) for name, array in made.items()}
        return made

    def batches(root: Path) -> Iterator[Any]:
        paths = in_order(root, folder, shuffle=shuffle)
        for made in ahead(paths, arrays, 2):
            for start in range(0, len(made[columns[0]]), 1024):
                yield Sized((name, array[start : start + 1024]) for name, array in made.items())

    return batches


def pyarrow_file(path: Path, columns: list[str]) -> Arrays:
    table = read(path, columns)
    return {name: table[name].to_numpy() for name in columns}


def polars_file(path: Path, columns: list[str]) -> Arrays:
    import polars as pl

    frame = pl.read_parquet(path, columns=columns)
    return {name: frame[name].to_numpy() for name in columns}


def polars_csv(path: Path, columns: list[str]) -> Arrays:
    import polars as pl

    types = {name: pl.Int64 if CSV_TYPES[name] == "int64" else pl.Float32 for name in columns}
    frame = pl.read_csv(path, columns=columns, schema_overrides=types)
    return {name: frame[name].to_numpy() for name in columns}


def pyarrow_csv(path: Path, columns: list[str]) -> Arrays:
    options = pyarrow.csv.ConvertOptions(include_columns=columns, column_types=CSV_TYPES)
    one_thread = pyarrow.csv.ReadOptions(use_threads=False)
    table = pyarrow.csv.read_csv(path, read_options=one_thread, convert_options=options)
    return {name: table[name].to_numpy() for name in columns}


def warm_polars() -> None:
    import polars  # noqa: F401


# pyarrow as it is


def read(path: Path, columns: list[str]) -> pa.Table:
    return pq.read_table(path, columns=columns, use_threads=False)


def cut_table(
    table: pa.Table, columns: list[str], order: np.ndarray[Any, Any] | None, size: int
) -> Iterator[Sized]:
    """A file's rows as batches: one gather a column, then slices. Each file ends in a short batch."""
    if columns is TOKENS:
        yield from cut_tokens(table.combine_chunks(), order, size)
        return
    arrays = {name: table[name].to_numpy() for name in NUMBERS}
    text = table["name"].combine_chunks() if "name" in columns else None
    if order is not None:
        arrays = {name: array[order] for name, array in arrays.items()}
        text = None if text is None else text.take(pa.array(order))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    for start in range(0, table.num_rows, size):
        batch = Sized((name, tensor[start : start + size]) for name, tensor in tensors.items())
        if text is not None:
            batch["name"] = text.slice(start, size).to_pylist()
        yield batch


def cut_tokens(table: pa.Table, order: np.ndarray[Any, Any] | None, size: int) -> Iterator[Sized]:
    ids = table["id"].to_numpy()
    order = np.arange(len(ids)) if order is None else order
    lists = {name: table[name].chunk(0) for name in TOKENS[1:]}
    flat = {
        name: (column.values.to_numpy(), column.offsets.to_numpy())
        for name, column in lists.items()
    }
    for start in range(0, len(ids), size):
        rows = order[start : start + size]
        batch = Sized(id=torch.from_numpy(ids[rows]))
        for name, (values, offsets) in flat.items():
            begins, ends = offsets[rows], offsets[rows + 1]
            dense = np.zeros((len(rows), int((ends - begins).max())), values.dtype)
            for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
                dense[row, : end - begin] = values[begin:end]
            batch[name] = torch.from_numpy(dense)
        yield batch


def in_order(root: Path, folder: str, *, shuffle: bool) -> list[Path]:
    found = files(root, folder)
    return (
        [found[at] for at in np.random.default_rng(SEED).permutation(len(found))]
        if shuffle
        else found
    )


def raw(
    folder: str,
    columns: list[str],
    *,
    threads: int,
    shuffle: bool = True,
    reads: Callable[..., pa.Table] = read,
) -> Callable[[Path], Iterable[Any]]:
    def batches(root: Path) -> Iterator[Any]:
        size = 8 if columns is TOKENS else 1024
        random = np.random.default_rng(SEED)
        for table in ahead(
            in_order(root, folder, shuffle=shuffle), lambda path: reads(path, columns), threads
        ):
            order = random.permutation(table.num_rows) if shuffle else None
            yield from cut_table(table, columns, order, size)

    return batches


def ahead(paths: list[Path], work: Callable[[Path], Any], threads: int) -> Iterator[Any]:
    """What becomes of files in so many threads, each a file ahead; 0: when they are asked for."""
    if not threads:
        yield from map(work, paths)
        return
    with ThreadPoolExecutor(threads) as pool:
        coming = deque(pool.submit(work, path) for path in paths[: threads + 1])
        for path in [*paths[threads + 1 :], *[None] * (threads + 1)]:
            if not coming:
                return
            table = coming.popleft().result()
            if path is not None:
                coming.append(pool.submit(work, path))
            yield table


class InWorkers(IterableDataset[Any]):
    """Files dealt out to DataLoader workers; packed: a batch travels as one tensor."""

    def __init__(self, root: Path, *, packed: bool) -> None:
        self.root, self.packed = root, packed

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        random = np.random.default_rng(SEED + info.id)
        for path in in_order(self.root, "numbers", shuffle=True)[info.id :: info.num_workers]:
            table = read(path, NUMBERS)
            for batch in cut_table(table, NUMBERS, random.permutation(table.num_rows), 1024):
                yield (
                    self._packed(batch)
                    if self.packed
                    else {name: part.clone() for name, part in batch.items()}
                )

    def _packed(self, batch: Sized) -> Any:
        wide_first = sorted(
            batch, key=lambda name: -batch[name].element_size()
        )  # so that all are aligned
        parts = [
            (name, batch[name].dtype, batch[name].numpy().view(np.uint8)) for name in wide_first
        ]
        return torch.from_numpy(np.concatenate([part for _, _, part in parts])), [
            (name, dtype, part.size) for name, dtype, part in parts
        ]


def workers(*, packed: bool) -> Callable[[Path], Iterable[Any]]:
    def batches(root: Path) -> Iterator[Any]:
        loader = DataLoader(
            InWorkers(root, packed=packed), batch_size=None, num_workers=2, prefetch_factor=8
        )
        return map(_unpacked if packed else Sized, loader)

    return batches


def _unpacked(sent: Any) -> Sized:
    flat, parts = sent
    batch, place = Sized(), 0
    for name, dtype, size in parts:
        batch[name] = (
            flat[place : place + size].clone().view(dtype)
            if place % 8
            else flat[place : place + size].view(dtype)
        )
        place += size
    return batch


# other libraries


def nodes(folder: str, columns: list[str]) -> Callable[[Path], Iterable[Any]]:
    def batches(root: Path) -> Iterator[Any]:
        import torchdata.nodes as tn

        size = 8 if columns is TOKENS else 1024

        def cut(path: Path) -> list[Sized]:
            table = read(path, columns)
            order = np.random.default_rng([SEED, int(path.stem[-5:])]).permutation(table.num_rows)
            return list(cut_table(table, columns, order, size))

        paths = tn.IterableWrapper(in_order(root, folder, shuffle=True))
        mapped = tn.ParallelMapper(paths, cut, num_workers=2, method="thread", max_concurrent=2)
        return iter(tn.Loader(tn.Unbatcher(mapped)))

    return batches


def to_lance(source: str, folder: str) -> Callable[[Path], None]:
    def prepare(root: Path) -> None:
        import lance

        if not (root / folder).exists():
            for number, path in enumerate(files(root, source)):
                lance.write_dataset(
                    pq.read_table(path), str(root / folder), mode="append" if number else "create"
                )

    return prepare


def lance_batches(folder: str, columns: list[str]) -> Callable[[Path], Iterable[Any]]:
    def batches(root: Path) -> Iterator[Any]:
        import lance

        size = 8 if columns is TOKENS else 1024
        dataset = lance.dataset(str(root / folder))
        fragments = dataset.get_fragments()
        order = np.random.default_rng(SEED).permutation(len(fragments))
        scan = dataset.scanner(
            columns=columns, batch_size=size, fragments=[fragments[at] for at in order]
        )
        for batch in scan.to_batches():
            yield from cut_table(pa.Table.from_batches([batch]), columns, None, size)

    return batches


def hf(folder: str, columns: list[str]) -> Callable[[Path], Iterable[Any]]:
    def batches(root: Path) -> Iterator[Any]:
        import datasets

        paths = [str(path) for path in files(root, folder)]
        stream = datasets.load_dataset(
            "parquet",
            data_files=paths,
            split="train",
            streaming=True,
            columns=columns,
            cache_dir=str(root / "hf"),
        )
        stream = stream.with_format("arrow").shuffle(seed=SEED, buffer_size=10_000)
        for table in stream.iter(8 if columns is TOKENS else 1024):
            yield from cut_table(table, columns, None, table.num_rows)

    return batches


def to_arrow(root: Path) -> None:
    """All numbers and the text as one Arrow file."""
    path = root / "texts.arrow"
    if path.exists():
        return
    with pa.OSFile(str(path) + ".making", "wb") as sink:
        schema = pq.read_schema(files(root, "texts")[0])
        with pa.ipc.new_file(sink, schema) as writer:
            for each in files(root, "texts"):
                writer.write_table(pq.read_table(each).combine_chunks())
    Path(str(path) + ".making").rename(path)


def mapped(root: Path) -> Iterator[Sized]:
    """All rows in random order out of a memory-mapped Arrow file."""
    table = pa.ipc.open_file(pa.memory_map(str(root / "texts.arrow"))).read_all().select(TEXT)
    order = np.random.default_rng(SEED).permutation(table.num_rows)
    for start in range(0, table.num_rows, 1024):
        rows = table.take(pa.array(order[start : start + 1024])).combine_chunks()
        yield from cut_table(rows, TEXT, None, 1024)


def words(name: str) -> str:
    """A contestant as a table calls it: whose reader it is, and how it reads."""
    return WORDS.get(name, name)


def both_forms(made: Callable[[str], Contestant], name: str) -> dict[str, Contestant]:
    """One contestant for batches of torch tensors, and one for numpy arrays."""
    return {name: made("torch"), name + "_numpy": made("numpy")}


def loops(name: str, shuffle: bool) -> dict[str, Contestant]:
    """The loop over each library and headrace, over the same ordinary and rewritten files."""

    def looped(reads: Callable[[Path, list[str]], Arrays]) -> Callable[[str], Contestant]:
        return lambda form: Contestant(
            loop(reads, "numbers", NUMBERS, shuffle=shuffle, form=form), warm=warm_polars
        )

    def streamed(folder: str, prepare: Callable[[Path], None]) -> Callable[[str], Contestant]:
        return lambda form: Contestant(
            ours(folder, NUMBERS, shuffle=shuffle, batch_format=form), prepare, warm_headrace
        )

    return {
        **both_forms(looped(pyarrow_file), "pyarrow_loop" + name),
        **both_forms(looped(polars_file), "polars_loop" + name),
        **both_forms(streamed("numbers", index_first("numbers")), "headrace" + name),
        **both_forms(
            streamed("rewritten", rewrite("numbers", "rewritten")), "headrace_rewritten" + name
        ),
    }


def csv_loops(name: str, shuffle: bool) -> dict[str, Contestant]:
    """The same over CSV, with numpy arrays."""
    options = {"shuffle": shuffle, "batch_format": "numpy"}
    return {
        "polars_csv" + name: Contestant(
            loop(polars_csv, "csv", CSV, shuffle=shuffle, form="numpy"), warm=warm_polars
        ),
        "pyarrow_csv" + name: Contestant(
            loop(pyarrow_csv, "csv", CSV, shuffle=shuffle, form="numpy")
        ),
        "headrace_csv" + name: Contestant(
            ours("csv", CSV, **options), index_first("csv"), warm_headrace
        ),
    }


CONTESTANTS = {
    **loops("", shuffle=True),
    **loops("_in_order", shuffle=False),
    **csv_loops("", shuffle=False),
    **csv_loops("_shuffled", shuffle=True),
    "raw_1_thread_ahead": Contestant(raw("numbers", NUMBERS, threads=1)),
    "raw": Contestant(raw("numbers", NUMBERS, threads=0)),
    "headrace_rewritten_page_checks": Contestant(
        ours("rewritten", NUMBERS, verify="never"), rewrite("numbers", "rewritten"), warm_headrace
    ),
    "nodes": Contestant(nodes("numbers", NUMBERS)),
    "lance": Contestant(lance_batches("lance", NUMBERS), to_lance("numbers", "lance")),
    "hf": Contestant(hf("numbers", NUMBERS)),
    "packed_workers": Contestant(workers(packed=True)),
    "plain_workers": Contestant(workers(packed=False)),
    "headrace_2_workers": Contestant(
        ours("numbers", NUMBERS, workers=2), index_first("numbers"), warm_headrace
    ),
    "raw_text": Contestant(raw("texts", TEXT, threads=0)),
    "mapped": Contestant(mapped, to_arrow),
    "headrace_text": Contestant(ours("texts", TEXT), index_first("texts"), warm_headrace),
    "raw_tokens_2_threads": Contestant(raw("tokens", TOKENS, threads=2)),
    "nodes_tokens": Contestant(nodes("tokens", TOKENS)),
    "lance_tokens": Contestant(
        lance_batches("lance_tokens", TOKENS), to_lance("tokens", "lance_tokens")
    ),
    "headrace_tokens": Contestant(ours("tokens", TOKENS), index_first("tokens"), warm_headrace),
}
WORKLOADS = {
    "numbers_numpy": (
        "28 numeric columns, shuffled, as numpy arrays",
        ["pyarrow_loop_numpy", "polars_loop_numpy", "headrace_numpy", "headrace_rewritten_numpy"],
    ),
    "in_order_numpy": (
        "28 numeric columns, files in order, as numpy arrays",
        [
            "pyarrow_loop_in_order_numpy",
            "polars_loop_in_order_numpy",
            "headrace_in_order_numpy",
            "headrace_rewritten_in_order_numpy",
        ],
    ),
    "csv": (
        "9 of 11 columns of CSV with types, files in order",
        ["polars_csv", "pyarrow_csv", "headrace_csv"],
    ),
    "csv_shuffled": (
        "9 of 11 columns of CSV with types, shuffled",
        ["polars_csv_shuffled", "pyarrow_csv_shuffled", "headrace_csv_shuffled"],
    ),
    "numbers": (
        "28 numeric columns, shuffled",
        [
            "pyarrow_loop",
            "polars_loop",
            "headrace",
            "headrace_rewritten",
            "headrace_rewritten_page_checks",
            "nodes",
            "raw_1_thread_ahead",
            "raw",
            "lance",
            "hf",
        ],
    ),
    "in_order": (
        "28 numeric columns, files in order",
        [
            "pyarrow_loop_in_order",
            "polars_loop_in_order",
            "headrace_in_order",
            "headrace_rewritten_in_order",
        ],
    ),
    "workers": (
        "28 numeric columns, shuffled, two DataLoader workers",
        ["packed_workers", "headrace_2_workers", "plain_workers"],
    ),
    "text": ("28 numeric columns and a text, shuffled", ["raw_text", "headrace_text", "mapped"]),
    "tokens": (
        "token sequences, shuffled, padded to the longest of a batch",
        ["raw_tokens_2_threads", "headrace_tokens", "nodes_tokens", "lance_tokens"],
    ),
}
LOOPS = ["numbers_numpy", "in_order_numpy", "csv", "csv_shuffled"]  # quick: `--workloads loops`
WORDS = {
    "raw_1_thread_ahead": "pyarrow, 1 thread ahead",
    "raw": "pyarrow",
    "headrace_rewritten_page_checks": "headrace, rewritten files, pages checked",
    "nodes": "torchdata's nodes",
    "lance": "Lance",
    "hf": "Hugging Face datasets",
    "packed_workers": "pyarrow, a batch as one tensor",
    "plain_workers": "pyarrow, a batch as many tensors",
    "headrace_2_workers": "headrace",
    "raw_text": "pyarrow",
    "mapped": "a mapped Arrow file",
    "headrace_text": "headrace",
    "raw_tokens_2_threads": "pyarrow, 2 threads",
    "nodes_tokens": "torchdata's nodes",
    "lance_tokens": "Lance",
    "headrace_tokens": "headrace",
}
for _ending in ("", "_in_order"):
    _where = _ending.replace("_in_order", ", in order")
    for _form in ("", "_numpy"):
        WORDS["pyarrow_loop" + _ending + _form] = "pyarrow, 2 threads" + _where
        WORDS["polars_loop" + _ending + _form] = "Polars, 2 threads" + _where
        WORDS["headrace" + _ending + _form] = "headrace" + _where
        WORDS["headrace_rewritten" + _ending + _form] = (
            "headrace, rewritten files, every shard checked" + _where
        )
for _ending in ("", "_shuffled"):
    WORDS["polars_csv" + _ending] = "Polars, 2 threads"
    WORDS["pyarrow_csv" + _ending] = "pyarrow, 2 threads"
    WORDS["headrace_csv" + _ending] = "headrace"
