"""Batches as Megatron-Bridge's own class for packed bins makes them, written as JSON. Runs in a process of its own.

The package's `__init__` asks for Transformer Engine, which needs a GPU, so it is left out: the modules of the reader are
imported as they are, from where they are installed. The released package reads .npy files; bins in Parquet are given
to the same class row by row, as its newer reader does.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

PACKAGES = ("bridge", "bridge.data", "bridge.data.datasets", "bridge.training", "bridge.training.tokenizers", "bridge.utils")  # fmt: skip


def installed() -> Path | None:
    """Where Megatron-Bridge and Megatron-Core are, if both are."""
    found = importlib.util.find_spec("megatron")
    places = (
        [] if found is None else [Path(each) for each in found.submodule_search_locations or ()]
    )
    (place,) = [
        each for each in places if (each / "bridge").is_dir() and (each / "core").is_dir()
    ] or [None]
    return place


def packed_dataset() -> Any:
    """The class, without the package around it."""
    for name in PACKAGES:
        module = types.ModuleType(f"megatron.{name}")
        module.__path__ = [str(installed().joinpath(*name.split(".")))]
        sys.modules[module.__name__] = module
    tokenizers = types.ModuleType("megatron.bridge.training.tokenizers.tokenizer")
    tokenizers.MegatronTokenizer = object  # names a type only
    sys.modules[tokenizers.__name__] = tokenizers
    from megatron.bridge.data.datasets.sft import GPTSFTPackedDataset

    class OfParquet(GPTSFTPackedDataset):
        def _load_dataset(self) -> None:
            import pyarrow.parquet as pq

            files = [
                pq.ParquetFile(each) for each in sorted(Path(self.file_path).glob("*.parquet"))
            ]
            groups = [
                file.read_row_group(number)
                for file in files
                for number in range(file.num_row_groups)
            ]
            self.indexed_dataset = [row for group in groups for row in group.to_pylist()]

    return lambda path, **options: (GPTSFTPackedDataset if path.endswith(".npy") else OfParquet)(
        path, **options
    )


def batches_of(dataset: Any, rows: int) -> list[dict[str, Any]]:
    """All batches, in the order of the file, as lists."""
    made = [
        dataset.collate_fn(
            [dataset[number] for number in range(first, min(first + rows, len(dataset)))]
        )
        for first in range(0, len(dataset), rows)
    ]
    return [
        {name: each.tolist() if hasattr(each, "tolist") else each for name, each in batch.items()}
        for batch in made
    ]


def main() -> None:
    """Read a list of cases from the input; write for each its batches, or its error."""
    make, told = packed_dataset(), []
    for case in json.load(sys.stdin):
        tokenizer = types.SimpleNamespace(
            eos_id=case["eos_id"], eod=case["eos_id"], space_sensitive=True
        )
        options = {
            "prompt_template": "{input} {output}",
            "label_key": "output",
            "truncation_field": "input",
        }
        try:
            dataset = make(case["path"], tokenizer=tokenizer, **options, **case["options"])
            told.append(batches_of(dataset, case.get("rows", 1)))
        except AssertionError as error:
            told.append(f"AssertionError: {error}")
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
