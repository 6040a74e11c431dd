"""Store fitted pipelines in a safe form that is read by default, and as `.joblib` files for users
who expect them.

`fitted_pipelines.json` holds native steps as plain numbers, bit for bit. Fits that only
scikit-learn computes are beside it in `.skops` files. The `.joblib` files are pickles of
`GroupedPipeline` and `UnifiedPipeline`. A pickle may run any code, so they are read only on
request, and only if they have the digest in the manifest.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headrace.dataset.open import find_run
from headrace.dataset.sound import damaged
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError, SettingsError, setting_name
from headrace.gate.json import interpreting, parse_object, read_object
from headrace.run.context import TaskFiles
from headrace.series.arrays.encoders import Encoder
from headrace.series.arrays.scalers import Values
from headrace.series.pipelines.fitted import AnyScalers, Fitted
from headrace.series.pipelines.frames import GroupedPipeline, UnifiedPipeline
from headrace.series.pipelines.objects import from_skops, to_skops

PIPELINES = "fitted_pipelines.json"
TIME_SERIES_SKOPS = "fitted_time_series_pipelines.skops"
STATIC_SKOPS = "fitted_static_pipeline.skops"
TIME_SERIES_JOBLIB = "fitted_time_series_pipelines.joblib"
STATIC_JOBLIB = "fitted_static_pipeline.joblib"
FACT = "pipelines"  # manifest.metadata: file name → SHA-256

_PICKLE_PROTOCOL = 4  # only plain data are pickled, so the bytes are the same on every version


@dataclass(frozen=True)
class Pipelines:
    """The fitted pipelines of one run. static_encoders: for static features that are texts."""

    target: str
    time_series: Fitted
    static_features: Fitted
    static_encoders: tuple[Encoder, ...] = ()

    def save(
        self, files: TaskFiles, *, joblib: Literal["write", "never"] = "write"
    ) -> dict[str, str]:
        """Write the files of all pipelines, and return their SHA-256, the manifest's fact
        `pipelines`.
        """
        digests = {}
        record: dict[str, Any] = {"format": 1, "target": self.target}
        for role, fitted, skops in (
            ("time_series", self.time_series, TIME_SERIES_SKOPS),
            ("static_features", self.static_features, STATIC_SKOPS),
        ):
            record[role], objects = fitted.split()
            if objects:
                digests[skops] = files.write(skops, to_skops(objects)).digest
        if self.static_encoders:
            record["static_encoders"] = [encoder.to_json() for encoder in self.static_encoders]
        digests[PIPELINES] = files.write(PIPELINES, _json(record)).digest
        if joblib == "write":
            bundles: dict[str, Any] = {
                TIME_SERIES_JOBLIB: {
                    "features": _one_or_list(self.features),
                    "target": self.target_pipeline,
                }
            }
            static = [*map(_frame_pipeline, self.static_features.parts), *self.static_encoders]
            if static:
                bundles[STATIC_JOBLIB] = _one_or_list(static)
            for name, bundle in bundles.items():
                digests[name] = files.write(name, pickle.dumps(bundle, _PICKLE_PROTOCOL)).digest
        return dict(sorted(digests.items()))

    def inverse_transform(
        self, values: Values, *, entity: str | int | Sequence[str | int], column: str | None = None
    ) -> Values:
        """Convert scaled values of one column, by default the target, back to units: float64 of the
        same shape.

        values: [N, ...]. entity: one name for all of them, or one name for each of the N.

        Raises `InputError` for an entity that was not fitted.
        """
        values = np.asarray(values)
        if column is None:
            column = self.target
        if isinstance(entity, str | int | np.integer):
            names = [str(entity)] * len(values)
        else:
            names = [str(name) for name in entity]
        if len(names) != len(values):
            raise SettingsError(
                f"{len(names)} names are given for {len(values)} values",
                setting="entity",
                remedy="give one name, or one a value",
            )
        part = self.time_series.part(column).only([column])
        offsets = np.arange(len(values) + 1, dtype=np.int64) * (values.size // max(1, len(values)))
        return part.invert(values.reshape(-1, 1), offsets, names).reshape(values.shape)

    @property
    def features(self) -> list[GroupedPipeline | UnifiedPipeline]:
        """The pipelines of features, as objects that transform data frames."""
        result = []
        for part in self.time_series.parts:
            if self.target not in part.columns:
                result.append(_frame_pipeline(part))
        return result

    @property
    def target_pipeline(self) -> GroupedPipeline | UnifiedPipeline:
        """The pipeline of the target, as an object that transforms data frames."""
        return _frame_pipeline(self.time_series.part(self.target))


def load_pipelines(
    path: str | Path, *, run: str | None = None, trust: Literal["safe", "joblib"] = "safe"
) -> Pipelines:
    """Load the fitted pipelines of a finished run: the newest in a dataset directory, unless `run`
    names another.

    trust="safe" reads plain numbers, and skops files if scikit-learn objects are needed.
    trust="joblib" reads the pickles instead, which may run any code of their author. Either way the
    bytes must match the manifest.

    Raises `InputError` without a finished run of series, `CorruptShard` for other bytes.
    """
    if trust not in ("safe", "joblib"):
        raise SettingsError(setting="trust", value=trust, remedy="give 'safe' or 'joblib'")
    root, manifest = find_run(Path(path), run)
    digests = manifest.metadata.get(FACT)
    if not isinstance(digests, dict):
        raise InputError(
            f"a run of {manifest.recipe} has no fitted pipelines",
            path=root,
            remedy="give a dataset of series",
        )
    return load(root, digests, trust=trust)


def load(
    run: Path, digests: Mapping[str, str], *, trust: Literal["safe", "joblib"] = "safe"
) -> Pipelines:
    """Load the pipelines of a run directory, checking these digests of its files.

    Raises as `load_pipelines`.
    """
    if trust == "joblib":
        return _from_joblib(run, digests)
    record = _record(read_file(run, PIPELINES, digests), run / PIPELINES)
    fits = {}
    for role, skops in (("time_series", TIME_SERIES_SKOPS), ("static_features", STATIC_SKOPS)):
        with interpreting(run / PIPELINES):
            stored = list(record[role])
            needs_objects = any("objects" in part for part in stored)
        objects = None
        if needs_objects:
            objects = from_skops(read_file(run, skops, digests), str(run / skops))
        fits[role] = Fitted.together(stored, objects, str(run / PIPELINES))
    with interpreting(run / PIPELINES):
        encoders = tuple(
            Encoder.from_json(encoder) for encoder in record.get("static_encoders", ())
        )
        target = str(record["target"])
    return Pipelines(target, fits["time_series"], fits["static_features"], encoders)


def save_part(files: TaskFiles, stem: str, fitted: Fitted) -> None:
    """Write the fits of one batch, an intermediate of the run: `<stem>.json`, and `<stem>.skops` if
    needed.
    """
    parts, objects = fitted.split()
    files.write(f"{stem}.json", _json({"parts": parts}))
    if objects:
        files.write(f"{stem}.skops", to_skops(objects))


def load_part(run: Path, stem: str) -> Fitted:
    """Load fits from `save_part`; the stage's receipts vouch for the bytes."""
    path = run / f"{stem}.json"
    stored = read_object(path)["parts"]
    skops = run / f"{stem}.skops"
    objects = None
    if any("objects" in part for part in stored):
        objects = from_skops(skops.read_bytes(), str(skops))
    return Fitted.together(stored, objects, str(path))


def _frame_pipeline(part: AnyScalers) -> GroupedPipeline | UnifiedPipeline:
    if part.entities is None:
        return UnifiedPipeline.of_part(part)
    return GroupedPipeline.of_part(part)


def _one_or_list(values: list[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    return values


def _from_joblib(run: Path, digests: Mapping[str, str]) -> Pipelines:
    if TIME_SERIES_JOBLIB not in digests:
        raise InputError(
            f"it was prepared with {setting_name('joblib')} never, and has no {TIME_SERIES_JOBLIB}",
            path=run,
            remedy="load the safe form",
        )
    bundle = pickle.loads(read_file(run, TIME_SERIES_JOBLIB, digests))
    loaded = []
    if STATIC_JOBLIB in digests:
        loaded = pickle.loads(read_file(run, STATIC_JOBLIB, digests))
    features, static = (
        pipelines if isinstance(pipelines, list) else [pipelines]
        for pipelines in (bundle["features"], loaded)
    )
    target = bundle["target"]
    return Pipelines(
        target.columns[0],
        Fitted((target.part, *(pipeline.part for pipeline in features))),
        Fitted(tuple(pipeline.part for pipeline in static if not isinstance(pipeline, Encoder))),
        tuple(pipeline for pipeline in static if isinstance(pipeline, Encoder)),
    )


def read_file(run: Path, name: str, digests: Mapping[str, str]) -> bytes:
    """Read a file of pipelines and check its digest. Raises `CorruptShard`."""
    path = run / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise damaged(path, "is missing") from None
    if name not in digests or sha256_hex(data) != digests[name]:
        raise damaged(path, "does not have the digest in the manifest")
    return data


def _json(record: Mapping[str, Any]) -> bytes:
    return canonical_json(record) + b"\n"


def _record(data: bytes, where: Path) -> dict[str, Any]:
    try:
        return parse_object(data)
    except ValueError as error:
        raise damaged(where, f"is damaged ({error})") from error
