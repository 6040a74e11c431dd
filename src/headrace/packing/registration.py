"""Register packed sequences."""

from typing import get_args

from headrace.near import STAGES
from headrace.packing.chats.words import REASONS, ImageRule, Layout, Reasoning
from headrace.recipe import Init, Registration

LAYOUTS = get_args(Layout)
_FOR_OTHERS = "shards of .{0} are for other readers; prepare with packed_storage='parquet' to stream"

REGISTRATION = Registration(
    name="packed_sequences",
    settings="headrace.packing.config:PackedSequences",
    commands={
        "pack": "headrace.packing.command:pack",
    },
    words={
        ("pack",): {"layout": LAYOUTS},
        ("peek",): {"layout": LAYOUTS, "reasoning": get_args(Reasoning), "images": get_args(ImageRule)},
    },
    init=Init(word="pack", options="headrace.cli.init.asked:AskedPack", sections="headrace.packing.init:pack_sections"),
    stages={
        "sample": ("choose a sample", "parts"),
        "tokenise": ("render and tokenise", "parts"),
        **STAGES,
        "pack": ("pack into bins", "splits"),
        "materialise": ("write bins", "shards"),
    },
    reasons={
        "no_split_key": "the conversation key is missing or empty",
        "too_short": "one token has nothing to predict",
        "too_long": "no sequence of the row fits a bin, or its answer would be cut away",
        "sampled_out": "not in the sample",
        "in_benchmark": "holds an item of a benchmark that is excluded",
        "key_in_test": "its conversation key is in test",
        "key_in_valid": "its conversation key is in valid",
        "content_in_test": "its user turns, or a sequence of it, are in test",
        "content_in_valid": "its user turns, or a sequence of it, are in valid",
        "duplicate": "an earlier row is the same",
        "weight": "left out so that token shares are as the weights",
        "bin_without_label": "its bin has no label to train on",
        **REASONS,
    },
    row="bin",
    unproved=(
        "The tokens may not be those of the chats: sequences are compared with the 64-bit fingerprints of packing.",
    ),
    verify="headrace.packing.verify:verify_packed",
    figures="headrace.packing.figures:figures",
    summary="headrace.packing.command:print_packed",
    streams={
        "packed": "headrace.packing.read.batches:packed_setting",
        "form of rows": "headrace.packing.read.batches:packed_form",
        "pack": "headrace.packing.on_the_fly.settings:pack_setting",
    },
    readers={"npy": _FOR_OTHERS.format("npy"), "bin": _FOR_OTHERS.format("bin")},
)
