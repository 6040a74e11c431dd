"""Register histories."""

from headrace.formats.time_formats import DATE_WORDS
from headrace.recipe import Init, Registration

REGISTRATION = Registration(
    name="histories",
    settings="headrace.histories.config:Histories",
    commands={"histories": "headrace.histories.command:app"},
    words={
        ("histories", "prepare"): {
            "time_format": DATE_WORDS,
        },
        ("histories", "plan"): {"rows": ("uniform", "measurements"), "split": ("train", "test")},
    },
    init=Init(
        word="histories",
        options="headrace.cli.init.asked:AskedHistories",
        sections="headrace.histories.init:histories_sections",
    ),
    stages={
        "gather": ("gather measurements", "shards"),
        "dictionary": ("sort texts", "dictionaries"),
        "compare": ("compare entities", "partitions"),
        "order": ("order entities", "partitions"),
        "rows": ("list rows", "files"),
    },
    reasons={
        "not_sampled": "not in the sample",
        "null_time": "has no time",
        "unreadable_time": "time cannot be read",
        "time_before_1970": "time is before 1970",
        "null_entity": "has no entity",
        "unreadable_entity": "entity is not an address or a number",
        "null_peer": "has no peer",
        "unreadable_peer": "peer is not an address or a number",
        "unreadable_value": "value is not a number of its type",
        "missing_value": "has no value",
        "negative_value": "value is below 0",
        "zero_value": "value is 0",
        "duplicate": "its entity has the measurements of another one",
    },
    row="big row",
    contents=("headrace.histories.verify:contents_of_split", "entity"),
    roles="headrace.histories.config:output_roles",
    unproved=(
        "An entity may be in both splits under two names, where it has other measurements under each.",
        "Train and test cover the same time; only their entities differ.",
    ),
    verify="headrace.histories.verify:verify_histories",
    figures="headrace.histories.figures:figures",
    summary="headrace.histories.summary:print_histories",
    readers={
        "array_record": "histories in ArrayRecord shards cannot be streamed as a table; read them as contexts "
        "(`headrace histories plan` counts them), or prepare them with format='arrow'"
    },
)
