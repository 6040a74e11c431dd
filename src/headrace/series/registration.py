"""Register the recipe of series."""

from headrace.formats.time_formats import DATE_WORDS
from headrace.recipe import Init, Registration

REGISTRATION = Registration(
    name="series",
    settings="headrace.series.config:Series",
    commands={"series": "headrace.series.command:series"},
    words={("series",): {"time_format": DATE_WORDS}},
    init=Init(
        word="series",
        options="headrace.cli.init.asked:AskedSeries",
        sections="headrace.series.init:series_sections",
    ),
    stages={
        "spread": ("sort rows by entity", "tables"),
        "frequency": ("find the frequency", "steps"),
        "clean": ("clean series", "batches"),
        "fit": ("fit scalers", "steps"),
        "write": ("scale and write series", "batches"),
        "finish": ("write reports and scalers", "steps"),
    },
    reasons={
        "null_entity": "has no entity",
        "entity_failed": "its entity does not pass",
        "in_no_split": "too close before a cut, of a held-out entity in the part of others, or needed by no fold",
        "bad_time": "time cannot be read",
        "off_grid": "time is between two steps",
        "duplicate_time": "another row has its time",
        "trimmed": "before the first or after the last value",
        "not_listed": "its entity was not requested",
        "duplicate": "its entity has the values and times of an earlier one",
    },
    roles="headrace.series.config:output_roles",
    unproved=(
        "An entity may occur under two names; only exact copies are found.",
        "Entities may overlap in calendar time across splits; the check of calendar time counts them and is not a law.",
    ),
    verify="headrace.series.verify:verify_series",
    figures="headrace.series.figures:figures",
    summary="headrace.series.command:print_series",
)
