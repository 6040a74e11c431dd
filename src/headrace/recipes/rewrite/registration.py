"""Register the rewrite."""

from headrace.recipe import Init, Registration

REGISTRATION = Registration(
    name="rewrite",
    settings="headrace.recipes.rewrite.config:Rewrite",
    commands={"rewrite": "headrace.cli.rewrite_command:rewrite"},
    words={("rewrite",): {"codec": ("none", "lz4", "zstd")}},
    init=Init(
        word="rewrite",
        options="headrace.cli.init.asked:AskedRewrite",
        sections="headrace.cli.init.rewrite:rewrite_sections",
    ),
    stages={"nulls": ("find nulls", "shards"), "rewrite": ("rewrite shards", "shards")},
    shards="of one split",
    figures="headrace.report.rewrite:figures",
)
