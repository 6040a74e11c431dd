"""Pipelines with a step that only scikit-learn computes: an object for every entity, or one for all. The slow path.

They are kept by skops, whose files are read without running anything they name beyond scikit-learn's own types. skops
numbers what it writes by addresses in memory and zips the hour in; `canonical` takes both out, so that the same fit is
the same bytes (with the same versions of scikit-learn and skops).
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import F64, I64
from headrace.errors import CorruptShard, InputError, MissingExtra, SettingsError
from headrace.series.arrays.scalers import Values
from headrace.series.arrays.steps import NATIVE
from headrace.series.pipelines.step_data import StepData, build, goes_back

_HARMLESS = ("numpy.dtype",)  # an imputer keeps the type of what it was fitted on; a name and a size, nothing to run
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class ObjectScalers:
    """One pipeline over `columns`: an object for each of `entities` in their order, or one for all (entities None)."""

    columns: tuple[str, ...]
    entities: tuple[str, ...] | None
    steps: tuple[StepData, ...]
    objects: tuple[Any, ...]

    def places(self, entities: Sequence[str]) -> I64:
        """Where each entity's object stands. Raises `InputError` for one that was not fitted."""
        if self.entities is None:
            return np.zeros(len(entities), np.int64)
        known = {entity: place for place, entity in enumerate(self.entities)}
        for entity in entities:
            if entity not in known:
                raise InputError(
                    f"entity {entity!r}: no pipeline was fitted for it ({len(known):,} entities have one), and "
                    f"unscaled values are never handed out; give entities of this run"
                )
        return np.array([known[entity] for entity in entities], np.int64)

    def apply(self, matrix: Values, offsets: I64, entities: Sequence[str], dtype: Any = np.float32) -> Values:
        """Scaled values [R, C]. Raises `InputError` for an entity without fit or values that cannot be transformed."""
        return self._each("transform", matrix, offsets, entities, dtype)

    def invert(self, scaled: Values, offsets: I64, entities: Sequence[str], dtype: Any = np.float64) -> Values:
        """The values [R, C] that `apply` made `scaled` of."""
        return self._each("inverse_transform", scaled, offsets, entities, dtype)

    def _verb(self, verb: str, place: int) -> Callable[..., Any] | None:
        pipeline = self.objects[place]
        if verb == "inverse_transform":
            steps = zip(self.steps, (made for _, made in pipeline.steps), strict=True)
            if not all(goes_back(step, made) for step, made in steps):
                return None
        return getattr(pipeline, verb, None)

    def _each(self, verb: str, matrix: Values, offsets: I64, entities: Sequence[str], dtype: Any) -> Values:
        out = np.empty(matrix.shape, dtype)
        for group, place in enumerate(self.places(entities).tolist()):
            start, stop = int(offsets[group]), int(offsets[group + 1])
            if start < stop:
                rows = np.asarray(matrix[start:stop], np.float64)
                made = call(self._verb(verb, place), rows, entities[group], self.columns, self.steps)
                if verb == "transform":
                    _check_shape(made, rows, self.steps)
                    with np.errstate(over="ignore"):
                        lost = ~np.isfinite(made.astype(dtype)) & ~np.isnan(rows)
                    if lost.any():
                        row, column = (int(each[0]) for each in np.nonzero(lost))
                        value = float(rows[row, column])
                        raise InputError(
                            f"entity {entities[group]!r}, column {self.columns[column]!r}: {value!r} has no finite "
                            f"value behind {_words(self.steps)}; correct the data, or choose other steps"
                        )
                out[start:stop] = made
        return out


def fit_objects(
    steps: Sequence[StepData], columns: Sequence[str], matrix: F64, offsets: I64, entities: Sequence[str] | None
) -> ObjectScalers:
    """A fitted scikit-learn pipeline for each entity on its own rows, or one on all rows (entities None).

    Raises `InputError` for values that a step cannot take, `SettingsError` for a step that changes the columns.
    """
    names = list(entities) if entities is not None else ["all"]
    spans = (
        zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True) if entities is not None else [(0, len(matrix))]
    )
    made = {}
    for name, (start, stop) in zip(names, spans, strict=True):
        rows = np.asarray(matrix[start:stop], np.float64)
        pipeline = unfitted(steps)
        _check_shape(call(pipeline.fit_transform, rows, name, columns, steps), rows, steps)
        made[name] = pipeline
    order = sorted(names)
    return ObjectScalers(
        tuple(columns),
        tuple(order) if entities is not None else None,
        tuple(steps),
        tuple(made[each] for each in order),
    )


def unfitted(steps: Sequence[StepData]) -> Any:
    """A scikit-learn Pipeline of the steps. Raises `SettingsError` for one that scikit-learn does not have."""
    try:
        from sklearn.pipeline import Pipeline
    except ImportError:
        raise MissingExtra("scikit-learn", "series") from None
    made = []
    for number, step in enumerate(steps):
        each = build(step)
        if each is None:
            raise SettingsError(
                f"step {step['step']} is ours and stands beside {_words(steps)}, which scikit-learn computes; give "
                f"FunctionTransformer, or steps out of {', '.join(NATIVE)} only"
            )
        made.append((f"{number}_{step['step']}", each))
    return Pipeline(made)


def call(
    verb: Callable[..., Any] | None, rows: F64, who: str, columns: Sequence[str], steps: Sequence[StepData]
) -> F64:
    """What scikit-learn makes of the rows. Raises `InputError` or `SettingsError` instead of its errors."""
    if verb is None:
        raise SettingsError(f"{_words(steps)} has no inverse_transform; values cannot be brought back")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = verb(rows)
        except ValueError as error:
            raise InputError(
                f"entity {who!r}, columns {', '.join(columns)}: {_words(steps)} cannot take its values ({error}); "
                f"leave the entity out, or choose other steps"
            ) from error
    return np.asarray(made.toarray() if hasattr(made, "toarray") else made, np.float64)


def merge_objects(parts: Sequence[ObjectScalers]) -> ObjectScalers:
    """One of all entities of several fits of the same pipeline."""
    first = parts[0]
    if len(parts) == 1:
        return first
    made = {entity: each for part in parts for entity, each in zip(part.entities or (), part.objects, strict=True)}
    if len(made) != sum(len(part.objects) for part in parts) or first.entities is None:
        raise ValueError("an entity was fitted twice")
    order = sorted(made)
    return ObjectScalers(first.columns, tuple(order), first.steps, tuple(made[each] for each in order))


def to_skops(value: Any) -> bytes:
    """The bytes of fitted objects, the same for the same fits. Raises `MissingExtra`."""
    try:
        from skops.io import dumps
    except ImportError:
        raise MissingExtra("skops", "series") from None
    return canonical(dumps(value))


def from_skops(data: bytes, where: str) -> Any:
    """What `to_skops` was given; types that skops trusts, harmless ones, and no others.

    Raises `CorruptShard`, `MissingExtra`.
    """
    try:
        from skops.io import get_untrusted_types, loads
    except ImportError:
        raise MissingExtra("skops", "series") from None
    try:
        strange = sorted(set(get_untrusted_types(data=data)) - set(_HARMLESS))
        if strange:
            raise CorruptShard(f"{where}: names {', '.join(strange)}, which no pipeline needs; do not trust this file")
        return loads(data, trusted=list(_HARMLESS))
    except CorruptShard:
        raise
    except Exception as error:  # a damaged file makes the reader raise almost anything
        raise CorruptShard(f"{where}: is damaged ({error}); restore it or prepare the run again") from error


def canonical(data: bytes) -> bytes:
    """A skops archive whose nodes are numbered in the order of the document, each with its own copy of its array.

    skops numbers by address and shares what happens to be one object in memory; members carry the time. None of that
    belongs to the fit.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(members.pop("schema.json"))
    numbered: dict[str, bytes] = {}

    def renumber(node: Any) -> None:
        if isinstance(node, list):
            for each in node:
                renumber(each)
        if not isinstance(node, dict):
            return
        for each in node.values():
            renumber(each)
        if "__id__" in node:
            counter[0] += 1
            node["__id__"] = counter[0]
        if node.get("file") in members:
            name = f"{counter[0]}.{node['file'].rpartition('.')[2]}"
            numbered[name], node["file"] = members[node["file"]], name

    counter = [0]
    renumber(schema)
    numbered["schema.json"] = json.dumps(schema, separators=(",", ":")).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, member in numbered.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_EPOCH), member, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _check_shape(made: F64, rows: F64, steps: Sequence[StepData]) -> None:
    if made.shape != rows.shape:
        raise SettingsError(
            f"{_words(steps)} makes {made.shape[-1]} columns of {rows.shape[1]}; choose steps that keep the columns"
        )


def _words(steps: Sequence[StepData]) -> str:
    return " -> ".join(each["step"] for each in steps)


def describe(scalers: ObjectScalers) -> Mapping[str, Any]:
    """What stands in the JSON beside the skops file."""
    return {
        "columns": list(scalers.columns),
        "entities": None if scalers.entities is None else list(scalers.entities),
        "objects": [dict(each) for each in scalers.steps],
    }
