"""Find contradictions between settings of series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.errors import setting, setting_name
from headrace.folds.settings import GroupKFold
from headrace.series.arrays.axis import CALENDAR, Frequency
from headrace.series.division import DIVISION_SETTINGS

if TYPE_CHECKING:
    from headrace.series.settings import Series

MASK_SUFFIX = "__filled"  # of the columns that mark values carried forward

_RATIOS_SUM = 1e-9


def find_faults(settings: Series) -> Iterator[str]:
    """Yield a message for each contradiction, with the settings marked."""
    yield from _snap_faults(settings)
    yield from _frequency_faults(settings)
    yield from _ratio_faults(settings)
    yield from _cut_faults(settings)
    yield from _role_faults(settings)
    yield from _column_faults(settings)
    yield from _source_faults(settings)
    yield from _static_faults(settings)


def _snap_faults(settings: Series) -> Iterator[str]:
    """Find contradictions among settings that move times."""
    snap = setting_name("snap")
    frequency = settings.frequency
    if settings.snap_us is not None:
        step = 0
        if not settings.needs_frequency:
            step = Frequency.parse(frequency).micros
        if not step:
            yield f"{snap} needs a frequency of a fixed length, e.g. 1h, and it is {frequency!r}"
        if settings.snap_us * 2 > step:
            yield f"{snap} is {settings.snap!r}; give at most half of the frequency {frequency}"
        if settings.resample:
            yield f"{snap} and {setting_name('resample')} are given; choose one"
    if settings.duplicate_times == "nearest" and settings.snap is None:
        yield (
            f"{setting_name('duplicate_times')} is 'nearest', which needs {snap}; give 'first' or"
            " 'last'"
        )
    counts_instants = any(word.startswith("epoch") for word in settings.time_forms)
    if settings.time_zone is not None and counts_instants and settings.step_zone is None:
        yield (
            f"time_format of {setting_name('dialect')} is an epoch, which counts instants; leave"
            f" {setting_name('time_zone')} out, or give a {setting_name('frequency')} of days or"
            " longer"
        )


def _frequency_faults(settings: Series) -> Iterator[str]:
    resample = settings.resample
    frequency = settings.frequency
    if settings.business_days and frequency != "1b":
        yield (
            f"{setting_name('business_days')} are given without {setting('frequency', '1b')}; give"
            " it too"
        )
    if frequency == "coarsest" and not resample:
        yield (
            f"{setting_name('frequency')} is 'coarsest'; give {setting_name('resample')} to combine"
            " finer rows"
        )
    if not resample:
        return
    if frequency == "infer":
        yield f"{setting_name('resample')} needs a frequency; give one, e.g. 1d or coarsest"
    unknown = ", ".join(sorted(resample.keys() - {"*", *settings.columns}))
    if unknown:
        yield f"{setting_name('resample')} names {unknown}, which is not a column of values"
    without_rule = ", ".join(name for name in settings.columns if name not in resample)
    if without_rule and "*" not in resample:
        yield (
            f"{setting_name('resample')} has no rule for {without_rule}; give one, or one for '*'"
        )


def _ratio_faults(settings: Series) -> Iterator[str]:
    names = ("train_ratio", "val_ratio", "test_ratio")
    ratios = {name: getattr(settings, name) for name in names}
    total = sum(ratios.values())
    if abs(total - 1) > _RATIOS_SUM:
        words = " + ".join(f"{setting_name(name)} {ratio}" for name, ratio in ratios.items())
        yield f"{words} = {total:g}; make them sum to 1"
    fields = type(settings).model_fields
    changed = [name for name in names if ratios[name] != fields[name].default]
    if settings.cut_by_dates and changed:
        yield (
            f"{setting_name(changed[0])} is given, and so is {setting_name('train_end')}; cut by"
            " dates or by shares of targets"
        )


def _cut_faults(settings: Series) -> Iterator[str]:
    """Find contradictions among settings that divide rows."""
    train_end = setting_name("train_end")
    val_end = setting_name("val_end")
    if settings.val_end is not None and settings.train_end is None:
        yield f"{val_end} is given without {train_end}; give both"
    used = []
    for name in DIVISION_SETTINGS:
        if getattr(settings, name) not in (None, ()):
            used.append(name)
    names = ", ".join(map(setting_name, used))
    if used and not settings.fits:
        yield (
            f"{names} with {setting_name('pipelines_from')}, where nothing is fitted and every row"
            f" is in test; leave out {names}"
        )
    if isinstance(settings.folds, GroupKFold):
        yield (
            f"{setting_name('folds')} are of entities, which would each need other scalers; give"
            f" {setting_name('val_entities')} and {setting_name('test_entities')}, or folds that"
            " roll, such as rolling:n=5,step=365d"
        )
    if settings.folds and not settings.cut_by_dates:
        yield f"{setting_name('folds')} roll on from {train_end}, which is not given; give it"
    configs = settings.preprocessing_configs
    strategies = {pipeline.strategy for pipeline in (configs.target, *configs.features)}
    if (settings.val_entities or settings.test_entities) and "per_group" in strategies:
        yield (
            f"{names}: such entities have no train rows, so a per_group pipeline, the"
            " default, cannot be fitted; give unified ones in"
            f" {setting_name('preprocessing_configs')}, of the target too"
        )
    if settings.val_entities and settings.cut_by_dates and settings.val_end is None:
        yield (
            f"{setting_name('val_entities')} are in val from {train_end} to before {val_end},"
            " which is not given; give it"
        )
    if settings.cuts is not None and settings.cuts[0] > settings.cuts[1]:
        yield f"{train_end} {settings.train_end} is after {val_end} {settings.val_end}; swap them"


def _role_faults(settings: Series) -> Iterator[str]:
    """Find contradictions among the roles of columns."""
    if not set(settings.targets).isdisjoint(settings.feature_names):
        yield (
            f"{setting_name('target')} {settings.target!r} is also a feature, which would leak it;"
            f" take it out of {setting_name('features')}: models that read its past ask for it when"
            " they read windows"
        )
    for name in sorted(set(settings.past_features).intersection(settings.future_features)):
        yield (
            f"{setting_name('past_features')} and {setting_name('future_features')} both have"
            f" {name!r}; choose one"
        )
    roles = [settings.time_column, *_value_columns(settings)]
    if not settings.entity_is_file:
        roles.append(settings.entity)
    for name in sorted(roles):
        if roles.count(name) > 1:
            yield (
                f"column {name!r} has more than one role; time, entity, target and features differ"
            )


def _value_columns(settings: Series) -> list[str]:
    """Return the columns of values in the order given, so that one named twice counts twice."""
    added = [name for name in settings.feature_names if name not in settings.features]
    return [*settings.targets, *settings.features, *added]


def _column_faults(settings: Series) -> Iterator[str]:
    names = _value_columns(settings)
    unknown = settings.categories.keys() - set(settings.feature_names)
    lists = settings.categories.values()
    if unknown or any(len(set(texts)) < max(1, len(texts)) for texts in lists):
        yield (
            f"{setting_name('categories')} of {', '.join(settings.categories)} are not features, or"
            " list no text or one twice; correct them"
        )
    for part in settings.calendar:
        if part not in CALENDAR:
            yield f"{setting_name('calendar')} has {part!r}; give some of {', '.join(CALENDAR)}"
    calendar = settings.calendar_columns
    if len(set(calendar)) < len(calendar) or not {*names, settings.time_column}.isdisjoint(
        calendar
    ):
        yield (
            f"{setting_name('calendar')} makes {', '.join(calendar)}, and one exists already;"
            " rename the other"
        )
    masks = {f"{name}{MASK_SUFFIX}" for name in names}
    if settings.filled_mask == "columns" and not masks.isdisjoint(names):
        yield f"a column's name ends with {MASK_SUFFIX!r}, as those of masks do; rename it"


def _source_faults(settings: Series) -> Iterator[str]:
    reader = settings.reader
    reads = f"{setting_name('reader')} {reader!r}"
    if reader == "wide" and not settings.entity_is_file:
        yield f"{reads} finds the entities itself; leave {setting_name('entity')} as 'file_name'"
    if settings.entities == ():
        yield f"{setting_name('entities')} is empty; give at least one, or leave it out for all"


def _static_faults(settings: Series) -> Iterator[str]:
    static = setting_name("static")
    features = setting_name("static_features")
    has_files = bool(settings.static)
    if not settings.fits and settings.missing_static in ("mean", "median"):
        yield (
            f"{setting_name('missing_static')} is {settings.missing_static!r}, which this run would"
            " compute from its own entities, not from those in train; give 'error' or"
            f" 'drop_entity' with {setting_name('pipelines_from')}"
        )
    if has_files != bool(settings.static_features):
        yield f"{static} and {features} go together; give both or neither"
    if has_files and settings.entity_is_file and settings.static_entity is None:
        yield (
            f"{setting_name('static_entity')} is missing; name the column of the static files that"
            " holds the entity"
        )
    if len(set(settings.static_features)) < len(settings.static_features):
        yield f"{features} names a column twice; name each once"
