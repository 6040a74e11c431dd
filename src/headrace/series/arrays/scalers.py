"""Fitted scalers of many entities as plain arrays: applied and inverted for all rows at once, kept as JSON.

One `Scalers` is one pipeline over some columns, fitted for every entity on its own or once for all. What is kept of a
step is what was measured (means, variances, least and greatest values); what is computed with follows from it by the
rules of scikit-learn. Work is in float64, in blocks of rows, so memory beside the result is bounded.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64
from headrace.errors import CorruptShard, InputError, SettingsError
from headrace.series.arrays.fitted_step import FittedStep
from headrace.series.arrays.statistics import row_groups
from headrace.series.arrays.steps import NATIVE, complete, why_not_invertible

Values = npt.NDArray[np.floating[Any]]

_BLOCK = 1 << 13  # rows that stay in the processor's cache
_READABLE = 1000  # entities whose numbers a person may still want to look up in the JSON


@dataclass(frozen=True, repr=False)
class Scalers:
    """One pipeline over `columns`, fitted for each of `entities`, or once for all (entities None).

    entities: ascending, each once. The arrays of `steps` have a row for each entity, in this order; one row for all.
    """

    columns: tuple[str, ...]
    entities: tuple[str, ...] | None
    steps: tuple[FittedStep, ...]

    def __repr__(self) -> str:
        whom = "one for all" if self.entities is None else f"{len(self.entities):,} entities"
        return f"Scalers({', '.join(self.columns)}: {self._words()}, {whom})"

    def places(self, entities: Sequence[str] | pa.Array) -> I64:
        """Where each entity's fit stands, [len(entities)]. Raises `InputError` for one that was not fitted."""
        if self.entities is None:
            return np.zeros(len(entities), np.int64)
        texts = entities if isinstance(entities, pa.Array) else pa.array(list(entities), pa.string())
        found = pc.index_in(texts.cast(pa.string()), value_set=pa.array(self.entities, pa.string()))
        if found.null_count:
            stranger = texts[int(np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))[0])].as_py()
            near = difflib.get_close_matches(str(stranger), self.entities[:10_000], n=1)
            raise InputError(
                f"entity {stranger!r}: no scaler was fitted for it ({len(self.entities):,} entities have one"
                f"{f', near: {near[0]!r}' if near else ''}), and unscaled values are never handed out; give entities "
                f"of this run, or prepare with strategy: unified, which fits one scaler for all"
            )
        return np.asarray(found.to_numpy(), np.int64)

    def apply(self, matrix: Values, offsets: I64, entities: Sequence[str], dtype: Any = np.float32) -> Values:
        """Scaled values [R, C] of `dtype`; NaN stays NaN. entities: of the groups that `offsets` [len+1] mark.

        Raises `InputError` for an entity without fit, and where a value that is there has none behind a step.
        """
        places, out = self.places(entities), np.empty(matrix.shape, dtype)
        for start in range(0, len(out), _BLOCK):
            stop = min(len(out), start + _BLOCK)
            groups = row_groups(offsets, start, stop)
            x = before = np.asarray(matrix[start:stop], np.float64)
            for each in self.steps:
                x = each.forward(x, places[groups])
            lost = ~np.isfinite(x) & ~np.isnan(before)
            if lost.any():
                row, column = (int(each[0]) for each in np.nonzero(lost))
                raise self._lost(entities[int(groups[row])], column, float(before[row, column]))
            with np.errstate(over="ignore"):
                out[start:stop] = x
            lost = np.isinf(out[start:stop])
            if lost.any():  # it is finite, and more than the type holds
                row, column = (int(each[0]) for each in np.nonzero(lost))
                raise InputError(
                    f"entity {entities[int(groups[row])]!r}, column {self.columns[column]!r}: "
                    f"{float(before[row, column])!r} scaled is {float(x[row, column])!r}, which {np.dtype(dtype)} "
                    f"cannot hold; name it in missing_numbers, correct the data, or choose other steps"
                )
        return out

    def invert(self, scaled: Values, offsets: I64, entities: Sequence[str], dtype: Any = np.float64) -> Values:
        """The values [R, C] that `apply` made `scaled` of. Raises `InputError` for an entity without fit."""
        places, out = self.places(entities), np.empty(scaled.shape, dtype)
        for start in range(0, len(out), _BLOCK):
            stop = min(len(out), start + _BLOCK)
            out[start:stop] = self.backward(scaled[start:stop], places[row_groups(offsets, start, stop)])
        return out

    def backward(self, scaled: Values, places: I64) -> F64:
        """`invert` for rows whose fits stand at `places` [N]. Raises `SettingsError` if a step has no inverse."""
        y = np.asarray(scaled, np.float64)
        for each in reversed(self.steps):
            reason = why_not_invertible(each.step)
            if reason is not None and not each.step.params.get("clip"):
                raise SettingsError(f"columns {', '.join(self.columns)} cannot be brought back: {reason}")
            y = each.backward(y, places)
        return y

    def invert_column(self, scaled: Values, column: str, places: I64) -> F64:
        """Bring back values [N, ...] of one column, e.g. predictions of several steps; places [N] from `places`."""
        return self.only([column]).backward(scaled.reshape(-1, 1), _each(places, scaled)).reshape(scaled.shape)

    def only(self, columns: Sequence[str]) -> Scalers:
        """The same for some of the columns. Raises `SettingsError` if it lacks one."""
        strange = [each for each in columns if each not in self.columns]
        if strange:
            raise SettingsError(f"column {strange[0]!r} is not among the scaled ones: {', '.join(self.columns)}")
        at = [self.columns.index(each) for each in columns]
        steps = tuple(
            FittedStep(each.step, {name: values[:, at] for name, values in each.fitted.items()}) for each in self.steps
        )
        return Scalers(tuple(columns), self.entities, steps)

    def select(self, entities: Sequence[str]) -> Scalers:
        """The same for some of the entities, ascending. Raises `InputError` for one that was not fitted."""
        if self.entities is None:
            return self
        wanted = tuple(sorted(set(entities)))
        return self._taken(self.places(wanted), wanted)

    def _taken(self, places: I64, entities: tuple[str, ...]) -> Scalers:
        steps = tuple(
            FittedStep(each.step, {name: values[places] for name, values in each.fitted.items()}) for each in self.steps
        )
        return Scalers(self.columns, entities, steps)

    def _words(self) -> str:
        return " -> ".join(str(each.step.params.get("func") or each.step.word) for each in self.steps) or "no step"

    def _lost(self, entity: str, column: int, value: float) -> InputError:
        return InputError(
            f"entity {entity!r}, column {self.columns[column]!r}: {value!r} has no finite value behind "
            f"{self._words()}; correct the data, or choose steps that are defined for it"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; numbers keep all their bits.

        Of more than `_READABLE` entities the arrays are base64 of little-endian float64: a tenth of the memory.
        """
        return {
            "columns": list(self.columns),
            "entities": None if self.entities is None else list(self.entities),
            "steps": [
                {
                    "step": each.step.word,
                    "params": dict(each.step.params),
                    "fitted": {name: _encoded(values) for name, values in sorted(each.fitted.items())},
                }
                for each in self.steps
            ],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Scalers:
        """What `to_json` gave. Raises `CorruptShard` for anything else."""
        try:
            columns = tuple(str(each) for each in record["columns"])
            entities = None if record["entities"] is None else tuple(str(each) for each in record["entities"])
            shape = (1 if entities is None else len(entities), len(columns))
            if entities is not None and list(entities) != sorted(set(entities)):
                raise ValueError("entities are not ascending")
            steps = []
            for each in record["steps"]:
                if each["step"] not in NATIVE:
                    raise ValueError(f"step {each['step']!r} is not known")
                fitted = {name: _decoded(values).reshape(shape) for name, values in each["fitted"].items()}
                if set(fitted) != set(MEASURED[each["step"]]) or not all(map(_finite, fitted.values())):
                    raise ValueError(f"step {each['step']!r} has not the numbers it needs")
                steps.append(FittedStep(complete(each["step"], each["params"]), fitted))
            return cls(columns, entities, tuple(steps))
        except (KeyError, TypeError, ValueError, AttributeError, SettingsError) as error:
            raise CorruptShard(
                f"fitted pipelines: are damaged ({error}); restore them or prepare the run again"
            ) from error


MEASURED = {
    "StandardScaler": ("mean", "seen", "var"),
    "MinMaxScaler": ("data_max", "data_min", "seen"),
    "MaxAbsScaler": ("max_abs", "seen"),
    "RobustScaler": ("high", "low", "median", "seen"),
    "PowerTransformer": ("lambda", "mean", "seen", "var"),
    "FunctionTransformer": (),
    "Log": ("offset",),
}


def merge(parts: Sequence[Scalers]) -> Scalers:
    """One fit of all entities of several fits of the same pipeline. Raises `ValueError` where they do not fit."""
    first = parts[0]
    if any(
        part.columns != first.columns or [each.step for each in part.steps] != [each.step for each in first.steps]
        for part in parts
    ):
        raise ValueError("only fits of the same pipeline over the same columns can be merged")
    if first.entities is None:
        if len(parts) > 1:
            raise ValueError("one fit for all is not merged with another")
        return first
    entities = [entity for part in parts for entity in part.entities or ()]
    order = sorted(range(len(entities)), key=entities.__getitem__)
    names = tuple(entities[place] for place in order)
    if len(set(names)) < len(names):
        raise ValueError("an entity was fitted twice")
    steps = tuple(
        FittedStep(
            each.step, {name: np.concatenate([part.steps[at].fitted[name] for part in parts]) for name in each.fitted}
        )
        for at, each in enumerate(first.steps)
    )
    return Scalers(first.columns, names, steps)._taken(np.array(order, np.int64), names)


def _encoded(values: F64) -> list[Any] | str:
    if len(values) <= _READABLE:
        return list(values.tolist())
    return base64.b64encode(np.ascontiguousarray(values, "<f8").tobytes()).decode()


def _decoded(values: Any) -> F64:
    if isinstance(values, str):
        return np.frombuffer(base64.b64decode(values, validate=True), "<f8").astype(np.float64)
    return np.array(values, np.float64)


def _each(places: I64, scaled: Values) -> I64:
    return np.repeat(places, scaled.size // len(scaled)) if len(scaled) else places


def _finite(values: F64) -> bool:
    return bool(np.isfinite(values).all())
