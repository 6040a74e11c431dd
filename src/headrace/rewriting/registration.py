"""Register the rewrite."""

from headrace.recipe import Init, Registration

REGISTRATION = Registration(
    name="rewrite",
    settings="headrace.rewriting.settings:Rewrite",
    commands={"rewrite": "headrace.rewriting.settings:Rewrite"},
    help="""Rewrite shards as Parquet made to be trained on: the same rows, several times faster to decode.

    The splits of a prepared dataset stay; plain shards become the split "all". A rewrite that was killed resumes.

    Example:  headrace rewrite raw --out fast
    """,
    init=Init(
        word="rewrite",
        options="headrace.cli.init.asked:AskedRewrite",
        sections="headrace.rewriting.init:rewrite_sections",
    ),
    stages={
        "compare": ("compare rows", "shards"),
        "nulls": ("find nulls", "shards"),
        "rewrite": ("rewrite shards", "shards"),
        "forget": ("write shards again", "shards"),
    },
    reasons={
        "in_benchmark": "holds an item of a benchmark that is excluded",
        "duplicate": "an earlier row has its content",
        "forgotten": "its entity was erased",
    },
    forget="headrace.rewriting.forget:ERASURE",
    shards="of one split",
    unproved=("The splits may share entities and times: they come from the source and were not compared again.",),
    verify="headrace.rewriting.verify:verify_rewrite",
    figures="headrace.rewriting.figures:figures",
)
