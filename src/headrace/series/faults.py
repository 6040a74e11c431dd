"""Find contradictions between settings of series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.errors import setting_name
from headrace.folds.settings import GroupKFold
from headrace.series.arrays.axis import CALENDAR
from headrace.series.division import DIVISION_SETTINGS

if TYPE_CHECKING:
    from headrace.series.settings import Series

_ROUNDING = 1e-9  # of sums of shares


def find_faults(settings: Series) -> Iterator[str]:
    """Yield a message for each contradiction, with the settings marked."""
    yield from _clock_faults(settings)
    yield from _frequency_faults(settings)
    yield from _ratio_faults(settings)
    yield from _cut_faults(settings)
    yield from _role_faults(settings)
    yield from _column_faults(settings)
    yield from _source_faults(settings)
    yield from _static_faults(settings)


def _clock_faults(settings: Series) -> Iterator[str]:
    """Find instants where local times are expected."""
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
    if frequency == "coarsest" and not resample:
        yield (
            f"{setting_name('frequency')} is 'coarsest'; give {setting_name('resample')} to combine"
            " finer rows"
        )
    if not resample:
        return
    if frequency == "infer":
        yield f"{setting_name('resample')} needs a frequency; give one, e.g. 1d or coarsest"
    rules = {
        settings.rule(name) for name in settings.columns if name in resample or "*" in resample
    }
    if "nearest" in rules and len(rules) > 1:
        yield (
            f"{setting_name('resample')} is nearest for some columns, which have their steps around"
            " them and not after them; give it for all"
        )
    unknown = ", ".join(sorted(resample.keys() - {"*", *settings.columns}))
    if unknown:
        yield f"{setting_name('resample')} names {unknown}, which is not a column of values"
    without_rule = ", ".join(name for name in settings.columns if name not in resample)
    if without_rule and "*" not in resample:
        yield (
            f"{setting_name('resample')} has no rule for {without_rule}; give one, or one for '*'"
        )


def _ratio_faults(settings: Series) -> Iterator[str]:
    total = settings.train_ratio + settings.val_ratio
    if total > 1 + _ROUNDING:
        yield (
            f"{setting_name('train_ratio')} {settings.train_ratio} + {setting_name('val_ratio')}"
            f" {settings.val_ratio} = {total:g}; give at most 1"
        )
    fields = type(settings).model_fields
    for name in ("train_ratio", "val_ratio"):
        if settings.cut_by_dates and getattr(settings, name) != fields[name].default:
            yield (
                f"{setting_name(name)} is given, and so is {setting_name('train_end')}; cut by"
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
    for name in sorted(set(settings.target).intersection(settings.feature_names)):
        role = "past_features" if name in settings.past_features else "future_features"
        yield (
            f"{setting_name('target')} {name!r} is also a feature, which would leak it; take it out"
            f" of {setting_name(role)}: models that read its past ask for it when they read windows"
        )
    for name in sorted(set(settings.past_features).intersection(settings.future_features)):
        yield (
            f"{setting_name('past_features')} and {setting_name('future_features')} both have"
            f" {name!r}; choose one"
        )
    roles = [settings.time_column, *settings.columns]
    if not settings.entity_is_file:
        roles.append(settings.entity)
    for name in sorted(roles):
        if roles.count(name) > 1:
            yield (
                f"column {name!r} has more than one role; time, entity, target and features differ"
            )


def _column_faults(settings: Series) -> Iterator[str]:
    names = settings.columns
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


def _source_faults(settings: Series) -> Iterator[str]:
    if settings.entities == ():
        yield f"{setting_name('entities')} is empty; give at least one, or leave it out for all"


def _static_faults(settings: Series) -> Iterator[str]:
    static = setting_name("static")
    features = setting_name("static_features")
    has_files = bool(settings.static)
    if has_files != bool(settings.static_features):
        yield f"{static} and {features} go together; give both or neither"
    if has_files and settings.entity_is_file and settings.static_entity is None:
        yield (
            f"{setting_name('static_entity')} is missing; name the column of the static files that"
            " holds the entity"
        )
    if len(set(settings.static_features)) < len(settings.static_features):
        yield f"{features} names a column twice; name each once"
