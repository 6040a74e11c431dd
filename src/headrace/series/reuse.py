"""Find the finished run whose fitted pipelines another run reuses, and load them. Nothing is fitted here.

The reusing run has byte-identical copies of the pipelines' files, so it can be read after the named run is gone. Its
identity holds the id of the run that fitted them and the digests of these files, but not their path. The named run may
itself reuse pipelines; the run that fitted them counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from headrace.dataset.manifest import Manifest
from headrace.dataset.open import find_run
from headrace.errors import InputError, SettingsError
from headrace.run.context import TaskFiles
from headrace.series.parts import DIVIDE
from headrace.series.pipelines.save import FACT, Pipelines, load, read_file

REUSED = "pipelines_from"  # the setting, and the manifest's fact

# Never inherited from another run.
_OWN = {"source", "region_time_series_base_dirs", "entities", "entities_file", REUSED}
_STATIC = {"static", "region_static_attributes_base_dirs"}
_SCALED = ("target", "static_features", "frequency")
_FEATURES = ("features", "past_features", "future_features")


@dataclass(frozen=True)
class NamedRun:
    """A run with fitted pipelines. run_id: of the run that fitted them; digests: file → SHA-256."""

    root: Path
    run_id: str
    digests: Mapping[str, str]
    frequency: str

    def record(self) -> dict[str, Any]:
        """Return the entry for the identity and the manifest of a reusing run."""
        return {"run": self.run_id, "pipelines": dict(self.digests)}

    def settings(self) -> dict[str, Any]:
        """Read the settings of the run, with the frequency that it found."""
        config: dict[str, Any] = json.loads((self.root / "config.json").read_bytes())
        return config | {"frequency": self.frequency}

    def pipelines(self) -> Pipelines:
        """Load the pipelines, once per process. Raises `CorruptShard` if they differ from those in the manifest."""
        return _loaded(self.root, tuple(self.digests.items()))

    def copy(self, files: TaskFiles) -> dict[str, str]:
        """Write the files of the pipelines, byte for byte, and return their digests."""
        return {name: files.write(name, read_file(self.root, name, self.digests)).digest for name in self.digests}


@lru_cache(maxsize=1)
def _loaded(root: Path, digests: tuple[tuple[str, str], ...]) -> Pipelines:
    return load(root, dict(digests))


def fitted_by(manifest: Manifest) -> dict[str, Any]:
    """Return the run that fitted a run's pipelines, and their digests. Raises `InputError` for another recipe."""
    facts = manifest.facts
    if not isinstance(facts.get(FACT), dict):
        raise InputError(f"run {manifest.run_id} of {manifest.recipe} has no fitted pipelines; name a run of series")
    return {"run": facts.get(REUSED, {}).get("run", manifest.run_id), "pipelines": facts[FACT]}


def named_run(path: Path) -> NamedRun:
    """Find the run at a path, either a run's directory or a dataset directory, whose newest run is taken.

    Raises `SettingsError` if there is none with fitted pipelines.
    """
    try:
        root, manifest = find_run(path)
        fitted = fitted_by(manifest)
    except InputError as error:
        raise SettingsError(f"pipelines_from {str(path)!r}: {error}") from error
    return NamedRun(root, fitted["run"], fitted["pipelines"], str(manifest.facts["frequency"]))


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Complete settings that name a run with those of that run; given settings take precedence.

    The source's files and the choice of entities are never taken over.
    """
    given = {name for name, value in values.items() if (name, value) != ("frequency", "infer")}
    cut = [name for name in ("train_end", "val_end") if values.get(name) is not None]
    if cut:
        told = ", ".join(cut)
        raise SettingsError(f"{told} with pipelines_from, where nothing trains and all rows test; leave out {told}")
    own = {*_OWN, *DIVIDE, *(_STATIC if given & _STATIC else ())}
    named = named_run(Path(values[REUSED]))
    settings = {name: value for name, value in named.settings().items() if name not in own and name != "recipe"}
    if settings["missing_static"] in ("mean", "median"):  # no run stores the mean or median of its training entities
        settings["missing_static"] = "error"
    return settings | {name: values[name] for name in given} | {REUSED: named.root}


def differing(asked: Mapping[str, Any], named: NamedRun) -> str | None:
    """Return a message about the setting that contradicts the named run's pipelines; None if they fit.

    asked: settings as JSON.
    """
    there = named.settings()
    for name in _SCALED:
        one, other = (sorted(each[name]) if isinstance(each[name], list) else each[name] for each in (asked, there))
        if one != other:
            return f"{name} is {one!r}, and {other!r} in run {named.run_id}, whose pipelines are reused"
    if sorted(asked["more_targets"]) != sorted(there.get("more_targets", ())):
        return f"more_targets are {asked['more_targets']!r}, which are not those of run {named.run_id}"
    one, other = (sorted({name for role in _FEATURES for name in each.get(role, ())}) for each in (asked, there))
    if one != other:
        return (
            f"features are {', '.join(one)}, and {', '.join(other)} in run {named.run_id}, whose pipelines are reused"
        )
    if asked["preprocessing_configs"] != there["preprocessing_configs"]:
        return f"preprocessing_configs are not those of run {named.run_id}, whose pipelines are reused as they are"
    return None
