"""Whether the dates of all shards are written in one form and one unit. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import InputError
from headrace.formats.dates import moment
from headrace.formats.shard import Shard
from headrace.run.receipts import Receipt
from headrace.split.config import TemporalSplit
from headrace.split.scan import MIXED, one_form_advice


def one_form(settings: TemporalSplit, shards: Sequence[Shard], scans: Sequence[Receipt]) -> set[str]:
    """The form that all dates are written in; two where those go together. Raises `InputError` naming two shards."""
    first: dict[str, str] = {}
    for scan, shard in zip(scans, shards, strict=True):
        for form in scan.result["forms"]:
            first.setdefault(form, str(shard.path))
    if len(first) > 1 and not (settings.time_format == "iso" and first.keys() == MIXED):
        (form, path), (other, elsewhere) = list(first.items())[:2]
        raise InputError(
            f"{elsewhere}: {settings.time} is of form {other}, in {path} of form {form}; "
            f"{one_form_advice(sorted(first))}"
        )
    return set(first)


def check_units(settings: TemporalSplit, shards: Sequence[Shard], scans: Sequence[Receipt]) -> None:
    """Refuse numbers that would all be dates, and hardly the ones that were meant: a wrong unit splits in silence.

    Numbers of two usual sizes and of none between them are epochs of two units. Numbers of one size that is not the
    declared unit's, and that the cutoff does not divide, are of that other unit.
    """
    name = settings.time
    dated = [(scan, shard) for scan, shard in zip(scans, shards, strict=True) if scan.result["forms"]]
    if dated and all(scan.result["hours"] for scan, _ in dated):
        raise InputError(
            f"{dated[0][1].path}: {name} is written in ten digits, an hour as YYYYMMDDHH and also seconds since "
            f'1970; give time_format="%Y%m%d%H" or time_format="epoch_s"'
        )
    first: dict[str, Shard] = {}
    for scan, shard in zip(scans, shards, strict=True):
        for unit in scan.result["units"]:
            first.setdefault(unit, shard)
    if any(scan.result["unusual"] for scan in scans):
        return
    if len(first) > 1:
        told = ", ".join(f"those of {unit} in {first[unit].path}" for unit in sorted(first))
        raise InputError(
            f"{next(iter(first.values())).path}: {name} holds numbers of two units: {told}; write one unit throughout, "
            f"or split the files of each on their own"
        )
    if first and settings.time_format not in first and dated:
        (unit, shard), cutoff = next(iter(first.items())), settings.cutoff().instant_us
        first_us = min(scan.result["first_us"] for scan, _ in dated)
        last_us = max(scan.result["last_us"] for scan, _ in dated)
        if not first_us <= cutoff <= last_us:
            raise InputError(
                f"{shard.path}: {name} holds numbers of the size of {unit}, which as {settings.time_format} run from "
                f'{moment(first_us)} to {moment(last_us)}; give time_format="{unit}"'
            )
