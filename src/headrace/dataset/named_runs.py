"""Find the finished run that a setting names, whose files another run reuses.

The reusing run holds what it reuses, so it can be read after the named run is gone. Its identity
and its manifest hold the id of the run that made the files and their digests, but not their path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.dataset.manifest import MANIFEST, Manifest
from headrace.dataset.open import find_run
from headrace.errors import HeadraceError, InputError, SettingsError
from headrace.gate.json import interpreting


@dataclass(frozen=True)
class Named:
    """A run that a setting names, and its record: {"run": who made the files, NAME: digests}."""

    root: Path
    manifest: Manifest
    record: Mapping[str, Any]


@dataclass(frozen=True)
class NamedRuns:
    """A setting that names a run, and the fact of the manifest under the same name.

    record_of: makes the record of a named run; raises `InputError` if it has no such files.
    """

    setting: str
    record_of: Callable[[Manifest], dict[str, Any]]

    def find(self, path: Path) -> Named:
        """Find the run at a path, a run's directory or a dataset directory, whose newest run is
        used.

        Raises `SettingsError` if there is none with such files.
        """
        try:
            root, manifest = find_run(path)
            record = self._record_of(root, manifest)
        except InputError as error:
            raise SettingsError(error.marked, setting=self.setting, value=str(path)) from error
        return Named(root, manifest, record)

    def find_again(self, path: Path, run_id: str) -> Named | str:
        """Find the run that made the files, to compare them; else say why they are not compared."""
        try:
            root, manifest = find_run(path, run_id)
            record = self._record_of(root, manifest)
        except (HeadraceError, OSError) as error:
            return f"not compared with run {run_id}: {error}"
        if record["run"] != run_id:
            return f"not compared with run {run_id}: {path} holds run {record['run']} by now"
        return Named(root, manifest, record)

    def _record_of(self, root: Path, manifest: Manifest) -> dict[str, Any]:
        with interpreting(root / MANIFEST):
            return self.record_of(manifest)
