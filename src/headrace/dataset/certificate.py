"""Make certificates: what was proved of a run, with which settings, and what was not proved.

A certificate is canonical JSON with its own digest. It holds no time, no path and nothing about the
machine, so everyone who verifies a run gets the same bytes. Checks that need the source, which only
series have, are listed as unchecked if the source is gone. The digest detects damage; it is not a
signature and does not identify the author.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from headrace.dataset.distinguishing import Distinguishing
from headrace.dataset.manifest import MANIFEST, read_config
from headrace.digest import canonical_json, sha256_file, sha256_hex
from headrace.errors import CorruptShard
from headrace.machine import library_version
from headrace.recipe import Recipe, UnknownRecipe, recipe_of_run
from headrace.storage import local

if TYPE_CHECKING:
    from headrace.dataset.open import FinishedRun
    from headrace.dataset.verify import Verdict

KIND, VERSION = "headrace.certificate", 1
_UNPROVED = (
    (
        "Rows that say the same in other words, or in another language, may be in two splits;"
        " meaning is not compared."
    ),
    "The source may be wrong: its times, entities and labels are taken as they are written.",
    "A column, alone or with others, may give the label away; `headrace leaks` tries each alone.",
    "A model may have seen the data elsewhere before.",
    (
        "The digest of this certificate finds damage. It is not a signature and does not say who"
        " made it."
    ),
)
_NUMBERS = ("int", "uint", "float", "halffloat", "double", "decimal")
LABELS_END = "labels end before the cutoff"  # the check that proves it
_LABELS = (
    "Labels may be made from what happened after the cutoff; `headrace leaks --label-horizon`"
    " counts by time."
)
_LINKED = (
    "Two entities may be one customer, device or household: no column was named that links them"
    " (`linked_by`); `headrace leaks` looks for such columns."
)
_FORMS = (
    "Rows that differ in case, in how a value is written or in words may be in two splits: values"
    " were compared as they are."
)
_UNITS = (
    "Numbers were compared as they are written: rounding and other units were not looked at in"
    " {columns}. `headrace leaks` rounds numbers, and looks for a split in other units."
)
_DATES = (
    "Dates in other columns than {time} may lie behind the cutoff; `headrace leaks` counts them."
)
_KNOWN = (
    "A value that no column of `known_at` dates, such as a total of the same day, may be from after"
    " the time of its row; `headrace leaks` counts dates that are not before it."
)
_ENTITY = "An entity may be in two splits: no column was named as the entity of the rows."
_CONTENT = "Rows with exactly the same content may be in two splits; nothing kept them apart."
_NEAR = "Near duplicates, which differ in a few words or values, may be in two splits."
_BENCHMARKS = "Rows may hold items of benchmarks; none was excluded."
_SHORT_ITEMS = (
    "{short:,} items of benchmarks have fewer than five words and were not looked for; rows may"
    " hold them."
)
_OTHER_BENCHMARKS = "Rows may hold items of other benchmarks, or of these in other words."


def certificate_of(run: FinishedRun, verdict: Verdict) -> dict[str, Any]:
    """Make the certificate of a verified run. Raises `CorruptShard` if a check found a problem."""
    if verdict.problems:
        raise CorruptShard(
            verdict.problems[0], path=run.root, remedy="restore the run: nothing is certified"
        )
    manifest, recipe = run.manifest, recipe_of_run(run.manifest.recipe)
    config = read_config(run.root, run.manifest)
    published_settings = settings_without_paths(recipe)
    kinds: dict[str, list[dict[str, str]]] = {"law": [], "count": [], "unchecked": [], "here": []}
    for check in verdict.checks:
        kinds[check.category].append({"check": check.name, "found": check.detail})
    proved = {entry["check"] for entry in kinds["law"]}
    benchmarks = manifest.metadata.get("benchmarks") or {}
    short = sum(benchmark.get("short_items", 0) for benchmark in benchmarks.values())
    unproved = [
        *([] if "content apart" in proved else [_CONTENT]),
        *([] if "near content apart" in proved else [_NEAR]),
        _OTHER_BENCHMARKS if benchmarks else _BENCHMARKS,
        *([_SHORT_ITEMS.format(short=short)] if short else []),
        *([] if LABELS_END in proved else [_LABELS]),
        *([_ENTITY] if manifest.metadata.get("entity", "") is None else recipe.unproved),
        *([] if "linked entities are apart" in proved else [_LINKED]),
        *_UNPROVED,
        *_of_columns(run),
    ]
    certificate = {
        "kind": KIND,
        "format_version": VERSION,
        "made_by": f"headrace {library_version('headrace')}",
        "run_id": manifest.run_id,
        "recipe": manifest.recipe,
        "settings": {name: value for name, value in config.items() if name in published_settings},
        "digests": {
            "config": manifest.config_digest,
            "index": manifest.index_digest,
            "manifest": sha256_file(run.root / MANIFEST),
        },
        "rows": {
            "read": manifest.source["rows"],
            "splits": {name: totals.rows for name, totals in manifest.splits.items()},
            "dropped": {reason: rows for reason, rows in manifest.dropped.items() if rows},
        },
        "benchmarks": benchmarks,
        "proved": kinds["law"],
        "counted": kinds["count"],
        "unchecked": [entry["check"] for entry in kinds["unchecked"]],
        "not_proved": unproved,
    }
    return {**certificate, "digest": sha256_hex(canonical_json(certificate))}


def _of_columns(run: FinishedRun) -> list[str]:
    """Say, column by column, what the comparison of rows did not look at."""
    metadata = run.manifest.metadata
    sentences = []
    time = metadata.get("time")
    if time is not None and metadata.get("cutoff_us") is not None:
        names = time if isinstance(time, str) else " and ".join(time)
        sentences.append(_DATES.format(time=names))
    if time is not None:
        sentences.append(_KNOWN)
    duplicates = metadata.get("duplicates") or {}
    if not isinstance(duplicates, dict) or "content" not in duplicates:
        return sentences
    sentences.append(_FORMS)
    distinct = Distinguishing.recorded(duplicates)
    compared = {name.partition(".")[0] for name in duplicates["content"]}
    sentences += _of_numbers(run, compared)
    for name in (field["name"] for field in run.manifest.schema):
        if name in distinct.left_out:
            sentences.append(
                f"Column {name!r} distinguishes each of {distinct.rows:,} rows looked at, and was"
                " left out: rows are the same whatever it holds."
            )
        elif name in distinct.compared:
            sentences.append(
                f"Column {name!r} distinguishes each of {distinct.rows:,} rows looked at, and was"
                " compared: rows that differ in it alone are not the same."
            )
        elif name not in compared:
            sentences.append(
                f"Column {name!r} was not compared: rows are the same whatever it holds."
            )
    return sentences


def _of_numbers(run: FinishedRun, compared: Collection[str]) -> list[str]:
    """Name the compared columns of numbers, whose units were not looked at."""
    numbers = []
    for field in run.manifest.schema:
        if field["name"] in compared and field["type"].startswith(_NUMBERS):
            numbers.append(field["name"])
    if not numbers:
        return []
    return [_UNITS.format(columns=", ".join(numbers))]


def write_certificate(run: FinishedRun, verdict: Verdict, path: Path) -> None:
    """Write the certificate of a verified run as one line of a file, atomically.

    Raises `StoreError`.
    """
    local.write_over(path, canonical_json(certificate_of(run, verdict)) + b"\n")


def settings_without_paths(recipe: Recipe) -> set[str]:
    """List the settings of a recipe that hold no path; paths say where data was, digests say what
    it was.

    Empty for a recipe that is not installed.
    """
    if isinstance(recipe, UnknownRecipe):
        return set()
    fields = recipe.settings().model_fields
    return {name for name, field in fields.items() if not _holds_path(field.annotation)}


def _holds_path(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, Path):
        return True
    fields = getattr(annotation, "model_fields", {})
    return any(
        map(_holds_path, [*get_args(annotation), *(field.annotation for field in fields.values())])
    )
