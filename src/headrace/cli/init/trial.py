"""Run what `init` proposes on the data that it looked at, in a temporary directory.

So no configuration is written that `headrace run` refuses, and what it would lose is known: from
the run, not from a second account of its rules.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.cli.init.look import WHOLE, evenly
from headrace.dataset.tables import with_paths
from headrace.errors import SettingsError
from headrace.formats.listing import Listing, list_files
from headrace.recipe import Recipe, find_recipe
from headrace.report.words import pluralise, size
from headrace.run.events import Event, Note
from headrace.run.prepare import prepare

_TEXTS = (".csv", ".tsv", ".jsonl", ".ndjson")
_EMPTY = "train"  # the split without which nothing trains


@dataclass
class Trial:
    """What a run of a proposal did.

    tried: bytes, 0 if it was not run. of: bytes of the source. why: it was not run. rows: by split.
    dropped: rows by sentence. warnings: of the run.
    """

    tried: int = 0
    of: int = 0
    why: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return sentences for people."""
        if self.why:
            return [f"not tried: {self.why}"]
        much = "on all of it"
        if self.tried < self.of:
            much = f"on {size(self.tried)} of {size(self.of)} ({100 * self.tried / self.of:.0f} %)"
        splits = ", ".join(f"{name} {rows:,}" for name, rows in self.rows.items())
        lines = [f"tried {much}: {splits}"]
        for why, rows in self.dropped.items():
            lines.append(f"lost: {pluralise(rows, 'row')}: {why}")
        return lines + [f"warning: {warning}" for warning in self.warnings]


def try_out(recipe: Recipe, sections: Sequence[Section], source: Sequence[str]) -> Trial:
    """Run a proposal on its source, or on a part of it that is spread over its files.

    Raises what the run raises, and `SettingsError` if no row is in train.
    """
    settings = settings_of(sections)
    listing = list_files(with_paths(list(source)), splits="keep")
    trial = Trial(of=int(listing.sizes.sum()))
    for name, value in _proposed(sections).items():
        if isinstance(value, Aside) and value.needed:
            trial.why = f"it needs {name}"
            return trial
    with tempfile.TemporaryDirectory(prefix="headrace-init-") as folder:
        trial.tried = trial.of
        if trial.of > WHOLE:
            part = Path(folder) / "part"
            trial.tried = _sample(listing, part)
            if not trial.tried or "source" not in settings:
                trial.why = f"{size(trial.of)} are more than {size(WHOLE)}"
                return trial
            settings["source"] = str(part)
        _run(trial, recipe, settings, Path(folder) / "out")
    return trial


def _proposed(sections: Sequence[Section]) -> dict[str, Any]:
    proposed: dict[str, Any] = {}
    for section in sections:
        proposed |= section.settings
    return proposed


def _run(trial: Trial, recipe: Recipe, settings: dict[str, Any], out: Path) -> None:
    """Run the settings, and note what became of the rows."""
    chosen = find_recipe(settings["recipe"])
    plain = {name: value for name, value in settings.items() if name not in ("recipe", "out")}

    def note(event: Event) -> None:
        if isinstance(event, Note) and event.level == "warning":
            trial.warnings.append(event.text)

    manifest = prepare(chosen.settings()(**plain), out, on_event=note).manifest
    trial.rows = {name: totals.rows for name, totals in manifest.splits.items()}
    for reason, rows in manifest.dropped.items():
        if rows:
            sentence = recipe.reasons.get(reason) or chosen.reasons.get(reason) or reason
            trial.dropped[sentence] = rows
    if not trial.rows.get(_EMPTY):
        lost = "; ".join(f"{rows:,}: {why}" for why, rows in trial.dropped.items())
        raise SettingsError(
            f"no row would be in train{f' ({lost})' if lost else ''}",
            remedy="give the columns and the cutoff yourself",
        )


def _sample(listing: Listing, folder: Path) -> int:
    """Link or copy the first bytes of files spread over the source, under their names; return how
    many bytes, 0 if a format cannot be cut.
    """
    chosen = evenly(len(listing.names), max(1, WHOLE // max(1, int(listing.sizes.mean()))))
    room = WHOLE // len(chosen)
    total = 0
    for number in chosen:
        path = listing.path(number)
        target = folder / listing.names[number]
        target.parent.mkdir(parents=True, exist_ok=True)
        if listing.sizes[number] <= room:
            shutil.copyfile(path, target)
        elif path.suffix in _TEXTS:
            _copy_lines(path, target, room)
        elif path.suffix == ".parquet":
            _copy_groups(path, target, room)
        else:
            return 0
        total += target.stat().st_size
    return total


def _copy_lines(path: Path, target: Path, most: int) -> None:
    with path.open("rb") as file:
        text = file.read(most)
    target.write_bytes(text[: text.rfind(b"\n") + 1])


def _copy_groups(path: Path, target: Path, most: int) -> None:
    with pq.ParquetFile(path) as file:
        rows = max(1, file.metadata.num_rows * most // max(1, path.stat().st_size))
        batches = []
        for batch in file.iter_batches(batch_size=1 << 14):
            batches.append(batch)
            rows -= len(batch)
            if rows <= 0:
                break
        pq.write_table(pa.Table.from_batches(batches, file.schema_arrow), target)
