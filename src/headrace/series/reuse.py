"""Find the finished run whose fitted pipelines another run reuses, and load them.

The reusing run has byte-identical copies of the pipelines' files. The named run may itself reuse
pipelines; the run that fitted them counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from headrace.dataset.manifest import CONFIG, MANIFEST, Manifest, read_config
from headrace.dataset.named_runs import NamedRuns
from headrace.errors import InputError, SettingsError, setting_name
from headrace.gate.json import interpreting
from headrace.run.context import TaskFiles
from headrace.series.division import DIVISION_SETTINGS
from headrace.series.pipelines.save import FACT, Pipelines, load, read_file

REUSED = "pipelines_from"  # the setting, and the manifest's fact

_NEVER_INHERITED = {
    "source",
    "entities",
    "recipe",
    REUSED,
    *DIVISION_SETTINGS,
}
_SAME = ("target", "static_features", "frequency")


@dataclass(frozen=True)
class NamedRun:
    """A run with fitted pipelines.

    run_id: of the run that fitted them.
    digests: file → SHA-256.
    """

    root: Path
    manifest: Manifest
    run_id: str
    digests: Mapping[str, str]
    frequency: str

    def record(self) -> dict[str, Any]:
        """Return the entry for the identity and the manifest of a reusing run."""
        return {"run": self.run_id, "pipelines": dict(self.digests)}

    def settings(self) -> dict[str, Any]:
        """Read the settings of the run, with the frequency that it found."""
        config = read_config(self.root, self.manifest)
        return config | {"frequency": self.frequency}

    def pipelines(self) -> Pipelines:
        """Load the pipelines, once per process.

        Raises `CorruptShard` if they differ from those in the manifest.
        """
        return _load_once(self.root, tuple(self.digests.items()))

    def copy(self, files: TaskFiles) -> dict[str, str]:
        """Write the files of the pipelines, byte for byte, and return their digests."""
        digests = {}
        for name in self.digests:
            digests[name] = files.write(name, read_file(self.root, name, self.digests)).digest
        return digests


@lru_cache(maxsize=1)
def _load_once(root: Path, digests: tuple[tuple[str, str], ...]) -> Pipelines:
    return load(root, dict(digests))


def _fitted_by(manifest: Manifest) -> dict[str, Any]:
    """Return the run that fitted a run's pipelines, and their digests.

    Raises `InputError` for another recipe.
    """
    metadata = manifest.metadata
    if not isinstance(metadata.get(FACT), dict):
        raise InputError(
            f"run {manifest.run_id} of {manifest.recipe} has no fitted pipelines",
            setting="pipelines_from",
            remedy="name a run of series",
        )
    return {
        "run": metadata.get(REUSED, {}).get("run", manifest.run_id),
        "pipelines": metadata[FACT],
    }


FITTED_RUNS = NamedRuns(REUSED, _fitted_by)


def named_run(path: Path) -> NamedRun:
    """Find the run at a path, either a run's directory or a dataset directory, whose newest run is
    used.

    Raises `SettingsError` if there is none with fitted pipelines.
    """
    named = FITTED_RUNS.find(path)
    with interpreting(named.root / MANIFEST):
        frequency = str(named.manifest.metadata["frequency"])
    return NamedRun(
        named.root, named.manifest, named.record["run"], named.record["pipelines"], frequency
    )


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Complete settings that name a run with those of that run; settings in `values` take
    precedence.

    The source's files and the choice of entities are never inherited.
    """
    names = {name for name, value in values.items() if (name, value) != ("frequency", "infer")}
    cuts = [name for name in ("train_end", "val_end") if values.get(name) is not None]
    if cuts:
        words = ", ".join(map(setting_name, cuts))
        raise SettingsError(
            f"{words} with {setting_name('pipelines_from')}, where nothing is fitted and all rows"
            " test",
            remedy=f"leave out {words}",
        )
    never_inherited = set(_NEVER_INHERITED)
    if "static" in names:
        never_inherited.add("static")
    named = named_run(Path(values[REUSED]))
    settings = named.settings()
    with interpreting(named.root / CONFIG):
        for name in never_inherited:
            settings.pop(name, None)
    return settings | {name: values[name] for name in names} | {REUSED: named.root}


def contradiction(settings: Mapping[str, Any], named: NamedRun) -> str | None:
    """Return a message about the setting that contradicts the named run's pipelines; None if they
    fit.

    settings: as JSON.
    """
    fitted = named.settings()
    with interpreting(named.root / CONFIG):
        return _difference(settings, fitted, f"run {named.run_id}")


def _difference(settings: Mapping[str, Any], fitted: Mapping[str, Any], run: str) -> str | None:
    for name in _SAME:
        here = settings[name]
        there = fitted[name]
        if here != there:
            return f"{name} is {here!r}, and {there!r} in {run}, whose pipelines are reused"
    features = _feature_names(settings)
    fitted_features = _feature_names(fitted)
    if features != fitted_features:
        return (
            f"features are {', '.join(features)}, and {', '.join(fitted_features)} in {run}, whose"
            " pipelines are reused"
        )
    if settings["preprocessing_configs"] != fitted["preprocessing_configs"]:
        return (
            f"preprocessing_configs are not those of {run}, whose pipelines are reused as they are"
        )
    return None


def _feature_names(settings: Mapping[str, Any]) -> list[str]:
    """Return the features in the order in which windows have them, which a model learned."""
    return [*settings["past_features"], *settings["future_features"]]
