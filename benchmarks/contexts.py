"""Contexts: builders beside a plain loop, end to end from prepared runs, and how full they are.

    python benchmarks/contexts.py [--tables builders,runs,fill] [--rounds 3] [--data ../shared/data]

Times are CPU seconds of the process, which say the same on a busy machine. "builders": from decoded rows of 400,000
measurements, once only to the tokens of contexts, once to the six arrays that a training loop takes, and each beside
the loop that goes as far. The loop (`contexts_loop`) makes a list of tokens for each context, and numpy makes arrays of
60 such lists; headrace finds which contexts they are and draws all of them, 256 a call, as int32 [256, 1025] tokens
(`build`) or int32 [256, 1024] arrays (`Contexts.batch`): 4 or 24 KB a context. "runs": from prepared runs of 4 M
measurements, rows opened from the page cache: all contexts of a row in a row (`shuffle="rows"`), and all at random.
"fill": padding and coverage of an epoch, made whole, of a synthetic Zipf corpus and of RIPE Atlas and Seattle where
--data has them.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from contexts_loop import plain_arrays, plain_context
from figures import Cell, Table, figure, ratio
from reporting import parser, publish

import headrace
from headrace.contexts import ContextOptions, Contexts, open_contexts
from headrace.histories.codec.rows import RowColumns
from headrace.histories.contexts.contexts import build

CALL, PLAIN = 256, 60  # contexts a call, of headrace and of the loop
CALLS = 24


class OneRow:
    """A store of one decoded row."""

    def __init__(self, row: RowColumns) -> None:
        self.row, self.n = row, np.array([row.n])

    def open(self, numbers: Sequence[int]) -> Mapping[int, RowColumns]:
        """The row."""
        return dict.fromkeys(numbers, self.row)


def synthetic_row(n: int, family: int) -> RowColumns:
    """Pings to 500 peers of one family, 5 s apart, 3 % failed."""
    generator = np.random.default_rng(family)
    return RowColumns(
        first_time=1_500_000_000,
        offsets=np.cumsum(generator.poisson(5, n)).astype(np.uint32),
        codes=np.where(generator.random(n) < 0.03, 0, generator.integers(1, 1 << 16, n)).astype(
            np.uint16
        ),
        peers=generator.integers(0, 500, n).astype(np.uint16),
        peer_family=np.full(500, family, np.uint8),
        peer_bytes=generator.integers(0, 256, (500, 16), np.uint8),
        entity_kind="address",
        peer_kind="address",
        entity_family=family,
        entity_bytes=generator.integers(0, 256, 16, np.uint8),
        part=0,
    )


def rate(work: Callable[[int], Any], contexts: int, number: int) -> float:
    """Contexts a CPU second; work(number) makes `contexts` of them."""
    begin = time.process_time()
    work(number)
    return contexts / (time.process_time() - begin)


def plain_contexts(row: RowColumns, generator: random.Random, _: int) -> list[list[int]]:
    """The tokens of contexts, by the loop."""
    return [plain_context(row, generator, 1025) for _ in range(PLAIN)]


def plain_batch(row: RowColumns, generator: random.Random, number: int) -> None:
    """Their arrays."""
    plain_arrays(plain_contexts(row, generator, number))


def headrace_contexts(contexts: Contexts, calls: int, arrays: bool, number: int) -> None:
    """The tokens, or the arrays, of some calls' contexts."""
    for call in range(calls):
        begin = (number * calls + call) * CALL % 10_000
        if arrays:
            contexts.batch(range(begin, begin + CALL))
        else:
            build(contexts.index, contexts.rows, np.arange(begin, begin + CALL))


def builders(rounds: int) -> Iterator[Table]:
    """From decoded rows."""
    rows: list[tuple[Cell, ...]] = []
    for family in (4, 6):
        row = synthetic_row(400_000, family)
        loop = (row, random.Random(0))
        ways: dict[str, tuple[Callable[[int], Any], Callable[[int], Any], int]] = {
            "a plain loop": (partial(plain_contexts, *loop), partial(plain_batch, *loop), PLAIN)
        }
        contexts = Contexts(OneRow(row), ContextOptions(rows="measurements"))
        contexts.batch(range(CALL))
        tokens, arrays = (
            partial(headrace_contexts, contexts, CALLS, each) for each in (False, True)
        )
        ways["headrace"] = tokens, arrays, CALLS * CALL
        made: dict[tuple[str, int], list[float]] = {
            (name, goal): [] for name in ways for goal in (0, 1)
        }
        for number in range(rounds):
            for name, (*works, count) in ways.items():
                for goal, work in enumerate(works):
                    made[name, goal].append(rate(work, count, number))
        for name in ways:
            cells = [
                (
                    figure(made[name, goal], 0),
                    ratio(made[name, goal], made["a plain loop", goal], 0),
                )
                for goal in (0, 1)
            ]
            rows.append((f"IPv{family}", name, *cells[0], *cells[1]))
    heads = ("addresses", "builder", "tokens", "times the loop's", "six arrays", "times the loop's")
    note = "Contexts a CPU second, to their tokens and to the arrays of a training loop."
    yield Table("builders", "Contexts from decoded rows of 400,000 measurements", heads, rows, note)


def pings(path: Path, sizes: np.ndarray, *, families: int = 1) -> None:
    """Shuffled pings of probes with these numbers of measurements."""
    generator = np.random.default_rng(0)
    probe = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    names = pa.array(
        [
            f"10.{k >> 16}.{k >> 8 & 255}.{k & 255}" if k % families == 0 else f"2001:db8::{k:x}"
            for k in range(len(sizes))
        ]
    )
    peers = pa.array([f"192.0.{k >> 8}.{k & 255}" for k in range(500)])
    path.mkdir()
    for number, part in enumerate(np.array_split(probe, 8)):
        table = pa.table(
            {
                "src_addr": names.take(pa.array(part)),
                "dst_addr": peers.take(pa.array(generator.integers(0, 500, len(part)))),
                "event_time": pa.array(
                    1_500_000_000 + generator.integers(0, 28 * 86400, len(part))
                ),
                "rtt": np.where(
                    generator.random(len(part)) < 0.03, -1.0, generator.lognormal(3, 1, len(part))
                ),
            }
        )
        pq.write_table(table, path / f"part-{number}.parquet")


def prepared(source: Path, out: Path, **settings: Any) -> Path:
    """A run of the recipe."""
    headrace.prepare(
        headrace.Histories(
            source=source, dialect={"time_format": "epoch_s"}, train_ratio=1.0, **settings
        ),
        out,
    )
    return out


def runs(rounds: int) -> Iterator[Table]:
    """End to end: rows opened, contexts made, batches of six arrays."""
    rows: list[tuple[Cell, ...]] = []
    with tempfile.TemporaryDirectory() as scratch:
        pings(Path(scratch) / "pings", np.full(4, 1_000_000))
        for row_bytes in (8 << 20, 64 << 10):
            for format_ in ("array_record", "arrow"):
                out = prepared(
                    Path(scratch) / "pings", Path(scratch) / f"{row_bytes}{format_}", format=format_, peer="dst_addr",
                    max_row_bytes=row_bytes, partitions=4,
                )  # fmt: skip
                for shuffle in ("rows", "contexts"):
                    contexts = open_contexts(out, shuffle=shuffle, cache_bytes=1 << 20)
                    few = (
                        format_ == "array_record" and shuffle == "contexts" and row_bytes > 1 << 20
                    )
                    count, size = (32, 4) if few else (min(len(contexts), 1024), 64)
                    contexts.batch(range(size))

                    def work(
                        number: int,
                        contexts: Contexts = contexts,
                        count: int = count,
                        size: int = size,
                    ) -> None:
                        for begin in range(number * count, (number + 1) * count, size):
                            contexts.batch(range(begin, begin + size))

                    made = figure([rate(work, count, number) for number in range(rounds)], 0)
                    rows.append(
                        (f"at most {row_bytes >> 10:,} KB", f"`{format_}`", f'`"{shuffle}"`', made)
                    )
    heads = ("rows", "format", "shuffle", "contexts a CPU second")
    yield Table("runs", "Contexts from prepared runs of 4,000,000 measurements", heads, rows)


def ripe(data: Path, path: Path) -> None:
    """RIPE Atlas series: a probe a file."""
    path.mkdir()
    for source in sorted(
        (data / "job3-ripe-rtt-labelled" / "real_trace_labelled").glob("*.csv.gz")
    ):
        rows = list(
            csv.DictReader(
                io.StringIO(gzip.decompress(source.read_bytes()).decode()), delimiter=";"
            )
        )
        form = "%d/%m/%Y %H:%M" if "/" in rows[0]["epoch"] else "%Y-%m-%d %H:%M:%S"
        times = [time.strptime(row["epoch"], form) for row in rows]
        seconds = [
            int((np.datetime64(time.strftime("%Y-%m-%dT%H:%M:%S", each))).astype(np.int64))
            for each in times
        ]
        table = {"src_addr": [source.name.split(".")[0]] * len(rows), "event_time": seconds}
        pq.write_table(
            pa.table({**table, "rtt": [float(row["rtt"]) for row in rows]}),
            path / f"{source.stem}.parquet",
        )


def seattle(data: Path, path: Path) -> None:
    """Seattle matrices: 99 nodes, a slice each minute."""
    path.mkdir()
    with tarfile.open(data / "job3-seattle-latency" / "Seattle.tar.gz") as archive:
        members = [
            each
            for each in archive
            if each.name.rpartition("_")[2].split(".")[0].isdigit() and each.isfile()
        ]
        for member in members:
            number = int(member.name.rpartition("_")[2].split(".")[0])
            file = archive.extractfile(member)
            assert file is not None
            values = np.loadtxt(file)
            source, peer = np.nonzero(values)
            columns = {
                "src_addr": source,
                "dst_addr": peer,
                "event_time": np.full(len(source), number * 60),
            }
            pq.write_table(
                pa.table({**columns, "rtt": values[source, peer] * 1000}),
                path / f"{number}.parquet",
            )


def fill(data: Path) -> Iterator[Table]:
    """Padding and coverage of whole epochs."""
    lines: list[tuple[Cell, ...]] = []
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        pings(
            work / "zipf",
            np.maximum(1, (2_000_000 / np.arange(1, 20_001) / 10.5)).astype(int),
            families=2,
        )
        outs = {"zipf": prepared(work / "zipf", work / "zipf-out", peer="dst_addr", format="arrow")}
        pings(work / "tiny", np.random.default_rng(1).poisson(26, 20_000))
        outs["tiny"] = prepared(work / "tiny", work / "tiny-out", peer="dst_addr", format="arrow")
        if (data / "job3-ripe-rtt-labelled").is_dir():
            ripe(data, work / "ripe")
            outs["ripe"] = prepared(
                work / "ripe", work / "ripe-out", entity_kind="number", format="arrow"
            )
        else:
            missing["RIPE Atlas"] = "its files are not in --data"
        if (data / "job3-seattle-latency").is_dir():
            seattle(data, work / "seattle")
            outs["seattle"] = prepared(
                work / "seattle", work / "seattle-out", entity_kind="number", peer="dst_addr", peer_kind="number",
                format="arrow", max_row_bytes=256 << 10,
            )  # fmt: skip
        else:
            missing["Seattle"] = "its files are not in --data"
        for name, out in outs.items():
            for rows in ("uniform", "measurements"):
                contexts = open_contexts(out, rows=rows, shuffle="rows")
                padding, count = 0, min(len(contexts), 20_000)
                for begin in range(0, count, CALL):
                    batch = contexts.batch(range(begin, min(begin + CALL, count)))
                    padding += int((batch["inputs_segmentation"] == 0).sum())
                plan = contexts.plan()
                said = (f"{plan.rows:,}", f"{plan.small_rows:,}", f"{len(contexts):,}")
                lines.append(
                    (
                        name,
                        f'`"{rows}"`',
                        *said,
                        f"{padding / count / 1024:.2%}",
                        f"{plan.coverage:.1%}",
                    )
                )
    heads = ("corpus", "`rows=`", "rows", "small ones", "contexts", "padding", "coverage")
    yield Table("fill", "How full the contexts of an epoch are", heads, lines, missing=missing)


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Those asked for."""
    made = {"builders": lambda: builders(asked.rounds), "runs": lambda: runs(asked.rounds)}
    for name in asked.tables.split(","):
        yield from fill(asked.data) if name == "fill" else made[name]()


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--tables", default="builders,runs,fill")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--data", type=Path, default=Path("../shared/data"))
    asked = made.parse_args()
    publish(tables(asked), asked.json, ["numba", "array_record"])


if __name__ == "__main__":
    main()
