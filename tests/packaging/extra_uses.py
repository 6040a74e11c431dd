"""What a user does that needs an extra, in the working directory, with the core alone for everything before."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import headrace
from headrace.errors import MissingExtra
from headrace.formats.grids import grid_tables
from headrace.validate_sharding import main as validate_sharding_of


def _table() -> Any:
    Path("raw").mkdir(exist_ok=True)
    Path("raw/part-0.csv").write_text(
        "who,time,amount\n" + "".join(f"{n % 3},2024-01-0{n + 1},{n}\n" for n in range(9))
    )
    return headrace.open("raw", cache_dir="cache")


def torch_stream() -> None:
    next(iter(_table().stream(batch_size=2, batch_format="torch")))


def torch_dataset() -> None:
    _table().torch_dataset(batch_size=2)


def torch_map() -> None:
    _table().map_dataset()


def torch_class() -> None:
    headrace.types.StreamingDataset  # noqa: B018 - the access is the use


def torch_tabular() -> None:
    headrace.PipelineIterableDataset  # noqa: B018 - the access is the use


def torch_windows() -> None:
    import headrace.windows

    headrace.windows.open  # noqa: B018 - the access is the use


def torch_contexts() -> None:
    import_module("headrace.contexts.torch")


def lightning_module() -> None:
    import_module("headrace.lightning")


def transformers_module() -> None:
    import_module("headrace.trainers.hf")


def chat_pack() -> None:
    Path("tokenizer").mkdir()
    words = {"type": "WordLevel", "vocab": {"a": 0, "<e>": 1}, "unk_token": "a"}
    special = {"id": 1, "content": "<e>", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    Path("tokenizer/tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [{**special, **flags}], "model": words})
    )
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    Path("tokenizer/tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<e>", "chat_template": template})
    )
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
    Path("chats.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    headrace.prepare(
        headrace.PackedSequences(blend="chats.jsonl", tokenizer="tokenizer", pack_size=16), "out"
    )


def fastokens_pack() -> None:
    words = {"type": "BPE", "vocab": {"a": 0, "<e>": 1}, "merges": []}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    cut = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = [{"id": 1, "content": "<e>", "special": True, **flags}]
    Path("bytes").mkdir()
    Path("bytes/tokenizer.json").write_text(
        json.dumps(
            {"version": "1.0", "added_tokens": special, "pre_tokenizer": cut, "model": words}
        )
    )
    Path("bytes/tokenizer_config.json").write_text(json.dumps({"eos_token": "<e>"}))
    Path("texts.jsonl").write_text(json.dumps({"text": "aa"}) + "\n")
    asked = {"tokenizer": "bytes", "pack_size": 16, "tokenizer_backend": "fastokens"}
    headrace.prepare(headrace.PackedSequences(blend="texts.jsonl", **asked), "fast")


def histories_write() -> None:
    Path("pings.csv").write_text("src_addr,event_time,rtt\n10.0.0.1,2024-01-01T00:00:00,1.5\n")
    headrace.prepare(headrace.Histories(source="pings.csv"), "out")


def histories_kernel() -> None:
    import_module("headrace.histories.contexts.tokens")


def grain_module() -> None:
    import_module("headrace.grain")


def ray_engine() -> None:
    _table()
    split = headrace.TemporalSplit(source="raw", time="time", entity="who", split_date="2024-01-05")
    headrace.prepare(split, "out", engine="ray")


def s3_open() -> None:
    headrace.open("s3://bucket/raw", cache_dir="cache")


def gs_open() -> None:
    headrace.open("gs://bucket/raw", cache_dir="cache")


def az_open() -> None:
    headrace.open("az://bucket/raw", cache_dir="cache")


def series_steps() -> None:
    import polars as pl

    table = pl.DataFrame({"flow": [1.0, 2.0, 4.0], "gauge_id": ["a", "a", "a"]})
    headrace.GroupedPipeline([{"step": "PowerTransformer"}], ["flow"]).fit(table)


def series_skops() -> None:
    from headrace.series.pipelines.objects import to_skops

    to_skops({})


def pandas_frame() -> None:
    _table()["all"].to_pandas()


def duckdb_relation() -> None:
    _table()["all"].to_duckdb()


def datasets_dataset() -> None:
    _table()["all"].to_datasets()


def xarray_open() -> None:
    list(grid_tables(Path("a.nc"), ["flow"]))


def validate_sharding() -> str:
    """A module that is run: its error goes to a person."""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(said):
        code = validate_sharding_of(["--data", "raw", "--batch-size", "2"])
    return f"exit {code}: {said.getvalue()}"


def every_module() -> dict[str, list[str]]:
    """Imports all of headrace: which extras errors named, and what failed for another reason than a package kept away.

    Modules behind one that names the extra may import its packages bare.
    """
    absent, named, wrong = set(sys.argv[1].split(",")), set(), []
    for module in walk_packages(headrace.__path__, "headrace.", onerror=lambda name: None):
        try:
            import_module(module.name)
        except MissingExtra as error:
            named.add(str(error).partition("[")[2].partition("]")[0])
        except Exception as error:  # noqa: BLE001 - whatever a user would see
            if (
                not isinstance(error, ModuleNotFoundError)
                or str(error.name).partition(".")[0] not in absent
            ):
                wrong.append(f"{module.name}: {type(error).__name__}: {error}")
    return {"named": sorted(named), "wrong": wrong}
