"""Hold fits as scikit-learn objects, for steps that only it computes, and make such objects from
native fits.

A pipeline with a step that only scikit-learn computes has an object for every entity, or one for
all. This is the slow path. Objects are stored with skops, whose files are read without running
anything that they name beyond scikit-learn's own types. skops numbers what it writes by memory
address and zips with timestamps; `canonical` removes both, so equal fits give equal bytes (with the
same versions of scikit-learn and skops).
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
from headrace.dataset.sound import damaged
from headrace.errors import CorruptShard, InputError, MissingExtra, SettingsError
from headrace.gate.compressed import check_archive
from headrace.series.arrays.scalers import BaseScalers, Scalers, Values
from headrace.series.arrays.steps import NATIVE, FittedStep, StepData
from headrace.series.pipelines.settings import build, goes_back

_HARMLESS = ("numpy.dtype",)  # an imputer keeps its input's dtype: a name and a size, no code
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class ObjectScalers(BaseScalers):
    """A fitted pipeline of any scikit-learn steps: an object for each entity, in their order, or
    one for all.
    """

    objects: tuple[Any, ...]

    def apply(
        self, matrix: Values, offsets: I64, entities: Sequence[str], dtype: Any = np.float32
    ) -> Values:
        """Return scaled values; see `BaseScalers`."""
        return self._per_entity("transform", matrix, offsets, entities, dtype)

    def invert(self, scaled: Values, offsets: I64, entities: Sequence[str]) -> F64:
        """Return values in their own units; see `BaseScalers`."""
        return np.asarray(
            self._per_entity("inverse_transform", scaled, offsets, entities, np.float64), np.float64
        )

    def _per_entity(
        self, verb: str, matrix: Values, offsets: I64, entities: Sequence[str], dtype: Any
    ) -> Values:
        out = np.empty(matrix.shape, dtype)
        for group, index in enumerate(self.index_of(entities).tolist()):
            start = int(offsets[group])
            stop = int(offsets[group + 1])
            if start == stop:
                continue
            rows = np.asarray(matrix[start:stop], np.float64)
            pipeline = self.objects[index]
            fitted_steps = zip(
                self.pipeline, (transformer for _, transformer in pipeline.steps), strict=True
            )
            if verb == "inverse_transform" and not all(
                goes_back(step, transformer) for step, transformer in fitted_steps
            ):
                raise SettingsError(
                    f"values cannot be brought back: {_words(self.pipeline)} has no"
                    " inverse_transform",
                    remedy="choose other steps",
                )
            result = _call(
                getattr(pipeline, verb), rows, entities[group], self.columns, self.pipeline
            )
            with np.errstate(over="ignore"):
                out[start:stop] = result
            if verb == "transform":
                self._check_finite(out[start:stop], rows, entities, np.full(len(rows), group))
        return out

    def only(self, columns: Sequence[str]) -> ObjectScalers:
        """Return the pipeline itself if all its columns are given. Raises `InputError` for fewer.

        scikit-learn scales the columns together.
        """
        if tuple(columns) == self.columns:
            return self
        raise InputError(
            f"columns {', '.join(self.columns)} are scaled together by scikit-learn",
            remedy="give all of them at once",
        )

    @classmethod
    def merge(cls, parts: Sequence[ObjectScalers]) -> ObjectScalers:
        """Join fits of the same pipeline for different entities.

        Raises `ValueError` for an entity fitted twice.
        """
        first = parts[0]
        if len(parts) == 1:
            return first
        fits = {
            entity: fitted
            for part in parts
            for entity, fitted in zip(part.entities or (), part.objects, strict=True)
        }
        if len(fits) != sum(len(part.objects) for part in parts):
            raise ValueError("an entity was fitted twice")
        order = sorted(fits)
        return cls(first.columns, tuple(order), first.pipeline, tuple(fits[name] for name in order))


def fit_objects(
    steps: Sequence[StepData],
    columns: Sequence[str],
    matrix: F64,
    offsets: I64,
    entities: Sequence[str] | None,
) -> ObjectScalers:
    """Fit a scikit-learn pipeline for each entity on its own rows, or one on all rows (entities
    None).

    Raises `InputError` for values that a step cannot take, `SettingsError` for a step that changes
    the columns.
    """
    if any(step["step"] == "Log" for step in steps):
        raise SettingsError(
            f"step Log is headrace's and cannot be mixed with {_words(steps)}, which"
            " scikit-learn computes",
            remedy=f"give FunctionTransformer, or steps out of {', '.join(NATIVE)} only",
        )
    if entities is None:
        names, edges = (["all"], [0, len(matrix)])
    else:
        names, edges = (list(entities), offsets.tolist())
    fits = {}
    for name, start, stop in zip(names, edges[:-1], edges[1:], strict=True):
        fits[name] = _pipeline(steps, [build(step) for step in steps])
        _call(
            fits[name].fit_transform,
            np.asarray(matrix[start:stop], np.float64),
            name,
            columns,
            steps,
        )
    order = sorted(names)
    if entities is None:
        known = None
    else:
        known = tuple(order)
    return ObjectScalers(tuple(columns), known, tuple(steps), tuple(fits[name] for name in order))


def _pipeline(steps: Sequence[StepData], objects: Sequence[Any]) -> Any:
    try:
        from sklearn.pipeline import Pipeline
    except ImportError:
        raise MissingExtra("scikit-learn", "series") from None
    named = []
    for number, (step, transformer) in enumerate(zip(steps, objects, strict=True)):
        named.append((f"{number}_{step['step']}", transformer))
    return Pipeline(named or [("as_is", "passthrough")])


def _call(
    verb: Callable[..., Any], rows: F64, who: str, columns: Sequence[str], steps: Sequence[StepData]
) -> F64:
    """Return scikit-learn's result for the rows.

    Raises `InputError` or `SettingsError` in place of its errors.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = verb(rows)
        except ValueError as error:
            raise InputError(
                f"{_words(steps)} cannot take values of entity {who!r} in"
                f" {', '.join(columns)} ({error})",
                remedy="leave the entity out, or choose other steps",
            ) from error
    result = np.asarray(result.toarray() if hasattr(result, "toarray") else result, np.float64)
    if result.shape != rows.shape:
        raise SettingsError(
            f"{_words(steps)} makes {result.shape[-1]} columns of {rows.shape[1]}",
            remedy="choose steps that keep the columns",
        )
    return result


def _words(steps: Sequence[StepData]) -> str:
    return " -> ".join(step["step"] for step in steps)


def to_sklearn(part: BaseScalers, entity: str | None) -> Any:
    """Return the fitted scikit-learn Pipeline of an entity; None: of the fit for all.

    Raises `InputError` for an entity that was not fitted, `SettingsError` for a step that
    scikit-learn does not have.
    """
    index = int(part.index_of([entity or "all"])[0])
    if isinstance(part, ObjectScalers):
        return part.objects[index]
    assert isinstance(part, Scalers)
    return _pipeline(part.pipeline, [_fitted(step, index) for step in part.steps])


def _fitted(step: FittedStep, index: int) -> Any:
    word = step.step["step"]
    fitted = {name: values[index].copy() for name, values in step.fitted.items()}
    if word == "Log":
        from sklearn.preprocessing import FunctionTransformer

        if len(set(fitted["offset"].tolist())) > 1:
            raise SettingsError(
                "scikit-learn has no step for a Log whose columns have different offsets",
                remedy="give each column a pipeline of its own",
            )
        value = {"offset": float(fitted["offset"][0])}
        return FunctionTransformer(
            func=_log_of, inverse_func=_back, kw_args=value, inv_kw_args=value
        )
    transformer = build(step.step)
    scale = None if step.linear is None else step.linear[1][index]
    if word == "StandardScaler":
        return _standard(transformer, fitted, scale)
    if fitted:
        transformer.n_features_in_ = len(next(iter(fitted.values())))
    if word == "PowerTransformer":
        transformer.lambdas_ = fitted["lambda"]
        if scale is not None:
            transformer._scaler = _standard(build({"step": "StandardScaler"}), fitted, scale)
    if word == "MinMaxScaler":
        assert scale is not None
        _set_min_max(transformer, fitted, scale)
    if word == "MaxAbsScaler":
        transformer.n_samples_seen_ = int(fitted["seen"].max())
        transformer.max_abs_ = fitted["max_abs"]
        transformer.scale_ = scale
    if word == "RobustScaler":
        transformer.center_ = fitted["median"] if transformer.with_centering else None
        transformer.scale_ = scale if transformer.with_scaling else None
    return transformer


def _set_min_max(transformer: Any, fitted: Mapping[str, F64], scale: F64) -> None:
    transformer.n_samples_seen_ = int(fitted["seen"].max())
    transformer.data_min_ = fitted["data_min"]
    transformer.data_max_ = fitted["data_max"]
    transformer.data_range_ = transformer.data_max_ - transformer.data_min_
    transformer.scale_ = 1.0 / scale
    transformer.min_ = transformer.feature_range[0] - transformer.data_min_ * transformer.scale_


def _standard(scaler: Any, fitted: Mapping[str, F64], scale: F64 | None) -> Any:
    scaler.mean_, scaler.n_features_in_ = fitted["mean"], len(fitted["mean"])
    if scaler.with_std:
        scaler.var_, scaler.scale_ = (fitted["var"], scale)
    else:
        scaler.var_, scaler.scale_ = (None, None)
    seen = fitted["seen"].astype(np.int64)
    if len(set(seen.tolist())) == 1:
        scaler.n_samples_seen_ = int(seen[0])
    else:
        scaler.n_samples_seen_ = seen
    return scaler


def _log_of(x: F64, offset: float) -> F64:
    return np.asarray(np.log(x + offset))


def _back(x: F64, offset: float) -> F64:
    return np.asarray(np.exp(x) - offset)


def to_skops(value: Any) -> bytes:
    """Return fitted objects as bytes; equal fits give equal bytes. Raises `MissingExtra`."""
    try:
        from skops.io import dumps
    except ImportError:
        raise MissingExtra("skops", "series") from None
    return canonical(dumps(value))


def from_skops(data: bytes, where: str) -> Any:
    """Read objects from `to_skops`; allows only types that skops trusts, and a few harmless ones.

    Raises `CorruptShard`, `MissingExtra`.
    """
    try:
        from skops.io import get_untrusted_types, loads
    except ImportError:
        raise MissingExtra("skops", "series") from None
    try:
        check_archive(data)
        strange = sorted(set(get_untrusted_types(data=data)) - set(_HARMLESS))
        if strange:
            raise CorruptShard(
                f"names {', '.join(strange)}, which no pipeline needs",
                path=where,
                remedy="do not trust this file",
            )
        return loads(data, trusted=list(_HARMLESS))
    except CorruptShard:
        raise
    except Exception as error:  # a damaged file can make skops raise almost anything
        raise damaged(where, f"is damaged ({error})") from error


def canonical(data: bytes) -> bytes:
    """Rewrite a skops archive so that nodes are numbered in document order, each with its own
    array.

    skops numbers nodes by address and shares those that happen to be one object in memory; members
    carry the time. None of this belongs to the fit.
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
        for child in node.values() if isinstance(node, dict) else node:
            renumber(child)
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
