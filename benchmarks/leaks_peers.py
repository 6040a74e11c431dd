"""Other packages on the planted leaks of `leaks.py`, each as its own documentation uses it. Runs without headrace.

    python benchmarks/leaks_peers.py --way deepchecks --root CASES

MinHash of datasketch, rensa and datatrove looks at the texts, with the settings of `duplicates_peers.py`. cleanlab looks
for near duplicates among the numbers, evidently counts rows that are repeated, and deepchecks runs every check that
compares two splits or asks whether a column gives the label away. Each measure is a set of names of failed checks, or a
number of rows: a leak is seen if there are more of them than in the data before it was planted. The last line of the
output is JSON.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

NEAR, SHINGLE, BANDS, ROWS = 0.8, 3, 20, 6
LEAST = 10  # rows that two splits share
LEAST_OF_CLEAN = 10
Measure = Callable[[pd.DataFrame, pd.DataFrame, Mapping[str, Any]], Any]


def shingles_of(text: str) -> list[str]:
    """Three words in a row, as texts."""
    words = str(text).lower().split()
    return [" ".join(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))]


def texts_of(frame: pd.DataFrame) -> list[str]:
    """Those of a split."""
    return frame["text"].astype(str).tolist()


def by_datasketch(train: pd.DataFrame, test: pd.DataFrame, _asked: Mapping[str, Any]) -> int:
    """Rows of test with a near text in train."""
    from datasketch import MinHash, MinHashLSH

    def signed(text: str) -> Any:
        made = MinHash(num_perm=BANDS * ROWS)
        made.update_batch([each.encode() for each in shingles_of(text)])
        return made

    index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
    for number, text in enumerate(texts_of(train)):
        index.insert(number, signed(text))
    return sum(bool(index.query(signed(text))) for text in texts_of(test))


def by_rensa(train: pd.DataFrame, test: pd.DataFrame, _asked: Mapping[str, Any]) -> int:
    """Rows of test that its deduplicator leaves out after those of train."""
    from rensa import RMinHashDeduplicator

    index = RMinHashDeduplicator(
        threshold=NEAR, num_perm=BANDS * ROWS, use_lsh=True, num_bands=BANDS
    )
    texts = [*texts_of(train), *texts_of(test)]
    kept = index.add_pairs((str(number), shingles_of(text)) for number, text in enumerate(texts))
    return sum(not own for own in list(kept)[len(train) :])


def by_datatrove(train: pd.DataFrame, test: pd.DataFrame, _asked: Mapping[str, Any]) -> int:
    """Rows that its three steps leave out of both splits."""
    import datatrove.pipeline.dedup.minhash as minhash
    from datatrove.data import Document
    from datatrove.utils.hashing import HashConfig
    from datatrove.utils.logging import logger
    from datatrove.utils.text import TextNormConfig

    class ByBlanks:
        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

    logger.remove()
    minhash.load_word_tokenizer = lambda language: ByBlanks()
    config = minhash.MinhashConfig(
        n_grams=SHINGLE,
        num_buckets=BANDS,
        hashes_per_bucket=ROWS,
        norm_config=TextNormConfig(norm_numbers=False),  # the numbers of drawn words differ
        hash_config=HashConfig(hash_fc="sha1"),  # releases of xxhash refuse its texts
    )
    texts = [*texts_of(train), *texts_of(test)]
    with tempfile.TemporaryDirectory() as folder:
        signed, pairs, removed = (f"{folder}/{name}" for name in ("signed", "pairs", "removed"))
        documents = (Document(text=text, id=str(number)) for number, text in enumerate(texts))
        minhash.MinhashDedupSignature(signed, config).run(documents, 0, 1)
        for bucket in range(BANDS):
            minhash.MinhashDedupBuckets(signed, pairs, config=config).run(None, bucket, BANDS)
        minhash.MinhashDedupCluster(pairs, removed, config=config).run(None, 0, 1)
        held = Path(f"{removed}/000000.remove")
        return len(held.read_bytes()) // 4 if held.exists() else 0


def by_cleanlab(train: pd.DataFrame, test: pd.DataFrame, _asked: Mapping[str, Any]) -> int:
    """Rows of test in a set of near duplicates with one of train, by their numbers."""
    from cleanlab import Datalab

    both = pd.concat([train, test], ignore_index=True)
    numbers = both.drop(columns="label").select_dtypes("number")
    spread = numbers.std().replace(0, 1)
    if not len(numbers.columns):
        return 0
    features = ((numbers - numbers.mean()) / spread).fillna(0).to_numpy()
    lab = Datalab(data={"label": both["label"].tolist()}, label_name="label", verbosity=0)
    lab.find_issues(features=features, issue_types={"near_duplicate": {}})
    sets = lab.get_issues("near_duplicate")["near_duplicate_sets"].tolist()
    return sum(
        any(other < len(train) for other in sets[row]) for row in range(len(train), len(both))
    )


def by_evidently(train: pd.DataFrame, test: pd.DataFrame, _asked: Mapping[str, Any]) -> int:
    """Rows that are repeated in both splits together."""
    from evidently import Dataset, Report
    from evidently.metrics import DuplicatedRowCount

    both = pd.concat([train, test], ignore_index=True)
    run = Report([DuplicatedRowCount()]).run(Dataset.from_pandas(both), None)
    (metric,) = run.dict()["metrics"]
    value = metric["value"]
    return int(value["count"] if isinstance(value, dict) else value)


def by_deepchecks(train: pd.DataFrame, test: pd.DataFrame, asked: Mapping[str, Any]) -> list[str]:
    """Names of the checks that fail by their own conditions."""
    from deepchecks.tabular import Dataset, checks

    given = {"index_name": "who", "label": "label", "datetime_name": asked.get("time")}
    if given["datetime_name"] not in train.columns:
        given["datetime_name"] = None
    roles = {name for name in given.values() if name}
    texts = train.select_dtypes("object").columns
    categories = [name for name in texts if name not in roles]
    pair = [Dataset(frame, cat_features=categories, **given) for frame in (train, test)]
    failed = []
    of_two = (
        checks.TrainTestSamplesMix().add_condition_duplicates_ratio_less_or_equal(),
        checks.IndexTrainTestLeakage().add_condition_ratio_less_or_equal(),
        checks.StringMismatchComparison().add_condition_no_new_variants(),
        checks.FeatureLabelCorrelationChange().add_condition_feature_pps_in_train_less_than(),
        checks.DateTrainTestLeakageDuplicates().add_condition_leakage_ratio_less_or_equal(),
        checks.DateTrainTestLeakageOverlap().add_condition_leakage_ratio_less_or_equal(),
        checks.FeatureDrift().add_condition_drift_score_less_than(),
    )
    of_one = (
        checks.IdentifierLabelCorrelation().add_condition_pps_less_or_equal(),
        checks.FeatureLabelCorrelation().add_condition_feature_pps_less_than(),
    )
    runs = [(check, pair) for check in of_two] + [(check, pair[:1]) for check in of_one]
    for check, datasets in runs:
        try:
            result = check.run(*datasets)
        except Exception:  # noqa: BLE001 - a check that does not fit the data says nothing
            continue
        if any(not condition.is_pass() for condition in result.conditions_results):
            failed.append(type(check).__name__)
    return failed


WAYS: Mapping[str, tuple[Measure, tuple[str, ...] | None]] = {
    "datasketch": (by_datasketch, ("text",)),
    "rensa": (by_rensa, ("text",)),
    "datatrove": (by_datatrove, ("text",)),
    "cleanlab": (by_cleanlab, None),
    "evidently": (by_evidently, None),
    "deepchecks": (by_deepchecks, None),
}


def read(path: Path) -> pd.DataFrame:
    """Read rows; nested values, which no package here takes, as texts."""
    frame = pd.read_parquet(path)
    for name in frame:
        if frame[name].map(lambda value: isinstance(value, (dict, list, np.ndarray))).any():
            frame[name] = frame[name].map(str)
    return frame


def measured(way: str, root: Path) -> dict[str, Any]:
    """Measure every case and the data before it; equal columns are measured once."""
    measure, columns = WAYS[way]
    known: dict[str, Any] = {}

    def of(folder: Path, asked: Mapping[str, Any]) -> Any:
        frames = [read(folder / split / "a.parquet") for split in ("train", "test")]
        if columns is not None:
            if not set(columns) <= set(frames[0].columns):
                return 0
            frames = [frame[list(columns)] for frame in frames]
        key = json.dumps([frame.to_csv(index=False) for frame in frames])
        key += str(sorted(asked)) if columns is None else ""
        if key not in known:
            known[key] = measure(*frames, asked)
        return known[key]

    found: dict[str, Any] = {}
    for case in json.loads((root / "cases.json").read_text("utf-8")):
        folder = root / case["data"]
        before = of(folder / "clean", case["asked"])
        planted = of(folder / str(case["kind"]), case["asked"])
        if isinstance(planted, list):
            found[f"{case['data']}/{case['kind']}"] = [
                bool(set(planted) - set(before)),
                bool(before),
            ]
        else:
            more = planted >= before + LEAST
            found[f"{case['data']}/{case['kind']}"] = [more, before >= LEAST_OF_CLEAN]
    return found


def main() -> None:
    """Measure one package."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--way", choices=WAYS, required=True)
    made.add_argument("--root", type=Path, required=True)
    asked = made.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with Path(os.devnull).open("w", encoding="utf-8") as nothing, redirect_stdout(nothing):
        found = measured(asked.way, asked.root)
    print(json.dumps({**found, "version": importlib.metadata.version(asked.way)}))


if __name__ == "__main__":
    main()
