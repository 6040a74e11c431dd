"""Run what `init` proposes on the data that it looked at, in a temporary directory.

So no configuration is written that `headrace run` refuses, and what it would lose is known: from
the run, not from a second account of its rules.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.cli.init.look import WHOLE, Data, evenly
from headrace.dataset.grade import grade_of
from headrace.errors import HeadraceError, SettingsError
from headrace.formats.listing import Listing
from headrace.recipe import JobSettings, Recipe, find_recipe
from headrace.report.words import pluralise, size
from headrace.run.events import Event, Note
from headrace.run.prepare import prepare

_QUOTED = (".csv", ".tsv")
_TEXTS = (*_QUOTED, ".jsonl", ".ndjson")
_TRAIN = "train"


@dataclass
class Trial:
    """What a run of a proposal did.

    tried: bytes, 0 if it was not run. of: bytes of the source. why: it was not run. stand_ins: the
    settings that are still to be given, and were replaced. rows: by split. dropped: rows by
    sentence. warnings: of the run. example: a row as the run reads it, if it is more than its
    columns.
    """

    tried: int = 0
    of: int = 0
    why: str = ""
    stand_ins: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    example: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return sentences for people."""
        if self.why:
            return [f"not tried: {self.why}", *self._warned()]
        much = "on all of it"
        if self.tried < self.of:
            much = f"on {size(self.tried)} of {size(self.of)} ({100 * self.tried / self.of:.0f} %)"
        if self.stand_ins:
            much += f", with a stand-in for {', '.join(self.stand_ins)}"
        splits = ", ".join(f"{name} {rows:,}" for name, rows in self.rows.items())
        lines = [f"tried {much}: {splits}"]
        for why, rows in self.dropped.items():
            lines.append(f"lost: {pluralise(rows, 'row')}: {why}")
        return lines + self._warned()

    def _warned(self) -> list[str]:
        return [f"warning: {warning}" for warning in self.warnings]


def try_out(recipe: Recipe, sections: Sequence[Section], data: Data) -> Trial:
    """Run a proposal on its source, or on a part of it that is spread over its files.

    Raises what the run raises, and `SettingsError` if no row is in train.
    """
    trial = Trial(warnings=[section.doubt for section in sections if section.doubt])
    with tempfile.TemporaryDirectory(prefix="headrace-init-") as folder:
        settings = settings_of(sections) | _stand_ins(trial, sections, Path(folder))
        if trial.why:
            return trial
        chosen = find_recipe(settings.pop("recipe"))
        del settings["out"]
        job = chosen.settings()(**settings)
        trial.of = _bytes_of(job, data)
        trial.tried = trial.of
        if trial.of > WHOLE:
            settings = _with_source(settings, Path(folder) / "part")
            trial.tried = _sample(data.listing, Path(folder) / "part") if settings else 0
            if not trial.tried:
                trial.why = f"{size(trial.of)} are more than {size(WHOLE)}"
                return trial
            job = chosen.settings()(**settings)
        reasons = {**chosen.reasons, **recipe.reasons}
        _run(trial, job, reasons, Path(folder) / "out")
        trial.example = chosen.example(job)
    return trial


def _stand_ins(trial: Trial, sections: Sequence[Section], folder: Path) -> dict[str, Any]:
    """Return settings in place of those that are needed and not known; note on the trial which, or
    that one cannot be replaced.
    """
    settings: dict[str, Any] = {}
    for section in sections:
        for name, value in section.settings.items():
            if not isinstance(value, Aside) or not value.needed:
                continue
            if value.stand_in is None:
                trial.why = f"it needs {name}"
            else:
                settings |= value.stand_in(folder / name)
                trial.stand_ins.append(name)
    return settings


def _bytes_of(job: JobSettings, data: Data) -> int:
    """Return the bytes of a source; of grids and other data that are no tables, by its files."""
    with suppress(HeadraceError):
        return int(data.listing.sizes.sum())
    return sum(path.stat().st_size for path, _ in job.source_files())


def _with_source(settings: Mapping[str, Any], part: Path) -> dict[str, Any]:
    """Return the settings with another source; empty if files have roles in them."""
    if "source" in settings:
        return {**settings, "source": str(part)}
    match settings.get("blend"):
        case {"datasets": [dataset]}:
            return {**settings, "blend": {"datasets": [{**dataset, "path": [str(part)]}]}}
    return {}


def _run(trial: Trial, job: JobSettings, reasons: Mapping[str, str], out: Path) -> None:
    """Run a job, and note what became of the rows."""

    def note(event: Event) -> None:
        if isinstance(event, Note) and event.level == "warning":
            trial.warnings.append(event.marked)

    prepared = prepare(job, out, on_event=note)
    manifest = prepared.manifest
    trial.rows = {name: totals.rows for name, totals in manifest.splits.items()}
    for reason, rows in manifest.dropped.items():
        if rows:
            trial.dropped[reasons.get(reason) or reason] = rows
    every = sum(trial.rows.values())  # of a recipe whose splits have other names
    if not trial.rows.get(_TRAIN, every):
        lost = "; ".join(f"{rows:,}: {why}" for why, rows in trial.dropped.items())
        raise SettingsError(
            f"no row would be in train{f' ({lost})' if lost else ''}",
            remedy="give the columns and the cutoff yourself",
        )
    grade = grade_of(manifest)
    if grade.word == "fail":  # a run of what is written must not
        raise SettingsError(
            grade.doubts[0].sentence, remedy="give the columns and the cutoff yourself"
        )
    trial.warnings += [doubt.sentence for doubt in grade.doubts if not doubt.fraction]


def _sample(listing: Listing, folder: Path) -> int:
    """Copy the first bytes of files spread over the source, under their names; return how many
    bytes, 0 if a format cannot be cut.
    """
    chosen = evenly(len(listing.names), max(1, WHOLE // max(1, int(listing.sizes.mean()))))
    room = WHOLE // len(chosen)
    total = 0
    for number in chosen:
        path = listing.path(number)
        target = folder / listing.names[number]
        target.parent.mkdir(parents=True, exist_ok=True)
        if listing.sizes[number] <= room:
            with path.open("rb") as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy)
        elif path.suffix in _TEXTS:
            _copy_lines(path, target, room)
        elif path.suffix == ".parquet":
            _copy_groups(path, target, room)
        else:
            return 0
        total += target.stat().st_size
    return total


def _copy_lines(path: Path, target: Path, most: int) -> None:
    """Copy the first lines of a text file. Fields in quotes may have several, and end there."""
    with path.open("rb") as file:
        text = file.read(most)
    stop = text.rfind(b"\n") + 1
    if path.suffix in _QUOTED:
        quotes = text.count(b'"', 0, stop)
        while quotes % 2:
            before = text.rfind(b"\n", 0, stop - 1) + 1
            quotes -= text.count(b'"', before, stop)
            stop = before
    target.write_bytes(text[:stop])


def _copy_groups(path: Path, target: Path, most: int) -> None:
    with path.open("rb") as source, pq.ParquetFile(source) as file:
        rows = max(1, file.metadata.num_rows * most // max(1, path.stat().st_size))
        batches = []
        for batch in file.iter_batches(batch_size=1 << 14):
            batches.append(batch)
            rows -= len(batch)
            if rows <= 0:
                break
        pq.write_table(pa.Table.from_batches(batches, file.schema_arrow), target)
