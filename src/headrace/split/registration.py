"""Register the temporal split."""

from headrace.near import STAGES
from headrace.recipe import Init, Registration

REGISTRATION = Registration(
    name="temporal_split",
    settings="headrace.split.settings:TemporalSplit",
    commands={"split": "headrace.split.command:split"},
    init=Init(
        word="split", options="headrace.cli.init.asked:AskedSplit", sections="headrace.split.init:split_sections"
    ),
    stages={
        "scan": ("find entities and dates", "shards"),
        **STAGES,
        "near_rows": ("join near rows", "shards"),
        "split": ("write splits", "shards"),
        "join": ("join files", "splits"),
        "forget": ("write shards again", "shards"),
    },
    reasons={
        "null_time": "has no time",
        "unreadable_time": "time cannot be read",
        "null_entity": "has no entity",
        "train_entity_after_cutoff": "entity trains, row is from the cutoff on",
        "val_entity_after_cutoff": "entity validates, row is from the cutoff on",
        "gap_before_cutoff": "lies in the gap before the cutoff",
        "label_past_cutoff": "label ends after the cutoff",
        "missing_label": "has no label",
        "in_benchmark": "holds an item of a benchmark that is excluded",
        "content_before_cutoff": "train or val has its content",
        "duplicate": "an earlier row has its content",
        "in_no_fold": "has no part in any fold",
        "forgotten": "its entity was erased",
    },
    forget="headrace.split.forget:ERASURE",
    unproved=("Rows of other entities at the same time may be in two splits: val is from the time of train.",),
    verify="headrace.split.verify:verify_split",
    figures="headrace.split.figures:figures",
)
