"""The proportions of a blend: stages, weights or a temperature for each, and limits. Pure.

What a user asks for is kept as it was said. A stage may begin at a row, a step, a token, or a share
of an epoch; it becomes a row of the run when the run begins, and the state keeps that row. So do
weights of tokens, which become weights of rows by the mean lengths of each source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from headrace.arrays import I64
from headrace.checks import check_word
from headrace.digest import sha256_hex
from headrace.errors import SettingsError, setting, setting_name
from headrace.sealed import MOST_POSITIONS
from headrace.stream.order.schedule import Schedule, StageWeights, period_rows, share_rows

Unit = Literal["rows", "steps", "share", "tokens"]
WeightUnit = Literal["rows", "tokens"]

_TEMPERATURES = {"proportional": 1.0, "sqrt": 2.0, "uniform": math.inf}
_BORDER = re.compile(r"(\d[\d_,]*(?:\.\d+)?)\s*([kKMBT]?)\s*(rows?|steps?|tokens?|%)")
_UNITS: Mapping[str, Unit] = {"r": "rows", "s": "steps", "t": "tokens"}  # by first letters
_THOUSANDS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_BORDER_REMEDY = (
    'write a number with its unit, such as "2_000 steps", "3M rows", "2B tokens" or "80%"'
)
_WEIGHT_BITS = 40  # of weights from sizes; the last bits of a power depend on the machine
_MOST_DESCRIBED = 4000
_MOST_LIMITED = 1 << 62  # rows, more than any run has


class TokenShare(NamedTuple):
    """The expected tokens of a source in some rows of a run, and their standard deviation if its
    rows are in random order.
    """

    expected: int
    deviation: float

    def __str__(self) -> str:
        return f"{self.expected:,} ± {self.deviation:,.0f}"


@dataclass(frozen=True)
class SourceTokens:
    """The tokens of a source.

    total: of all its rows. deviation: the standard deviation of the tokens of a row. rows: N.
    """

    total: int
    deviation: float
    rows: int

    @classmethod
    def of(cls, tokens: I64) -> SourceTokens:
        """Sum the tokens of rows: int64 [N]."""
        deviation = float(tokens.std()) if len(tokens) else 0.0
        return cls(int(tokens.sum()), deviation, len(tokens))

    def expected_in(self, begin: int, end: int) -> TokenShare:
        """Return what its draws begin .. end - 1 are expected to have.

        n rows of an own epoch of N deviate by σ·√(n(1 - n/N)), which is less than σ·√n, and whole
        own epochs not at all.
        """
        size = max(1, self.rows)
        parts = [end - begin]
        if begin // size < end // size:
            parts = [size - begin % size, end % size]
        spread = sum(rows * (size - rows) for rows in parts) / max(1, size - 1)
        expected = round(Fraction(self.total * (end - begin), size))
        return TokenShare(expected, self.deviation * math.sqrt(spread))


@dataclass(frozen=True)
class StageBegin:
    """Where a stage begins: so many rows, steps or tokens after the run began, or a share of an
    epoch.
    """

    amount: Fraction
    unit: Unit

    @classmethod
    def parse(cls, value: object) -> StageBegin:
        """Return the border that a user wrote. Raises `SettingsError`."""
        number = _number(value)
        if number == 0:
            return cls(Fraction(0), "rows")
        if 0 < number < 1:
            return cls(Fraction(number).limit_denominator(10**12), "share")
        match = _BORDER.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise SettingsError(
                f"a stage begins at {value!r}",
                setting="schedule",
                value=value,
                remedy=_BORDER_REMEDY,
            )
        amount = Fraction(re.sub("[_,]", "", match[1])) * _THOUSANDS[match[2]]
        if match[3] == "%":
            return cls(amount / 100, "share")
        return cls(amount, _UNITS[match[3][0]])

    def row(self, *, epoch_rows: int, global_batch: int) -> int:
        """Return the row of the run that it means, unless it is a token."""
        of_unit = {"rows": 1, "steps": global_batch, "share": epoch_rows}
        return round(self.amount * of_unit[self.unit])

    def __str__(self) -> str:
        if self.unit == "share":
            return f"{float(100 * self.amount):.15g}%"
        return f"{float(self.amount):,.15g} {self.unit}"


@dataclass(frozen=True)
class MixtureStage:
    """The proportions from a border on.

    weights: 0 or more for each source; None: size ** (1 / temperature).
    """

    begin: StageBegin
    weights: tuple[float, ...] | None
    temperature: float = 1.0

    def describe(self, names: Sequence[str]) -> str:
        """Return the proportions in words."""
        if self.weights is not None:
            pairs = zip(names, self.weights, strict=True)
            return ", ".join(f"{name} {weight!r}" for name, weight in pairs if weight)
        for word, temperature in _TEMPERATURES.items():
            if temperature == self.temperature:
                return word
        return f"temperature {self.temperature!r}"

    def shares(
        self, sizes: Sequence[int], tokens: Sequence[int] | None = None
    ) -> tuple[Fraction, ...]:
        """Return the weight of the rows of each source.

        sizes: rows of each source. tokens: those of all its rows, if weights are of tokens.
        """
        if tokens is None:
            return self.shares_of(sizes)
        weights = []
        for weight, rows, total in zip(self.shares_of(tokens), sizes, tokens, strict=True):
            # a row of length l brings l tokens, so it comes 1/l times as often
            weights.append(weight * rows / max(1, total))
        return tuple(weights)

    def shares_of(self, sizes: Sequence[int]) -> tuple[Fraction, ...]:
        """Return the weights of sources of these sizes, in rows or in tokens."""
        if self.weights is not None:
            # as they were written: the float 0.7 is a little less
            return tuple(Fraction(str(weight)) for weight in self.weights)
        if self.temperature == 1:
            return tuple(map(Fraction, sizes))
        largest = max(sizes, default=1)
        shares = []
        for size in sizes:
            weight = 0.0
            if size:
                weight = (size / largest) ** (1 / self.temperature)
            shares.append(Fraction(round(weight * (1 << _WEIGHT_BITS)), 1 << _WEIGHT_BITS))
        return tuple(shares)


@dataclass(frozen=True)
class Mixture:
    """The proportions of named sources over a run.

    limits: how many times each source may be read in a run; None for any number. unit: what weights
    and temperatures are of.
    """

    names: tuple[str, ...]
    stages: tuple[MixtureStage, ...]
    limits: tuple[float | None, ...]
    unit: WeightUnit = "rows"

    @classmethod
    def one_pass(cls, names: Sequence[str]) -> Mixture:
        """Return the mixture of which an epoch is every row once."""
        stage = MixtureStage(StageBegin(Fraction(0), "rows"), None)
        return cls(tuple(names), (stage,), (None,) * len(names))

    @classmethod
    def build(
        cls,
        names: Sequence[str],
        *,
        weights: Any = None,
        schedule: Any = None,
        temperature: Any = None,
        limits: Any = None,
        unit: Any = "rows",
    ) -> Mixture:
        """Return the mixture that a user wrote, see `headrace.blend`. Raises `SettingsError`."""
        check_word("unit", unit, get_args(WeightUnit))
        requested = {"weights": weights, "schedule": schedule, "temperature": temperature}
        provided = [name for name, value in requested.items() if value is not None]
        if len(provided) > 1:
            raise SettingsError(
                f"{setting_name(provided[0])} and {setting_name(provided[1])} both say the"
                " proportions",
                setting=provided[1],
                remedy="give one of them; a stage of a schedule has weights or a temperature",
            )
        start = StageBegin(Fraction(0), "rows")
        if schedule is not None:
            stages = _stages(schedule, names)
        elif weights is not None:
            stages = [MixtureStage(start, _weights(weights, names, "weights"))]
        else:
            number = 1.0 if temperature is None else _temperature(temperature, "temperature")
            stages = [MixtureStage(start, None, number)]
        return cls(tuple(names), tuple(stages), _limits(limits, names), unit)

    @property
    def is_one_pass(self) -> bool:
        """True if an epoch is every row once."""
        stage = self.stages[0]
        proportional = stage.weights is None and stage.temperature == 1
        return len(self.stages) == 1 and proportional and not any(self.limits)

    @property
    def needs_tokens(self) -> bool:
        """True if the rows of the run follow from tokens, so these must be counted before."""
        if any(stage.begin.unit == "tokens" for stage in self.stages):
            return True
        return self.unit == "tokens" and not self.is_one_pass

    def weights_of_rows(
        self, sizes: Sequence[int], tokens: Sequence[int] | None = None
    ) -> list[tuple[Fraction, ...]]:
        """Return the weight of the rows of each source, by stage.

        sizes: rows of each source. tokens: of all its rows; None if nothing needs them.
        """
        of_tokens = tokens if self.unit == "tokens" else None
        return [stage.shares(sizes, of_tokens) for stage in self.stages]

    @cached_property
    def description(self) -> str:
        """The mixture in words: equal if and only if two mixtures are."""
        if self.is_one_pass:
            return "every row once"
        stages = [f"from {stage.begin} {stage.describe(self.names)}" for stage in self.stages]
        if len(stages) == 1:
            stages = [self.stages[0].describe(self.names)]
        pairs = zip(self.names, self.limits, strict=True)
        limits = [f"{name} {limit!r}" for name, limit in pairs if limit is not None]
        text = "; ".join(stages)
        if self.unit != "rows":
            text += f"; in {self.unit}"
        if limits:
            text += "; at most " + ", ".join(limits) + " epochs"
        if len(text) > _MOST_DESCRIBED:
            return f"{text[:_MOST_DESCRIBED]}… ({sha256_hex(text.encode())})"
        return text

    def stage_rows(
        self,
        *,
        epoch_rows: int,
        global_batch: int,
        sizes: Sequence[int] = (),
        tokens: Sequence[int] | None = None,
    ) -> tuple[int, ...]:
        """Return the row of the run at which each stage begins.

        sizes, tokens: rows of each source and their tokens, where a stage begins at a token.
        Raises `SettingsError` if a stage does not begin after the one before it, whatever the batch
        size; see `check_order`.
        """
        rows: list[int] = []
        for stage in self.stages:
            if stage.begin.unit == "tokens":
                row = self._row_of_tokens(stage.begin, rows, sizes, tokens or (), epoch_rows)
            else:
                row = stage.begin.row(epoch_rows=epoch_rows, global_batch=global_batch)
            rows.append(row)
        self.check_order(rows, any_batch=True)
        for row, stage in zip(rows, self.stages, strict=True):
            if row > MOST_POSITIONS:
                raise SettingsError(
                    f"the stage from {stage.begin} begins at row {row:,}, and a run has at most"
                    f" {MOST_POSITIONS:,}",
                    setting="schedule",
                    value=row,
                    remedy="leave it out",
                )
        return tuple(rows)

    def _row_of_tokens(
        self,
        begin: StageBegin,
        begun: Sequence[int],
        sizes: Sequence[int],
        tokens: Sequence[int],
        epoch_rows: int,
    ) -> int:
        """Return the first row of the run before which so many tokens are expected.

        begun: the rows at which the stages before it begin.
        """
        if not epoch_rows:
            return begun[-1] + 1
        stages = []
        latest = 0
        for row, weights in zip(begun, self.weights_of_rows(sizes, tokens), strict=False):
            latest = max(latest, row)  # steps may put stages out of order until the run begins
            stages.append(StageWeights(latest, weights))
        schedule = Schedule(
            sizes=tuple(sizes),
            stages=tuple(stages),
            most=self.most_rows(sizes),
            epoch_rows=epoch_rows,
        )
        pairs = zip(tokens, sizes, strict=True)
        means = [Fraction(total, max(1, rows)) for total, rows in pairs]
        row_of_begin = schedule.row_of_sum(means, begin.amount)
        if row_of_begin is None:
            raise SettingsError(
                f"the stage from {begin} begins after all sources of the one before it reached"
                " their limits",
                setting="schedule",
                value=str(begin),
                remedy="raise the limits, or let it begin earlier",
            )
        return row_of_begin

    def check_order(self, rows: Sequence[int], *, any_batch: bool = False) -> None:
        """Raise `SettingsError` if a stage does not begin after the one before it.

        any_batch: ignore stages of which one begins at a step and the other does not: a resumed run
        keeps their rows from its state, whatever its batch size.
        """
        for number in range(1, len(rows)):
            begin = self.stages[number].begin
            units = {begin.unit, self.stages[number - 1].begin.unit}
            if rows[number] > rows[number - 1] or (
                any_batch and "steps" in units and len(units) == 2
            ):
                continue
            raise SettingsError(
                f"the stage from {begin} begins at row {rows[number]:,}, and the one before it at"
                f" row {rows[number - 1]:,}",
                setting="schedule",
                value=rows[number],
                remedy="write the stages in their order",
            )

    def most_rows(self, sizes: Sequence[int]) -> tuple[int | None, ...]:
        """Return the rows of each source that a run may have; None for any number."""
        most = []
        for limit, size in zip(self.limits, sizes, strict=True):
            rows = None
            if limit is not None:
                exact = Fraction(str(limit))  # as it was written: the float 0.7 is a little less
                rows = math.floor(exact * size)
            most.append(None if rows is None or rows > _MOST_LIMITED else rows)
        return tuple(most)


def check_shares(
    mixture: Mixture,
    sizes: Sequence[int],
    epoch_rows: int,
    tokens: Sequence[int] | None = None,
) -> None:
    """Raise `SettingsError` if a source with a weight has no rows, or would never be read.

    tokens: see `Mixture.weights_of_rows`.
    """
    if not any(sizes):
        if not epoch_rows:
            return
        raise SettingsError(
            f"{mixture.names[0]} has no rows, so {setting('samples_per_epoch', epoch_rows)}"
            " cannot be taken",
            remedy="leave it out",
        )
    where = "schedule" if len(mixture.stages) > 1 else "weights"
    amounts = sizes if tokens is None or mixture.unit == "rows" else tokens
    for stage in mixture.stages:
        for name, weight, size in zip(
            mixture.names, stage.shares_of(amounts), amounts, strict=True
        ):
            if weight and not size:
                raise SettingsError(
                    f"{name} has no {mixture.unit}, and it has a weight of {float(weight):g}",
                    setting=where,
                    remedy="leave it out",
                )
    for name, most, size in zip(mixture.names, mixture.most_rows(sizes), sizes, strict=True):
        if most == 0 and size:
            limit = mixture.limits[mixture.names.index(name)]
            raise SettingsError(
                f"{limit:g} epochs of the {size:,} rows of {name} are none, so it would never be"
                " read",
                setting="limits",
                value=limit,
                remedy="raise it, or leave the dataset out",
            )
    weights = mixture.weights_of_rows(sizes, tokens)[-1]
    rows = period_rows(weights, epoch_rows)
    counts = share_rows(rows, weights, [None] * len(sizes))
    for name, weight, count in zip(mixture.names, weights, counts, strict=True):
        if weight and not count:
            raise SettingsError(
                f"the share of {name} in {rows:,} rows is none, so it would never be read",
                setting=where,
                remedy="raise its weight, or leave it out",
            )


def check_epoch(schedule: Schedule, epoch: int) -> None:
    """Raise `SettingsError` if an epoch ends after all limits are reached, or after any run."""
    if (epoch + 1) * schedule.epoch_rows > MOST_POSITIONS:
        raise SettingsError(
            f"it ends after {MOST_POSITIONS:,} rows, the most of a run",
            setting="epoch",
            value=epoch,
            remedy="train for fewer epochs",
        )
    epochs = schedule.epochs
    if epochs is not None and epoch >= epochs:
        raise SettingsError(
            f"it leaves {schedule.rows:,} rows, which are {epochs} whole epochs of"
            f" {schedule.epoch_rows:,}, and epoch {epoch} is asked for",
            setting="limits",
            value=epoch,
            remedy=f"raise it, train for fewer epochs, or set {setting('samples_per_epoch')} lower",
        )


def _stages(schedule: Any, names: Sequence[str]) -> list[MixtureStage]:
    if isinstance(schedule, str) or not isinstance(schedule, Sequence) or not schedule:
        raise SettingsError(
            f"it is {schedule!r}",
            setting="schedule",
            remedy="give a list of stages, each (where it begins, its weights)",
        )
    stages = []
    for stage in schedule:
        if not isinstance(stage, Sequence) or isinstance(stage, str) or len(stage) != 2:
            raise SettingsError(
                f"a stage is {stage!r}",
                setting="schedule",
                value=stage,
                remedy="give each as (where it begins, its weights)",
            )
        begin, weights = stage
        if isinstance(weights, str | Real):
            temperature = _temperature(weights, "schedule")
            stages.append(MixtureStage(StageBegin.parse(begin), None, temperature))
        else:
            stages.append(
                MixtureStage(StageBegin.parse(begin), _weights(weights, names, "schedule"))
            )
    if stages[0].begin.amount:
        raise SettingsError(
            f"the first stage begins at {stages[0].begin}",
            setting="schedule",
            value=schedule[0][0],
            remedy="let it begin at 0",
        )
    return stages


def _weights(weights: Any, names: Sequence[str], where: str) -> tuple[float, ...]:
    """Return the weights in the order of the names. Raises `SettingsError`.

    In a schedule, a source may have the weight 0, or be left out of a mapping.
    """
    if isinstance(weights, Mapping):
        unknown = set(weights) - set(names)
        missing = set(names) - set(weights)
        if unknown or (missing and where == "weights"):
            raise SettingsError(
                f"the weights are of {sorted(weights, key=str)}, the datasets are"
                f" {sorted(names, key=str)}",
                setting=where,
                remedy="give one of each",
            )
        weights = [weights.get(name, 0.0) for name in names]
    if isinstance(weights, np.ndarray):
        weights = weights.tolist()
    if not isinstance(weights, Sequence) or len(weights) != len(names):
        raise SettingsError(
            f"the weights are {weights!r} for {len(names)} datasets",
            setting=where,
            remedy="give one of each",
        )
    for name, weight in zip(names, weights, strict=True):
        _check_number(name, weight, where, zero=where == "schedule")
    if not any(weights):
        raise SettingsError(
            "all weights of a stage are 0", setting=where, remedy="give one dataset a weight"
        )
    return tuple(map(float, weights))


def _number(value: Any) -> float:
    """Return a number, also one of numpy; NaN for anything else, and for what no float holds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _check_number(name: str, value: Any, where: str, *, zero: bool = False) -> None:
    number = _number(value)
    if math.isfinite(number) and (number > 0 or (zero and number == 0)):
        return
    raise SettingsError(
        f"that of {name} is {value!r}",
        setting=where,
        value=value,
        remedy="give a positive number, or leave out a dataset that has none",
    )


def _temperature(value: Any, where: str) -> float:
    if isinstance(value, str):
        if value in _TEMPERATURES:
            return _TEMPERATURES[value]
    elif _number(value) >= 1:
        return _number(value)
    words = ", ".join(f'"{word}"' for word in _TEMPERATURES)
    raise SettingsError(
        f"the temperature is {value!r}",
        setting=where,
        value=value,
        remedy=f"give a number from 1 on, or one of {words}",
    )


def _limits(limits: Any, names: Sequence[str]) -> tuple[float | None, ...]:
    if limits is None:
        return (None,) * len(names)
    if not isinstance(limits, Mapping) or set(limits) - set(names):
        raise SettingsError(
            f"it is {limits!r}, the datasets are {sorted(names, key=str)}",
            setting="limits",
            value=limits,
            remedy="give the epochs of some datasets by name",
        )
    for name, limit in limits.items():
        _check_number(name, limit, "limits")
    return tuple(float(limits[name]) if name in limits else None for name in names)
