"""Define the manifest, the only definition of "done": a run without one does not exist for any
reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from headrace.dataset.html import table_html
from headrace.dataset.sound import damaged, manifest_problem
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError
from headrace.gate.json import find_object, interpreting, read_object
from headrace.storage.run_lock import LOCK

MANIFEST = "manifest.json"
INDEX = "index.parquet"
CONFIG = "config.json"
SUCCESS = "_SUCCESS"  # an empty file for other tools; headrace does not read it
REPORT = "report.html"
# All that may lie in a run without being named by its manifest: the manifest, which its own digest
# proves; a file that must be empty; a page that may be drawn again at any time; and the lock.
NOT_VOUCHED = frozenset({MANIFEST, SUCCESS, REPORT, LOCK})
FORMAT_VERSION = 9
DIGEST = "digest"
# the cells (splits of the run) that make up each split of a fold
FoldLists: TypeAlias = Mapping[str, Sequence[str]]
Settings = TypeVar("Settings")
_USUAL = ("train", "val", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class SplitTotals:
    """Totals of one split."""

    rows: int
    shards: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class StageReceipts:
    """The receipts of one stage.

    tasks: how many there are. digest: over the SHA-256 of each, in the order of the tasks.
    """

    tasks: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One finished run.

    Counts are rows; `dropped` has one entry per reason, also for reasons that dropped nothing.

    libraries: versions by name. source: fingerprint of the files. schema: names and types of the
    columns. index_digest, config_digest: SHA-256 of index.parquet and config.json.
    receipts: by stage. They name every other file and its SHA-256; see `headrace.dataset.vouched`.
    metadata: what the recipe reports (entities per side, label map, ...);
        JSON, defined by the recipe.
    Two identical runs have identical manifests, so these hold no time: `finished_at` is the time of
    the file.
    """

    run_id: str
    recipe: str
    libraries: dict[str, str]
    source: dict[str, Any]
    schema: list[dict[str, Any]]
    splits: dict[str, SplitTotals]
    dropped: dict[str, int]
    index_digest: str
    config_digest: str
    receipts: dict[str, StageReceipts]
    metadata: dict[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def folds(self) -> list[FoldLists]:
        """The cells of each split of each fold; empty if the run was prepared as one split."""
        folds = (fold["splits"] for fold in self.metadata.get("folds", ()))
        result: list[Mapping[str, Sequence[str]]] = []
        for cells in folds:
            result.append({split: cells[split] for split in in_usual_order(cells)})
        return result

    def fold(self, number: int) -> Manifest:
        """Return the manifest of one fold, as if the run were prepared as that split alone."""
        lists = self.folds[number]
        cells_of = self.metadata["folds"][number]
        totals = {}
        for split, names in lists.items():
            cells = [self.splits[name] for name in names]
            totals[split] = SplitTotals(
                rows=sum(cell.rows for cell in cells),
                shards=sum(cell.shards for cell in cells),
                bytes=sum(cell.bytes for cell in cells),
            )
        metadata = {}
        for name, value in (self.metadata | cells_of).items():
            if name not in ("folds", "splits", "dates"):
                metadata[name] = value
        return replace(self, splits=totals, metadata=metadata)

    def to_json(self) -> bytes:
        """Return the bytes of the manifest file: sorted, indented, with a digest of the rest and a
        final newline.
        """
        record = asdict(self)
        record[DIGEST] = sha256_hex(canonical_json(record))
        return (
            json.dumps(record, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        ).encode()

    def _repr_html_(self) -> str:
        """Show rows of each split and of each reason for dropping, for notebooks."""
        ordered = [(name, self.splits[name]) for name in in_usual_order(self.splits)]
        splits = []
        for name, totals in ordered:
            splits.append([name, totals.rows, totals.shards, f"{totals.bytes / 1e3:,.1f}"])
        dropped = [
            [f"dropped: {reason}", rows, "", ""] for reason, rows in self.dropped.items() if rows
        ]
        return table_html(
            f"{self.recipe} {self.run_id}", ["split", "rows", "shards", "kB"], [*splits, *dropped]
        )


def in_usual_order(splits: Iterable[str]) -> tuple[str, ...]:
    """Return names of splits in their customary order; other names last, sorted."""
    names = set(splits)
    return (*(name for name in _USUAL if name in names), *sorted(names.difference(_USUAL)))


def read_manifest(run: Path) -> Manifest | None:
    """Read the manifest of a run directory; None if there is none (the run is not finished).

    Raises `CorruptShard` if it cannot be read or is not as written, and `InputError` if a headrace
    of another format wrote it.
    """
    path = run / MANIFEST
    record = find_object(path)
    if record is None:
        return None
    _check_version(path, record)
    try:
        if record.pop(DIGEST) != sha256_hex(canonical_json(record)):
            raise ValueError("its digest does not fit: it was changed or damaged")
        problem = manifest_problem(record)
        if problem is not None:
            raise ValueError(problem)
        record["splits"] = {
            name: SplitTotals(**totals) for name, totals in record["splits"].items()
        }
        record["receipts"] = {
            stage: StageReceipts(**receipts) for stage, receipts in record["receipts"].items()
        }
        return Manifest(**record)
    except KeyError as error:
        raise damaged(path, f"has no {error}") from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(path, f"is not a manifest ({error})") from error


def read_config(run: Path, manifest: Manifest) -> dict[str, Any]:
    """Read the settings of a finished run, as they were given.

    Raises `CorruptShard` if they are not those that the manifest vouches for.
    """
    return read_object(run / CONFIG, sha256=manifest.config_digest)


def read_settings(run: Path, manifest: Manifest, model: Callable[..., Settings]) -> Settings:
    """Read the settings of a finished run as those of its recipe. Raises `CorruptShard`."""
    config = read_config(run, manifest)
    config.pop("recipe", None)
    with interpreting(run / CONFIG):
        return model(**config)


def _check_version(path: Path, record: Any) -> None:
    version = record.get("format_version") if isinstance(record, dict) else None
    if version == FORMAT_VERSION:
        return
    remedy = "upgrade headrace"
    if isinstance(version, int) and version < FORMAT_VERSION:
        remedy = "prepare the run again, as an older headrace made it"
    raise InputError(
        f"has format version {version!r}, this headrace reads {FORMAT_VERSION}",
        path=path,
        remedy=remedy,
    )


def finished_at(run: Path) -> str:
    """Return when a run was finished, the modification time of its manifest file, in ISO 8601, UTC.

    A copy that does not preserve times has the time of the copy.
    """
    return datetime.fromtimestamp(int((run / MANIFEST).stat().st_mtime), UTC).isoformat(
        timespec="seconds"
    )
