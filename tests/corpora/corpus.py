"""Read every file of a corpus in all ways, in processes that may die.

The law: each way delivers what the reference reader reads – values, and types as headrace
normalises them – or raises a `HeadraceError` that names the file. A raw exception, a process that
dies and a difference are failures.

A corpus is an object of a module of this directory, so that a server process, which has imported
all libraries, can find it and fork a child that reads the files:

    python corpus.py json_corpus:JSON ids.json results.jsonl
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

SHARED = Path(__file__).parents[3] / "shared" / "data" / "corpora"
_PATIENCE_S = 120.0  # for one way to read a file
_USED = (
    "pandas",
    "torch",
    "headrace.dataset.plain",
    "headrace.dataset.verify",
    "headrace.formats.arrow",
    "headrace.formats.delimited",
    "headrace.formats.jsonl",
    "headrace.formats.parquet",
    "headrace.formats.write",
    "headrace.histories.capability",
    "headrace.packing.capability",
    "headrace.packing.preferences.capability",
    "headrace.rewriting.capability",
    "headrace.rewriting.recipe",
    "headrace.run.prepare",
    "headrace.series.capability",
    "headrace.split.capability",
    "headrace.split.recipe",
    "headrace.split.verify",
    "headrace.stream.loader.dataset",
    "headrace.stream.loader.stream_loader",
)


class Refused(Exception):
    """The reference reader does not read a file."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Files, and what they hold.

    address: "module:name" of this object. files: id → path. extension: of the name under which a
    file is read, which `wrap` writes.
    wrap: writes the copy that is read; by default, the same bytes.
    truth: the table in a copy, of any Arrow types; None where each reading is right. Raises
    `Refused`. It is given the schema that headrace shows.
    options: of `headrace.open`.
    """

    address: str
    files: Callable[[], Mapping[str, Path]]
    extension: Callable[[Path], str]
    truth: Callable[[Path, pa.Schema], pa.Table | None]
    wrap: Callable[[Path, Path], object] = shutil.copyfile
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What became of a file. ways: way → "equal", "refused: …" or "failed: …"."""

    id: str
    ways: dict[str, str]
    reference: str

    @property
    def failures(self) -> list[str]:
        """The ways that broke the law."""
        failed = []
        for way, result in self.ways.items():
            if result.startswith("failed"):
                failed.append(f"{self.id}, {way}: {result}")
        return failed

    @property
    def word(self) -> str:
        """Return "failed", "equal" or "refused"."""
        if self.failures:
            return "failed"
        return "equal" if self.ways.get("to_arrow") == "equal" else "refused"

    @property
    def refused_alone(self) -> bool:
        """Whether headrace refuses what the reference reader reads."""
        return self.word == "refused" and self.reference == "read"


def run_corpus(
    corpus: Corpus, directory: Path, *, servers: int = 2, ids: Sequence[str] | None = None
) -> list[Outcome]:
    """Read the files of a corpus, or some of them. directory: for copies and outputs."""
    chosen = list(corpus.files()) if ids is None else list(ids)
    running = []
    for number in range(min(servers, len(chosen))):
        asked = directory / f"ids-{number}.json"
        told = directory / f"results-{number}.jsonl"
        asked.write_text(json.dumps(chosen[number::servers]))
        command = [sys.executable, "-W", "ignore", __file__, corpus.address, str(asked), str(told)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
            "HEADRACE_REPORT": "never",
            "PYTHONWARNINGS": "ignore",
        }
        running.append((subprocess.Popen(command, env=environment), told))
    outcomes = []
    for process, told in running:
        assert process.wait() == 0
        for line in told.read_text().splitlines():
            outcomes.append(Outcome(**json.loads(line)))
    return sorted(outcomes, key=lambda outcome: outcome.id)


def figures(outcomes: Sequence[Outcome]) -> str:
    """Count what became of the files, in a line."""
    words = Counter(outcome.word for outcome in outcomes)
    alone = sum(outcome.refused_alone for outcome in outcomes)
    return (
        f"{len(outcomes)} files: {words['equal']} equal, {words['refused']} refused ({alone} of them"
        f" read by the reference), {words['failed']} failures"
    )


# What runs in the server and its children.


def main(address: str, asked: str, told: str) -> None:
    """Read files in a child, and write a line for each into `told`.

    Where a child dies, another reads the files that are left.
    """
    module, _, name = address.partition(":")
    corpus: Corpus = getattr(import_module(module), name)
    _import_all()
    scratch = Path(told).with_suffix(".scratch")
    left = list(json.loads(Path(asked).read_text()))
    with open(told, "w") as results:
        while left:
            outcomes = _in_a_child(corpus, left, scratch)
            for outcome in outcomes:
                results.write(json.dumps(outcome.__dict__) + "\n")
            left = left[len(outcomes) :]


def _import_all() -> None:
    """Import what the children use, so that none does it again; no thread runs before a fork."""
    for module in _USED:
        import_module(module)


def _in_a_child(corpus: Corpus, ids: Sequence[str], scratch: Path) -> list[Outcome]:
    """Read files in a child, up to the first that ends it; at least one."""
    scratch.mkdir()
    report = scratch / "report.jsonl"
    report.touch()
    child = os.fork()
    if not child:
        code = 1
        try:
            _read_files(corpus, ids, scratch, report)
            code = 0
        except BaseException:  # noqa: BLE001 - the parent tells of it
            traceback.print_exc()
        finally:
            os._exit(code)
    ending = _wait(child, report)
    told: dict[str, dict[str, str]] = {ids[0]: {}}
    for line in report.read_text().splitlines():
        id_, way, result = json.loads(line)
        told.setdefault(id_, {})[way] = result
    shutil.rmtree(scratch, ignore_errors=True)
    return [
        _outcome(id_, ways, ending if id_ == list(told)[-1] else None) for id_, ways in told.items()
    ]


def _outcome(id_: str, told: Mapping[str, str], ending: str | None) -> Outcome:
    """Return what became of a file. ending: how the child died while it read this one."""
    ways = dict(told)
    reference = ways.pop("reference", "not asked")
    if ending is not None:
        if reference == "begun":
            reference = f"crashed ({ending})"
        else:
            last = list(ways)[-1] if ways else "open"
            ways[last] = f"failed: {ending}"
    for way, result in ways.items():
        if result == "begun" and way == "open":
            ways[way] = "equal"
        elif result == "begun":  # it was read, and never compared
            ways[way] = f"failed: the reference {reference}"
    if reference != "read" and reference != "any" and ways.get("to_arrow") == "equal":
        ways["to_arrow"] = f"failed: the reference {reference}"
    return Outcome(id_, ways, reference)


def _wait(child: int, report: Path) -> str | None:
    """Wait for a child; return how it died, None if it ended well."""
    size, end = 0, time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            if os.WIFSIGNALED(status):
                return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
            code = os.waitstatus_to_exitcode(status)
            return None if code == 0 else f"ended with {code}"
        if report.stat().st_size != size:
            size, end = report.stat().st_size, time.monotonic() + _PATIENCE_S
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"did not end within {_PATIENCE_S:.0f} s"


def _read_files(corpus: Corpus, ids: Sequence[str], scratch: Path, report: Path) -> None:
    """Read files, one after the other."""
    import logging

    logging.disable(logging.CRITICAL)
    os.fsync = lambda descriptor: None  # nothing here has to outlive the machine
    files = corpus.files()
    with report.open("a") as lines:
        for number, id_ in enumerate(ids):

            def tell(way: str, result: str, id_: str = id_) -> None:
                lines.write(json.dumps([id_, way, result]) + "\n")
                lines.flush()

            directory = scratch / str(number)
            directory.mkdir()
            os.environ.update(HOME=str(directory), XDG_CACHE_HOME=str(directory / "cache"))
            _read_all_ways(corpus, files[id_], directory, tell)
            shutil.rmtree(directory, ignore_errors=True)


def _read_all_ways(
    corpus: Corpus, path: Path, scratch: Path, tell: Callable[[str, str], None]
) -> None:
    """Read a file in all ways, and tell the result of each as soon as it is known."""
    import headrace

    name = f"file{corpus.extension(path)}"
    file = scratch / name
    corpus.wrap(path, file)
    for day in ("2024-01-01", "2024-06-01"):
        (scratch / "days" / f"day={day}").mkdir(parents=True)
        os.link(file, scratch / "days" / f"day={day}" / name)
    ways = _Ways(file, scratch, corpus.options)
    tables: dict[str, pa.Table] = {}
    for way, read in ways.all():
        tell(way, "begun")
        try:
            tables[way] = read()
        except headrace.HeadraceError as error:
            # a type that torch lacks is of a column, not of a file
            names = name in str(error) or (way == "torch" and error.column is not None)
            tell(way, f"{'refused' if names else 'failed: does not name the file'}: {error}")
        except Exception as error:  # noqa: BLE001 - each is a failure of this file
            at = traceback.extract_tb(error.__traceback__)[-1]
            tell(way, f"failed: {type(error).__name__}: {error} ({at.filename}:{at.lineno})")
    tell("reference", "begun")
    schema = next(iter(tables.values())).schema if tables else pa.schema([])
    try:
        truth = corpus.truth(file, schema)
    except Refused as error:
        tell("reference", f"refuses: {error}")
        for way in tables:
            if way != "open":  # it reads no rows
                tell(way, f"failed: the reference refuses: {error}")
        return
    tell("reference", "any" if truth is None else "read")
    for way, table in tables.items():
        if truth is None:
            tell(way, "equal")
            continue
        tell(way, "begun")
        problem = ways.compare(way, truth, table)
        tell(way, "equal" if problem is None else f"failed: {problem}")


class _Ways:
    """The ways to read a file."""

    def __init__(self, file: Path, scratch: Path, options: Mapping[str, Any]) -> None:
        self.file, self.scratch, self.options = file, scratch, options
        self.cache = scratch / "cache"

    def all(self) -> Iterator[tuple[str, Callable[[], pa.Table]]]:
        yield "open", self.open
        yield "rows", self.rows
        yield "to_arrow", self.to_arrow
        yield "torch", self.torch
        yield "arrow", self.arrow
        if self._has_rows():
            yield "rewrite", self.rewrite
            yield "split", self.split

    def _has_rows(self) -> bool:
        """Whether anything can be written; a file that `open` refuses is tried."""
        import headrace

        try:
            return bool(self._dataset().split_rows["all"])
        except headrace.HeadraceError:
            return True

    def _dataset(self, path: Path | None = None) -> Any:
        import headrace

        if path is not None:
            return headrace.open(path, cache_dir=self.cache)
        return headrace.open(self.file, cache_dir=self.cache, **self.options)

    def open(self) -> pa.Table:
        """The schema alone, of the columns that are read at all."""
        from headrace.formats.plain_types import refusal

        schema = self._dataset().schema
        return pa.schema([field for field in schema if refusal(field.type) is None]).empty_table()

    def rows(self) -> pa.Table:
        """Block by block."""
        dataset = self._dataset()
        reader = dataset["all"].reader() if "all" in dataset.splits else []
        return pa.Table.from_batches(list(reader), dataset.schema)

    def to_arrow(self) -> pa.Table:
        table = self._dataset()["all"].to_arrow()
        table.validate(full=True)
        return table

    def arrow(self) -> pa.Table:
        """Batches in Arrow, in the stored order."""
        dataset = self._dataset()
        batches = [
            batch.drop_columns(["valid"]) if "valid" in batch.column_names else batch
            for batch in dataset.stream(batch_size=7, batch_format="arrow")
        ]
        return pa.concat_tables(batches) if batches else dataset.schema.empty_table()

    def torch(self) -> pa.Table:
        """Batches of tensors: columns that are tensors."""
        import torch

        parts: dict[str, list[Any]] = {}
        rows = 0
        dataset = self._dataset()
        for batch in dataset.stream(batch_size=1024):
            rows += len(batch["valid"])
            for name, values in batch.items():
                if isinstance(values, torch.Tensor) and values.ndim == 1:
                    parts.setdefault(name, []).append(values)
        assert rows == dataset.split_rows["all"], f"{rows} rows of {dataset.split_rows}"
        columns = {}
        for name, tensors in parts.items():
            # times are numbers in a tensor
            if name in dataset.schema.names and not pa.types.is_temporal(
                dataset.schema.field(name).type
            ):
                columns[name] = pa.array(torch.cat(tensors).numpy())
        return pa.table(columns) if columns else dataset.schema.empty_table().select([])

    def rewrite(self) -> pa.Table:
        import headrace

        out = self.scratch / "rewritten"
        headrace.rewrite(self.file, out, types=self.options.get("types", {}))
        dataset = self._dataset(out)
        return dataset[dataset.splits[0]].to_arrow()

    def split(self) -> pa.Table:
        import headrace

        out = self.scratch / "split"
        source = self.scratch / "days"
        settings = headrace.TemporalSplit(
            source=source, time="day", split_date="2024-03-01", duplicates="allow"
        )
        headrace.prepare(settings, out)
        assert headrace.verify(out)
        dataset = self._dataset(out)
        tables = {name: dataset[name].to_arrow() for name in dataset.splits}
        if not dataset.split_rows.get("train"):
            return pa.table({})
        assert tables["train"].drop_columns(["day"]).equals(
            tables["test"].drop_columns(["day"])
        ) or repr(tables["train"].drop_columns(["day"]).to_pylist()) == repr(
            tables["test"].drop_columns(["day"]).to_pylist()
        )
        return tables["train"].drop_columns(["day"])

    def compare(self, way: str, truth: pa.Table, actual: pa.Table) -> str | None:
        """Return how a way differs from the truth; None if it does not."""
        from same import difference

        from headrace.formats.plain_types import refusal

        if way == "open":
            read = [field.name for field in truth.schema if refusal(field.type) is None]
            truth = truth.slice(0, 0).select(read)
        if way == "torch":
            names = [name.replace("__DOT__", ".") for name in truth.column_names]
            known = [names.index(name) for name in actual.column_names]
            return difference(truth.select(known), actual, types="any")
        return difference(truth, actual, types="any" if way in ("arrow", "split") else "plain")


if __name__ == "__main__":
    # Not this module, which corpora import under its name: `Refused` is a class of that one.
    import_module("corpus").main(*sys.argv[1:])
