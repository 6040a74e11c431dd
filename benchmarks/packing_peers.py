"""Who packs, gathers and writes in `packing.py`.

Packers of other projects run their own code: the one file that packs, loaded from the installed package without the
rest of it, so that `pip install --no-deps` is enough. "Plain" ones are written here, by definition of the algorithm.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.bins.bins import Bins
from headrace.bins.pack import pack

Sizes = tuple[np.ndarray, np.ndarray]  # per bin: tokens, sequences
Packer = Callable[[np.ndarray, int], Callable[[], Sizes]]


def _ours(algorithm: Any) -> Packer:
    def run(lengths: np.ndarray, capacity: int) -> Callable[[], Sizes]:
        bins = pack(lengths, capacity, algorithm=algorithm)
        return lambda: (bins.loads(lengths), bins.counts)

    return run


def plain_first_fit(decreasing: str) -> Packer:
    """Look at every bin for every sequence: what preparations do that keep a list of bins."""

    def run(lengths: np.ndarray, capacity: int) -> Callable[[], Sizes]:
        order = (
            np.argsort(-lengths, kind="stable")
            if decreasing == "decreasing"
            else np.random.permutation(len(lengths))
        )
        room: list[int] = []
        bins: list[list[int]] = []
        for length in lengths[order].tolist():
            for place, free in enumerate(room):
                if free >= length:
                    bins[place].append(length)
                    room[place] -= length
                    break
            else:
                bins.append([length])
                room.append(capacity - length)
        return lambda: _of_lengths(bins)

    return run


def _of_lengths(bins: list[list[int]]) -> Sizes:
    return np.array([sum(each) for each in bins]), np.array([len(each) for each in bins])


def _file_of(package: str, *parts: str) -> Path:
    """A file of an installed package, which is not imported. Raises `ImportError` if it is not installed."""
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(place, *parts)).exists():
            return path
    raise ImportError(f"{package} is not installed")


def _load(path: Path, **stubs: dict[str, Any]) -> Any:
    for name, attributes in stubs.items():
        pieces = name.split("__")
        for end in range(1, len(pieces) + 1):
            sys.modules.setdefault(".".join(pieces[:end]), types.ModuleType(".".join(pieces[:end])))
        for attribute, value in attributes.items():
            setattr(sys.modules[".".join(pieces)], attribute, value)
    spec = importlib.util.spec_from_file_location(f"peer_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _bridge(path: Path | None) -> Packer:
    module = None

    def run(lengths: np.ndarray, capacity: int) -> Callable[[], Sizes]:
        bins = module.first_fit_decreasing(lengths.tolist(), capacity)
        return lambda: _of_lengths(bins)

    file = path or _file_of("megatron", "bridge", "data", "datasets", "packing_utils.py")
    module = _load(file, megatron__bridge__utils__safe_pickle={"safe_load_npy": None})
    return run


def _llama_factory(batch: int | None) -> Packer:
    module = _load(_file_of("llamafactory", "data", "processor", "processor_utils.py"))

    def run(lengths: np.ndarray, capacity: int) -> Callable[[], Sizes]:
        step = batch or len(lengths)
        bins: list[list[int]] = []
        for at in range(0, len(lengths), step):
            bins += module.greedy_knapsack(lengths[at : at + step].tolist(), capacity)
        return lambda: _of_lengths(bins)

    return run


def _trl(batch: int | None) -> Packer:
    """Tokens of one byte: its packer moves them, and they should cost as little as can be."""
    module = _load(
        _file_of("trl", "data_utils.py"),
        transformers={"PreTrainedTokenizerBase": object, "ProcessorMixin": object},
    )

    def run(lengths: np.ndarray, capacity: int) -> Callable[[], Sizes]:
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        column = pa.LargeListArray.from_arrays(
            pa.array(offsets), pa.array(np.zeros(offsets[-1], np.int8))
        )
        step = batch or len(lengths)
        parts = [
            module._pack_bfd(pa.table({"input_ids": column.slice(at, step)}), capacity)[
                "seq_lengths"
            ]
            for at in range(0, len(lengths), step)
        ]
        return lambda: _of_lengths([each for part in parts for each in part.to_pylist()])

    return run


def _binpacking() -> Packer:
    import binpacking

    def run(lengths: np.ndarray, capacity: int) -> Callable[[], Sizes]:
        bins = binpacking.to_constant_volume(lengths.tolist(), capacity)
        return lambda: _of_lengths(bins)

    return run


def _axolotl() -> Packer:
    import logging

    module = _load(
        _file_of("axolotl", "utils", "samplers", "multipack.py"),
        axolotl__utils__distributed={"reduce_and_broadcast": None},
        axolotl__utils__logging={"get_logger": logging.getLogger},
    )
    module.pack_group(
        np.array([3, 2, 1], np.int32), 0, 4, 3, 200, True
    )  # compiled before the clock

    def run(lengths: np.ndarray, capacity: int) -> Callable[[], Sizes]:
        order = np.random.default_rng(0).permutation(len(lengths))
        bins = module.pack_parallel(
            lengths[order].astype(np.int32), capacity, 100_000, 200, 1, True, "fork"
        )
        return lambda: _of_lengths([lengths[order[np.asarray(each)]].tolist() for each in bins])

    return run


def _torchtune() -> Packer:
    """Its packs are padded tensors of tokens, labels and positions: it does more than choose."""
    import tqdm

    module = _load(
        _file_of("torchtune", "datasets", "_packed.py"),
        torchtune__data___common={"CROSS_ENTROPY_IGNORE_IDX": -100, "PACK_TYPE": dict},
    )
    module.tqdm = lambda *_, **options: tqdm.tqdm(disable=True, **options)

    def run(lengths: np.ndarray, capacity: int) -> Callable[[], Sizes]:
        rows = [{"tokens": [0] * length, "labels": [0] * length} for length in lengths.tolist()]
        packs = module.PackedDataset(rows, max_seq_len=capacity).packs
        full = np.full(len(packs), lengths.sum() / len(packs))
        return lambda: (full, np.array([len(each["seq_lens"]) for each in packs]))

    return run


def packers(bridge: Path | None) -> dict[str, tuple[int, Callable[[], Packer]]]:
    """Name → (most sequences it is asked to pack, how to get it)."""
    return {
        "headrace best_fit_shuffle": (10**6, lambda: _ours("best_fit_shuffle")),
        "headrace exact_fit_shuffle": (10**5, lambda: _ours("exact_fit_shuffle")),
        "headrace first_fit_decreasing": (10**6, lambda: _ours("first_fit_decreasing")),
        "headrace concatenative": (10**6, lambda: _ours("concatenative")),
        "plain first fit decreasing, every bin looked at": (
            10**4,
            lambda: plain_first_fit("decreasing"),
        ),
        "plain first fit, every bin looked at": (10**4, lambda: plain_first_fit("shuffled")),
        "Megatron-Bridge from the registry": (10**4 // 4, lambda: _bridge(None)),
        "Megatron-Bridge of a checkout": (10**5, lambda: _bridge(_given(bridge))),
        "LLaMA-Factory, whole set": (10**5, lambda: _llama_factory(None)),
        "LLaMA-Factory, batches of 1,000": (10**6, lambda: _llama_factory(1000)),
        "trl bfd, whole set": (10**5, lambda: _trl(None)),
        "trl bfd, batches of 1,000": (10**5, lambda: _trl(1000)),
        "binpacking (ms-swift's), whole set": (10**4, lambda: _binpacking()),
        "axolotl": (10**6, lambda: _axolotl()),
        "torchtune": (10**4, lambda: _torchtune()),
    }


def _given(path: Path | None) -> Path:
    if path is None:
        raise ImportError("no checkout given; see --bridge")
    return path


class PerSequenceSpool:
    """The specification's reader of a spool: two seeks and two reads for every sequence."""

    def __init__(self, directory: Path) -> None:
        self.tokens = (directory / "tokens.bin").open("rb")
        self.masks = (directory / "masks.bin").open("rb")
        self.offsets = np.fromfile(directory / "offsets.bin", np.uint64)
        self.lengths = np.fromfile(directory / "lengths.bin", np.uint32)

    def read_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and mask of one sequence."""
        at, size = int(self.offsets[number]), int(self.lengths[number])
        self.tokens.seek(4 * at, io.SEEK_SET)
        self.masks.seek(at, io.SEEK_SET)
        return np.frombuffer(self.tokens.read(4 * size), np.int32), np.frombuffer(
            self.masks.read(size), np.uint8
        )


def specified_bin(
    reader: PerSequenceSpool, bins: Bins, number: int, size: int, ids: np.ndarray, mask: np.ndarray
) -> tuple[int, np.ndarray]:
    """The specification's way to one bin: clear the buffers, copy sequence by sequence, roll the mask."""
    ids[:] = 0
    mask[:] = 0
    at = 0
    starts = []
    for sequence in bins.bin(number):
        tokens, learned = reader.read_sequence(int(sequence))
        room = min(len(tokens), size - at)
        if room <= 0:
            break
        starts.append(at)
        ids[at : at + room] = tokens[:room]
        mask[at : at + room] = learned[:room]
        at += room
    if at:
        mask[1:at] = mask[: at - 1].copy()
        mask[0] = 0
    return at, np.array(starts, np.uint32)


class SpecifiedWriter:
    """The specification's Parquet writer: a list of arrays for each column, pyarrow's defaults, a plain rename."""

    SCHEMA = pa.schema(
        [
            ("input_ids", pa.list_(pa.int32())),
            ("loss_mask", pa.list_(pa.uint8())),
            ("seq_start_id", pa.list_(pa.int32())),
        ]
    )

    def __init__(self, path: str, row_group_size: int = 1000) -> None:
        self.path = path
        self.size = row_group_size
        self.lists: tuple[list[np.ndarray], ...] = ([], [], [])
        self.writer = pq.ParquetWriter(path + ".tmp", self.SCHEMA, compression="zstd")

    def write_bin(self, bin_id: int, ids: np.ndarray, mask: np.ndarray, starts: np.ndarray) -> None:
        """Keep a bin; write when a row group is full."""
        del bin_id
        for kept, values, kind in zip(
            self.lists, (ids, mask, starts), (np.int32, np.uint8, np.int32), strict=True
        ):
            kept.append(values.astype(kind, copy=False))
        if len(self.lists[0]) >= self.size:
            self.flush()

    def flush(self) -> None:
        """Write a row group."""
        if self.lists[0]:
            arrays = [
                pa.array(kept, type=field.type)
                for kept, field in zip(self.lists, self.SCHEMA, strict=True)
            ]
            self.writer.write_table(pa.Table.from_arrays(arrays, schema=self.SCHEMA))
            for kept in self.lists:
                kept.clear()

    def finalize(self) -> None:
        """Write the rest, rename."""
        self.flush()
        self.writer.close()
        os.rename(self.path + ".tmp", self.path)
