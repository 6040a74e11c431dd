"""Find the finished run whose dictionaries another run extends.

The dictionaries of the extending run begin with those texts, in that order, so each text keeps its
code. What else decides the tokens of a measurement must be the same in both runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.dataset.manifest import CONFIG, Manifest, read_config
from headrace.dataset.named_runs import NamedRuns
from headrace.digest import sha256_file
from headrace.errors import CorruptShard, InputError, SettingsError
from headrace.gate import RESTORE
from headrace.gate.json import interpreting
from headrace.histories.dictionary import dictionary_file

if TYPE_CHECKING:
    from headrace.histories.config import Histories

REUSED = "dictionaries_from"  # the setting, and the manifest's fact
_SAME = ("entity_kind", "peer_kind", "value_unit", "values")


@dataclass(frozen=True)
class NamedDictionaries:
    """A run with dictionaries. entries: what its manifest says of each, by role."""

    root: Path
    record: Mapping[str, Any]
    entries: Mapping[str, Mapping[str, Any]]

    def dictionary(self, role: str) -> Path:
        """Return the path of a dictionary.

        Raises `CorruptShard` if it differs from the manifest.
        """
        path = self.root / dictionary_file(role)
        if not path.is_file() or sha256_file(path) != self.record["dictionaries"][role]:
            raise CorruptShard("is not the file the manifest names", path=path, remedy=RESTORE)
        return path


def _dictionaries_of(manifest: Manifest) -> dict[str, Any]:
    """Return the id of a run and the digests of its dictionaries. Raises `InputError` for none."""
    entries = manifest.metadata.get("dictionaries")
    if manifest.recipe != "histories" or not entries:
        raise InputError(
            f"run {manifest.run_id} of {manifest.recipe} has no dictionaries",
            setting=REUSED,
            remedy="name a run of histories with texts or categories",
        )
    digests = {role: entry["digest"] for role, entry in entries.items()}
    return {"run": manifest.run_id, "dictionaries": digests}


DICTIONARY_RUNS = NamedRuns(REUSED, _dictionaries_of)


def named_dictionaries(settings: Histories, path: Path) -> NamedDictionaries:
    """Find the run at a path.

    Raises `SettingsError` if it has no dictionaries, or measurements of other columns.
    """
    named = DICTIONARY_RUNS.find(path)
    here = settings.model_dump(mode="json")
    there = read_config(named.root, named.manifest)
    with interpreting(named.root / CONFIG):
        differing = [(name, "the same") for name in _SAME if here[name] != there[name]]
        for name in ("peer", "value"):
            if (here[name] is None) != (there[name] is None):
                differing.append((name, "a column in both or in neither"))
    for name, remedy in differing:
        raise SettingsError(
            f"{name} is {here[name]!r}, and {there[name]!r} in run {named.manifest.run_id},"
            " whose tokens are kept",
            setting=REUSED,
            value=str(path),
            remedy=f"give {remedy}, or leave the setting out",
        )
    return NamedDictionaries(named.root, named.record, named.manifest.metadata["dictionaries"])
