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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import F64, I64
from headrace.errors import CorruptShard, InputError, MissingExtra, SettingsError
from headrace.series.arrays.scalers import Part, Values
from headrace.series.arrays.steps import NATIVE, StepData
from headrace.series.pipelines.step_data import build, goes_back

_HARMLESS = ("numpy.dtype",)  # an imputer keeps the type of what it was fitted on; a name and a size, nothing to run
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class ObjectScalers(Part):
    """A pipeline of any of scikit-learn's steps: a fitted object for each entity, in their order, or one for all."""

    objects: tuple[Any, ...]

    def apply(self, matrix: Values, offsets: I64, entities: Sequence[str], dtype: Any = np.float32) -> Values:
        """Return scaled values; see `Part`."""
        return self._each("transform", matrix, offsets, entities, dtype)

    def invert(self, scaled: Values, offsets: I64, entities: Sequence[str], dtype: Any = np.float64) -> Values:
        """Return values in their own units; see `Part`."""
        return self._each("inverse_transform", scaled, offsets, entities, dtype)

    def _each(self, verb: str, matrix: Values, offsets: I64, entities: Sequence[str], dtype: Any) -> Values:
        out = np.empty(matrix.shape, dtype)
        for group, place in enumerate(self.places(entities).tolist()):
            start, stop = int(offsets[group]), int(offsets[group + 1])
            if start == stop:
                continue
            rows, pipeline = np.asarray(matrix[start:stop], np.float64), self.objects[place]
            made_steps = zip(self.pipeline, (made for _, made in pipeline.steps), strict=True)
            if verb == "inverse_transform" and not all(goes_back(step, made) for step, made in made_steps):
                raise SettingsError(f"{_words(self.pipeline)} has no inverse_transform; values cannot be brought back")
            made = _call(getattr(pipeline, verb), rows, entities[group], self.columns, self.pipeline)
            with np.errstate(over="ignore"):
                out[start:stop] = made
            if verb == "transform":
                self._check_finite(out[start:stop], rows, entities, np.full(len(rows), group))
        return out

    def only(self, columns: Sequence[str]) -> ObjectScalers:
        """Return the same for no column. Raises `InputError` for some: scikit-learn scales them together."""
        if not columns:
            return ObjectScalers((), self.entities, self.pipeline, self.objects)
        raise InputError(
            f"columns {', '.join(self.columns)} are scaled together by scikit-learn; give all of them at once"
        )

    @classmethod
    def merge(cls, parts: Sequence[ObjectScalers]) -> ObjectScalers:
        """Join fits of the same pipeline for different entities. Raises `ValueError` for an entity fitted twice."""
        first = parts[0]
        if len(parts) == 1:
            return first
        made = {entity: each for part in parts for entity, each in zip(part.entities or (), part.objects, strict=True)}
        if len(made) != sum(len(part.objects) for part in parts):
            raise ValueError("an entity was fitted twice")
        order = sorted(made)
        return cls(first.columns, tuple(order), first.pipeline, tuple(made[each] for each in order))


def fit_objects(
    steps: Sequence[StepData], columns: Sequence[str], matrix: F64, offsets: I64, entities: Sequence[str] | None
) -> ObjectScalers:
    """Fit a scikit-learn pipeline for each entity on its own rows, or one on all rows (entities None).

    Raises `InputError` for values that a step cannot take, `SettingsError` for a step that changes the columns.
    """
    names, edges = (["all"], [0, len(matrix)]) if entities is None else (list(entities), offsets.tolist())
    made = {}
    for name, start, stop in zip(names, edges[:-1], edges[1:], strict=True):
        made[name] = _unfitted(steps)
        _call(made[name].fit_transform, np.asarray(matrix[start:stop], np.float64), name, columns, steps)
    order = sorted(names)
    known = None if entities is None else tuple(order)
    return ObjectScalers(tuple(columns), known, tuple(steps), tuple(made[each] for each in order))


def _unfitted(steps: Sequence[StepData]) -> Any:
    try:
        from sklearn.pipeline import Pipeline
    except ImportError:
        raise MissingExtra("scikit-learn", "series") from None
    if any(each["step"] == "Log" for each in steps):
        raise SettingsError(
            f"step Log is ours and stands beside {_words(steps)}, which scikit-learn computes; give "
            f"FunctionTransformer, or steps out of {', '.join(NATIVE)} only"
        )
    return Pipeline([(f"{number}_{step['step']}", build(step)) for number, step in enumerate(steps)])


def _call(verb: Callable[..., Any], rows: F64, who: str, columns: Sequence[str], steps: Sequence[StepData]) -> F64:
    """Return what scikit-learn makes of the rows. Raises `InputError` or `SettingsError` instead of its errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = verb(rows)
        except ValueError as error:
            raise InputError(
                f"entity {who!r}, columns {', '.join(columns)}: {_words(steps)} cannot take its values ({error}); "
                f"leave the entity out, or choose other steps"
            ) from error
    made = np.asarray(made.toarray() if hasattr(made, "toarray") else made, np.float64)
    if made.shape != rows.shape:
        raise SettingsError(
            f"{_words(steps)} makes {made.shape[-1]} columns of {rows.shape[1]}; choose steps that keep the columns"
        )
    return made


def _words(steps: Sequence[StepData]) -> str:
    return " -> ".join(each["step"] for each in steps)


def to_skops(value: Any) -> bytes:
    """Return the bytes of fitted objects, the same for the same fits. Raises `MissingExtra`."""
    try:
        from skops.io import dumps
    except ImportError:
        raise MissingExtra("skops", "series") from None
    return canonical(dumps(value))


def from_skops(data: bytes, where: str) -> Any:
    """Read what `to_skops` was given; types that skops trusts, harmless ones, and no others.

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
    """Rewrite a skops archive so that nodes are numbered as they come in the document, each with its own array.

    skops numbers by address and shares what happens to be one object in memory; members carry the time. None of that
    belongs to the fit.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(members.pop("schema.json"))
    numbered: dict[str, bytes] = {}
    count = 0

    def renumber(node: Any) -> None:
        nonlocal count
        if not isinstance(node, dict | list):
            return
        for each in node.values() if isinstance(node, dict) else node:
            renumber(each)
        if isinstance(node, dict) and "__id__" in node:
            count += 1
            node["__id__"] = count
        if isinstance(node, dict) and node.get("file") in members:
            name = f"{count}.{node['file'].rpartition('.')[2]}"
            numbered[name], node["file"] = members[node["file"]], name

    renumber(schema)
    numbered["schema.json"] = json.dumps(schema, separators=(",", ":")).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, member in numbered.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_EPOCH), member, zipfile.ZIP_DEFLATED)
    return out.getvalue()
