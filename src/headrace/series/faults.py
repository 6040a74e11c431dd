"""Find contradictions between settings of series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.folds.settings import GroupKFold
from headrace.series.arrays.axis import CALENDAR, Frequency
from headrace.series.division import DIVISION_SETTINGS

if TYPE_CHECKING:
    from headrace.series.settings import Series

MASK_SUFFIX = "__filled"  # of the columns that mark values carried forward

_RATIOS_SUM = 1e-9


def find_faults(settings: Series) -> Iterator[str]:
    """Yield a message for each contradiction."""
    if not settings.time_format:
        yield "time_format is empty; give at least one"
    yield from _time_faults(settings)
    yield from _cut_faults(settings)
    yield from _column_faults(settings)
    yield from _source_faults(settings)
    yield from _static_faults(settings)


def _time_faults(settings: Series) -> Iterator[str]:
    resample = settings.resample
    frequency = settings.frequency
    if settings.snap_us is not None:
        step = 0
        if not settings.needs_frequency:
            step = Frequency.parse(frequency).micros
        if not step:
            yield f"snap needs a frequency of a fixed length, e.g. 1h, and it is {frequency!r}"
        if settings.snap_us * 2 > step:
            yield f"snap is {settings.snap!r}; give at most half of the frequency {frequency}"
        if resample:
            yield "give resample or snap, not both"
    if settings.business_days and frequency != "1b":
        yield "business_days are of frequency 1b; give it too"
    if resample and frequency == "infer":
        yield "resample needs a frequency, e.g. 1d or coarsest"
    if frequency == "coarsest" and not resample:
        yield "frequency is 'coarsest', which needs resample to combine finer rows"
    unknown = sorted(resample.keys() - {"*", *settings.columns})
    if unknown:
        yield f"resample names {', '.join(unknown)}, which is not a column of values"
    if resample and "*" not in resample:
        without_rule = [name for name in settings.columns if name not in resample]
        if without_rule:
            names = ", ".join(without_rule)
            yield f"resample has no rule for {names}; give one, or one for '*'"
    if settings.duplicate_times == "nearest" and settings.snap is None:
        yield "duplicate_times is 'nearest', which needs snap; give 'first' or 'last'"
    counts_instants = any(word.startswith("epoch") for word in settings.time_format)
    if settings.time_zone is not None and counts_instants:
        yield "time_format is an epoch, which counts instants; leave time_zone out"


def _cut_faults(settings: Series) -> Iterator[str]:
    """Find contradictions among settings that divide rows."""
    ratios = {name: getattr(settings, name) for name in ("train_ratio", "val_ratio", "test_ratio")}
    total = sum(ratios.values())
    if abs(total - 1) > _RATIOS_SUM:
        words = " + ".join(f"{name} {ratio}" for name, ratio in ratios.items())
        yield f"{words} = {total:g}; make them sum to 1"
    fields = type(settings).model_fields
    if settings.cut_by_dates and any(
        ratio != fields[name].default for name, ratio in ratios.items()
    ):
        yield ("train_end or cut_dates, and ratios are given; cut by dates or by shares of targets")
    if settings.val_end is not None and settings.train_end is None:
        yield "val_end is given without train_end; give both"
    used = [name for name in DIVISION_SETTINGS if getattr(settings, name) not in (None, ())]
    names = ", ".join(used)
    if used and not settings.fits:
        yield (
            f"{names} with pipelines_from, where nothing trains and every row is in test; leave"
            f" out {names}"
        )
    if isinstance(settings.folds, GroupKFold):
        yield (
            "folds are of entities, which would each need other scalers; give val_entities and"
            " test_entities, or folds that roll, such as rolling:n=5,step=365d"
        )
    if settings.folds and not settings.cut_by_dates:
        yield "folds roll on from train_end, which is not given; give it, or cut_dates"
    configs = settings.preprocessing_configs
    pipelines = (configs.target, *configs.features)
    holds_out = settings.val_entities or settings.test_entities
    if holds_out and any(pipeline.strategy == "per_group" for pipeline in pipelines):
        yield (
            f"{names}: such entities do not train, so a pipeline with strategy per_group, the"
            " default, has nothing to be fitted on; give unified ones in preprocessing_configs,"
            " of the target too"
        )
    has_val_end = settings.val_end is not None or settings.cut_dates is not None
    if settings.val_entities and settings.cut_by_dates and not has_val_end:
        yield (
            "val_entities validate from train_end to before val_end, which is not given; give it"
        )
    if settings.cuts is not None and settings.cuts[0] > settings.cuts[1]:
        yield f"train_end {settings.train_end} is after val_end {settings.val_end}; swap them"


def _column_faults(settings: Series) -> Iterator[str]:
    """Find contradictions among the roles of columns."""
    features = settings.feature_names
    # In the order given, so that a feature named twice counts twice.
    added = [name for name in features if name not in settings.features]
    names = [*settings.targets, *settings.features, *added]
    if not set(settings.targets).isdisjoint(features):
        yield (
            f"the target {settings.target!r} is also a feature, which would leak it; take it out of"
            " features: models that read its past ask for it when they read windows"
        )
    for name in sorted(set(settings.past_features).intersection(settings.future_features)):
        yield f"feature {name!r} is in past_features and future_features; choose one"
    unknown = settings.categories.keys() - set(features)
    lists = settings.categories.values()
    if unknown or any(len(set(texts)) < max(1, len(texts)) for texts in lists):
        yield (
            f"categories of {', '.join(settings.categories)}: are not features, or list no text or"
            " one twice; correct them"
        )
    for part in settings.calendar:
        if part not in CALENDAR:
            yield f"calendar has {part!r}; give some of {', '.join(CALENDAR)}"
    calendar = settings.calendar_columns
    if len(set(calendar)) < len(calendar) or not {*names, settings.time}.isdisjoint(calendar):
        yield f"calendar makes {', '.join(calendar)}, and one exists already; rename the other"
    roles = [settings.time, *names]
    if not settings.entity_is_file:
        roles.append(settings.entity)
    for name in sorted(roles):
        if roles.count(name) > 1:
            yield (
                f"column {name!r} has more than one role; time, entity, target and features differ"
            )
    masks = {f"{name}{MASK_SUFFIX}" for name in names}
    if settings.filled_mask == "columns" and not masks.isdisjoint(names):
        yield f"a column's name ends with {MASK_SUFFIX!r}, as those of masks do; rename it"


def _source_faults(settings: Series) -> Iterator[str]:
    reader = settings.reader
    directories = settings.region_time_series_base_dirs
    if bool(settings.source) == bool(directories):
        yield "give either source or region_time_series_base_dirs, and not both"
    if reader == "camels_us" and (len(settings.source) != 1 or not settings.entity_is_file):
        yield (
            "reader 'camels_us' takes one source, the data set's root directory, and entity"
            " 'file_name'"
        )
    if reader in ("wide", "grdc") and not settings.entity_is_file:
        yield f"reader {reader!r} finds the entities itself; leave entity as 'file_name'"
    if directories and reader not in ("table", "xarray"):
        yield f"reader {reader!r} takes source; regions are for 'table' and 'xarray'"
    if directories and not settings.entity_is_file:
        yield "regions have a file per entity; leave entity as 'file_name'"
    if settings.entities == ():
        yield "entities is empty; give at least one, or leave it out for all"


def _static_faults(settings: Series) -> Iterator[str]:
    files = settings.static
    directories = settings.region_static_attributes_base_dirs
    features = settings.static_features
    if not settings.fits and settings.missing_static in ("mean", "median"):
        yield (
            f"missing_static is {settings.missing_static!r}, which this run would compute from its"
            " own entities, not from those that trained; give 'error' or 'drop_entity' with"
            " pipelines_from"
        )
    if files and directories:
        yield "give static or region_static_attributes_base_dirs, not both"
    if bool(files or directories) != bool(features):
        yield "static files and static_features go together; give both or neither"
    if (files or directories) and settings.entity_is_file and settings.static_entity is None:
        yield (
            "static_entity is missing; name the column of the static files that holds the entity"
        )
    if len(set(features)) < len(features):
        yield "static_features names a column twice; name each once"
