"""Laws of packed sequences from rows to shards: every sequence once, in one split, whatever the settings."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from recipe_cases import (
    all_sequences,
    bins_of,
    labels,
    packed,
    sequence_of,
    sequences_in,
    sources,
    token_rows,
    write_jsonl,
)

import headrace
from headrace.errors import InputError, SettingsError
from headrace.packing.near import read_bins_of
from headrace.run.events import Note, StageBegan
from raised import raised
from tables import digests

SPLITS = ("train", "valid", "test")
PINNED = (
    {
        "train": (50, "320:3faa903fd6031f45"),
        "valid": (7, "40:6987db553fef30ba"),
        "test": (6, "40:149bfcad25c12b7a"),
    },
    [[395, 121, 184, 175, 161, 336], [329, 71, 206, 251, 370], [327, 360, 132, 134, 375, 266]],
)


def rows_of(paths: list[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sources(tmp_path_factory.mktemp("source"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"algorithm": "first_fit_decreasing", "capacity": "runtime"},
        {"algorithm": "best_fit_shuffle", "max_sequences_per_bin": 3},
        {"algorithm": "concatenative", "num_shards": 5, "reader": "headrace"},
    ],
    ids=str,
)
def test_every_sequence_is_in_exactly_one_bin_of_one_split(
    tmp_path: Path, source: list[Path], asked: dict
) -> None:
    run = packed(source, tmp_path / "out", **asked)

    assert Counter(map(sequence_of, rows_of(source))) == all_sequences(tmp_path / "out")
    assert headrace.verify(tmp_path / "out").problems == []
    for split in SPLITS:
        for bin_ in bins_of(tmp_path / "out" / "splits" / split):
            cost = sum(len(ids) - (asked.get("capacity") == "runtime") for ids, _ in bin_)
            assert 0 < cost <= 512
            assert len(bin_) <= asked.get("max_sequences_per_bin", 10**9)
    assert run.manifest.metadata["packed"]["tokens"] == sum(
        len(row["input_ids"]) for row in rows_of(source)
    )


@pytest.mark.slow
def test_splits_have_exactly_their_share_of_rows(tmp_path: Path, source: list[Path]) -> None:
    packed(source, tmp_path / "out")

    total = len(rows_of(source))
    shares = {split: len(sequences_in(tmp_path / "out", split)) for split in SPLITS}
    assert {"train": total - 2 * (total // 10), "valid": total // 10, "test": total // 10} == shares


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["parquet", "legacy_npy_pickle"])
def test_any_number_of_workers_makes_the_same_bytes(
    tmp_path: Path, source: list[Path], storage: str
) -> None:
    made = [
        digests(
            packed(
                source,
                tmp_path / str(workers),
                workers=workers,
                num_shards=7,
                packed_storage=storage,
            ).run
        )
        for workers in (1, 2, 8)
    ]

    assert made[0] == made[1] == made[2]
    assert sum(name.startswith("datasets/") for name in made[0]) >= 8


@pytest.mark.slow
def test_rows_get_the_same_split_however_many_tasks_read_them(
    tmp_path: Path, source: list[Path]
) -> None:
    packed(source, tmp_path / "one", num_shards=1)
    packed(source, tmp_path / "many", num_shards=8)

    for split in SPLITS:
        one, many = (Counter(sequences_in(tmp_path / name, split)) for name in ("one", "many"))
        assert one == many


@pytest.mark.slow
def test_the_seed_decides_and_is_part_of_the_identity(tmp_path: Path, source: list[Path]) -> None:
    first, second = (packed(source, tmp_path / str(seed), seed=seed) for seed in (1, 2))

    assert first.manifest.run_id != second.manifest.run_id
    assert set(sequences_in(tmp_path / "1", "test")) != set(sequences_in(tmp_path / "2", "test"))


@pytest.mark.slow
def test_what_cannot_change_a_byte_is_not_in_the_identity(
    tmp_path: Path, source: list[Path]
) -> None:
    first = packed(source, tmp_path / "out", max_bad_share=0.5)
    again = packed(source, tmp_path / "out", max_bad_share=0.1)

    assert ("computed", "reused") == (first.how, again.how)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["truncate", "drop", "split"])
@pytest.mark.parametrize("capacity", ["stored", "runtime"])
def test_over_long_rows_are_accounted_for_to_the_token_and_label(
    tmp_path: Path, source: list[Path], policy: str, capacity: str
) -> None:
    run = packed(source, tmp_path / "out", pack_size=128, too_long=policy, capacity=capacity)

    longest = 128 + (capacity == "runtime")
    whole = [sequence_of(row) for row in rows_of(source)]
    expected: list[Any] = []
    for ids, mask in whole:
        if len(ids) <= longest:
            expected.append((ids, mask))
        elif policy == "truncate":
            expected.append((ids[:longest], (*mask[: longest - 1], 0)))
        elif policy == "split":
            parts = [
                (ids[at : at + longest], mask[at : at + longest])
                for at in range(0, len(ids), longest)
            ]
            expected += [(one, (*other[:-1], 0)) for one, other in parts if len(one) > 1]
    expected = [each for each in expected if policy != "truncate" or labels(each)]
    if policy == "split":  # pieces without a label may be alone in a bin, which is then dropped
        assert all_sequences(tmp_path / "out") <= Counter(expected)
    else:
        assert Counter(expected) == all_sequences(tmp_path / "out")
    metadata = run.manifest.metadata
    kept = list(all_sequences(tmp_path / "out").elements())
    lost = {
        name: sum(loss[name] for loss in metadata["lost"].values()) for name in ("tokens", "labels")
    }
    assert sum(len(ids) for ids, _ in whole) == sum(len(ids) for ids, _ in kept) + lost["tokens"]
    assert sum(map(labels, whole)) == sum(map(labels, kept)) + lost["labels"]
    assert headrace.verify(tmp_path / "out").problems == []


def test_an_over_long_row_is_an_error_that_names_it_unless_a_policy_is_chosen(
    tmp_path: Path,
) -> None:
    rows = [{"input_ids": [1] * 20}, {"input_ids": [2] * 600}]
    path = write_jsonl(tmp_path / "in.jsonl", rows)

    with raised(InputError, path="in/in.jsonl", row="line 2", remedy='too_long="truncate", "drop"'):
        packed(path, tmp_path / "out")


@pytest.mark.slow
def test_weights_are_shares_of_tokens(tmp_path: Path) -> None:
    datasets = [
        {
            "name": name,
            "path": write_jsonl(tmp_path / f"{name}.jsonl", token_rows(400, seed)),
            "weight": weight,
        }
        for name, seed, weight in (("a", 1, 1.0), ("b", 2, 0.22), ("c", 3, 0.0))
    ]
    run = packed({"datasets": datasets}, tmp_path / "out")

    (train,) = [group for group in run.manifest.metadata["groups"] if group["split"] == "train"]
    tokens = {name: own["tokens"] for name, own in train["sources"].items()}
    assert {"a", "b"} == set(tokens)
    assert abs(tokens["b"] / tokens["a"] - 0.22) < 150 / tokens["a"]
    assert run.manifest.dropped["weight"] > 200
    assert headrace.verify(tmp_path / "out").problems == []


@pytest.mark.slow
def test_no_conversation_key_is_in_two_splits_whichever_datasets_it_is_in(tmp_path: Path) -> None:
    rows = token_rows(600, 5, keys=60)
    datasets = [
        {"name": name, "path": write_jsonl(tmp_path / f"{name}.jsonl", rows[place::2])}
        for place, name in enumerate(("even", "odd"))
    ]
    packed({"datasets": datasets}, tmp_path / "out", entity="task")

    key_of = {tuple(row["input_ids"]): row["task"] for row in rows}
    keys = {
        split: {key_of[ids] for ids, _ in sequences_in(tmp_path / "out", split)} for split in SPLITS
    }
    assert [48, 6, 6] == [len(keys[split]) for split in SPLITS]
    assert not keys["train"] & keys["valid"]
    assert not keys["train"] & keys["test"]
    assert not keys["valid"] & keys["test"]


def test_a_blend_per_split_leaves_keys_of_test_out_of_train_and_counts_them(tmp_path: Path) -> None:
    rows = token_rows(300, 6, keys=100)
    train = write_jsonl(tmp_path / "train.jsonl", rows[:200])
    test = write_jsonl(tmp_path / "test.jsonl", rows[200:])
    blend = {"train": [{"name": "all", "path": train}], "test": [{"name": "all", "path": test}]}

    run = packed(blend, tmp_path / "out", entity="task")

    held = {row["task"] for row in rows[200:]}
    kept = [row for row in rows[:200] if row["task"] not in held]
    assert Counter(map(sequence_of, kept)) == Counter(sequences_in(tmp_path / "out", "train"))
    assert Counter(map(sequence_of, rows[200:])) == Counter(sequences_in(tmp_path / "out", "test"))
    assert 200 - len(kept) == run.manifest.dropped["key_in_test"]
    assert ["test", "train"] == sorted(run.manifest.splits)


def test_test_keeps_its_keys_before_valid_and_valid_before_train(tmp_path: Path) -> None:
    parts = {
        name: [{"input_ids": [place, 7, number], "task": task} for number, task in enumerate(tasks)]
        for place, (name, tasks) in enumerate(
            {"train": "abcd", "valid": "bcx", "test": "cdy"}.items(), 1
        )
    }
    blend = {
        name: [{"name": "d", "path": write_jsonl(tmp_path / f"{name}.jsonl", rows)}]
        for name, rows in parts.items()
    }

    run = packed(blend, tmp_path / "out", entity="task")

    kept = {name: "".join(sorted(parts[name][ids[2]]["task"] for ids, _ in sequences_in(tmp_path / "out", name))) for name in SPLITS}  # fmt: skip
    assert {"train": "a", "valid": "bx", "test": "cdy"} == kept
    assert (3, 1) == (run.manifest.dropped["key_in_test"], run.manifest.dropped["key_in_valid"])
    assert headrace.verify(tmp_path / "out").problems == []


def test_rows_without_a_key_are_rejected_and_listed(tmp_path: Path) -> None:
    rows = [*token_rows(300, 1), {"input_ids": [1, 2, 3]}]
    path = write_jsonl(tmp_path / "in.jsonl", rows)

    run = packed(path, tmp_path / "out", entity="task")

    (listed,) = [
        json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    ]
    assert ("no_split_key", 301, "in/in.jsonl") == (
        listed["reason"],
        listed["line"],
        listed["file"],
    )
    assert 1 == run.manifest.dropped["no_split_key"]


def test_bad_rows_are_counted_by_reason_with_file_and_line(tmp_path: Path) -> None:
    good = token_rows(100, 2)
    bad = [
        "{no json",
        json.dumps({"nothing": 1}),
        json.dumps({"input_ids": []}),
        json.dumps({"input_ids": [1, -4]}),
    ]
    path = write_jsonl(tmp_path / "in.jsonl", [*good[:50], *bad, *good[50:]])

    run = packed(path, tmp_path / "out", max_bad_share=0.04)

    listed = [json.loads(line) for line in (run.run / "rejected.jsonl").read_text().splitlines()]
    assert {51, 52, 53, 54} == {each["line"] for each in listed}
    reasons = Counter(each["reason"] for each in listed)
    assert reasons == Counter(
        {name: count for name, count in run.manifest.dropped.items() if count}
    )
    assert Counter(map(sequence_of, good)) == all_sequences(tmp_path / "out")
    assert 104 == run.manifest.source["rows"]


def test_too_many_bad_rows_fail_the_run_with_counts_and_places(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [*token_rows(50), "{no json", "{nor this"])

    with raised(InputError, setting="max_bad_share", value=0.01) as caught:
        packed(path, tmp_path / "out")

    assert "broken_json 2, first in/in.jsonl: line 51" in str(caught.value)
    assert not (tmp_path / "out" / "splits").exists()


@pytest.mark.parametrize(
    ("row", "cure"),
    [
        (
            {"inquiry": "a", "reply": "b"},
            "say which column is which with mapping, e.g. user=",
        ),
        ({"input_ids": [1, -4]}, "correct them, or allow a larger share"),
    ],
)
def test_rows_of_another_kind_throughout_are_told_what_setting_helps(
    row: Any, cure: str, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [row] * 50)

    with raised(InputError, setting="max_bad_share", remedy=cure):
        packed(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"max_bad_share": 1}, r"bad_tokens 50, first in/in\.jsonl: line 1: ids are -4"),
        (
            {"blend_filters": {"kind": ["good"]}},
            r"filtered 50, first in/in\.jsonl: line 1: kind is 'bad'",
        ),
    ],
)
def test_a_run_without_any_sequence_says_why(
    asked: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"input_ids": [1, -4], "kind": "bad"}] * 50)
    filters = asked.pop("blend_filters", {})
    blend = {"name": "in", "path": str(path), "filters": filters}

    with pytest.raises(InputError, match=f"no row of 50 gives a sequence to pack: {reason}"):
        packed(blend, tmp_path / "out", **asked)


def test_too_few_rows_for_the_splits_are_an_error_not_a_silent_train(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", token_rows(2))

    with raised(InputError, remedy="set the ratio of a split to 0"):
        packed(path, tmp_path / "out")


def test_small_data_states_how_many_rows_each_split_has(tmp_path: Path) -> None:
    events: list[Any] = []
    path = write_jsonl(tmp_path / "in.jsonl", token_rows(5))

    packed(path, tmp_path / "out", on_event=events.append)

    notes = [event.text for event in events if isinstance(event, Note)]
    assert "in: train 3, valid 1, test 1 rows" in notes


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 6])
def test_a_sample_takes_exactly_so_many_rows_of_each_dataset(
    tmp_path: Path, source: list[Path], shards: int
) -> None:
    run = packed(source, tmp_path / "out", sample=100, num_shards=shards)

    assert 100 == sum(all_sequences(tmp_path / "out").values())
    assert len(rows_of(source)) - 100 == run.manifest.dropped["sampled_out"]
    assert headrace.verify(tmp_path / "out").problems == []


@pytest.mark.slow
def test_a_sample_does_not_depend_on_the_number_of_tasks(
    tmp_path: Path, source: list[Path]
) -> None:
    for shards in (1, 6):
        packed(source, tmp_path / str(shards), sample=50, num_shards=shards)

    assert all_sequences(tmp_path / "1") == all_sequences(tmp_path / "6")


@pytest.mark.slow
def test_every_padded_sequence_has_the_multiple_and_trains_nothing_more(
    tmp_path: Path, source: list[Path]
) -> None:
    run = packed(source, tmp_path / "out", pad_multiple=16, pad_id=0, capacity="runtime")

    expected = Counter(map(sequence_of, rows_of(source)))
    found: Counter[Any] = Counter()
    for (ids, mask), count in all_sequences(tmp_path / "out").items():
        assert len(ids) % 16 == 1
        size = len(ids)
        while ids[size - 1] == 0:
            size -= 1
        assert not any(mask[size:])
        found[ids[:size], mask[:size]] += count
    assert expected == found
    assert headrace.verify(tmp_path / "out").problems == []
    assert (
        run.manifest.metadata["packed"]["stored_tokens"] > run.manifest.metadata["packed"]["tokens"]
    )


def test_padding_that_the_reader_cannot_use_is_refused(source: list[Path]) -> None:
    with raised(SettingsError, setting="pad_multiple"):
        headrace.PackedSequences(blend=source, pad_multiple=16)


@pytest.mark.parametrize("choice", ["drop", "keep"])
def test_bins_without_a_label_are_dropped_and_counted_or_kept(tmp_path: Path, choice: str) -> None:
    useful = token_rows(40, 3, longest=40)
    useless = [{"input_ids": [7] * 512, "loss_mask": [0] * 512} for _ in range(20)]
    path = write_jsonl(tmp_path / "in.jsonl", [*useful, *useless])

    run = packed(path, tmp_path / "out", empty_bins=choice, nothing_trained="keep")

    whole = Counter(map(sequence_of, useful))
    if choice == "keep":
        whole += Counter(map(sequence_of, useless))
    assert whole == all_sequences(tmp_path / "out")
    assert (20 if choice == "drop" else 0) == run.manifest.dropped["bin_without_label"]
    assert headrace.verify(tmp_path / "out").problems == []


@pytest.mark.parametrize(("reader", "rows"), [("megatron", 32), ("headrace", 1000)])
def test_row_groups_are_as_the_reader_likes_them(
    tmp_path: Path, source: list[Path], reader: str, rows: int
) -> None:
    run = packed(source, tmp_path / "out", reader=reader)

    (path,) = (tmp_path / "out" / "splits" / "train").iterdir()
    metadata = pq.read_metadata(path)
    assert min(rows, run.manifest.splits["train"].rows) == metadata.row_group(0).num_rows
    assert b"shift_left" == metadata.metadata[b"headrace.loss_mask_alignment"]


def test_the_legacy_mask_is_rolled_right_and_says_so(tmp_path: Path) -> None:
    rows = [
        {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
        {"input_ids": [4, 5, 6], "loss_mask": [0, 0, 1]},
    ]
    path = write_jsonl(tmp_path / "in.jsonl", rows)
    everything = {"train_ratio": 1, "val_ratio": 0, "test_ratio": 0}

    packed(
        path,
        tmp_path / "out",
        loss_mask_alignment="legacy_roll_right",
        algorithm="concatenative",
        **everything,
    )

    (shard,) = (tmp_path / "out" / "splits" / "train").iterdir()
    assert [[0, 0, 1, 1, 0, 0]] == pq.read_table(shard)["loss_mask"].to_pylist()
    assert b"legacy_roll_right" == pq.read_metadata(shard).metadata[b"headrace.loss_mask_alignment"]
    assert headrace.verify(tmp_path / "out").problems == []


@pytest.mark.slow
@pytest.mark.parametrize("capacity", ["stored", "runtime"])
def test_legacy_pickles_hold_the_same_bins(
    tmp_path: Path, source: list[Path], capacity: str
) -> None:
    packed(source, tmp_path / "new", capacity=capacity)
    old = packed(source, tmp_path / "old", packed_storage="legacy_npy_pickle", capacity=capacity)

    for split in SPLITS:
        bins = [
            [
                tuple(rows.bin(place)[0].tolist())
                for rows in read_bins_of(path, kind)
                for place in range(len(rows))
            ]
            for out, kind in (("new", "parquet"), ("old", "legacy_npy_pickle"))
            for path in sorted((tmp_path / out / "splits" / split).iterdir())
        ]
        assert bins[0] == bins[1]
    assert headrace.verify(tmp_path / "old").problems == []
    assert old.manifest.splits["train"].bytes > 0
    with pytest.raises(InputError, match="are for other readers"):
        next(iter(headrace.open(tmp_path / "old").stream("train", batch_size=2)))


def test_rows_that_are_no_tokens_need_a_tokenizer(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "in.jsonl", [{"messages": [{"role": "user", "content": "hello"}]}]
    )

    with raised(SettingsError, setting="tokenizer", remedy="give a tokenizer.json"):
        packed(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("asked", "setting"),
    [
        ({"train_ratio": 0.9, "val_ratio": 0.2, "test_ratio": 0.1}, "train_ratio"),
        ({"blend": {"datasets": [{"name": "a/b", "path": "x"}]}}, "name"),
        ({"blend": {"datasets": [{"name": "a", "path": "x", "weight": -1}]}}, "weight"),
        ({"blend": {"datasets": [{"name": "a", "path": "x", "weight": float("nan")}]}}, "weight"),
        ({"blend": {"datasets": [{"name": "a", "path": "x"}] * 2}}, "datasets"),
        ({"pack_size": 16, "pad_multiple": 17, "reader": "headrace"}, "pack_size"),
    ],
)
def test_settings_that_cannot_work_are_named(asked: dict, setting: str) -> None:
    with raised(SettingsError, setting=setting):
        headrace.PackedSequences(**({"blend": "x.jsonl"} | asked))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"blend": {"datasets": [], "train": []}}, "the blend has no dataset"),
        ({"pack_sise": 3}, "did you mean 'pack_size'"),
        ({"too_long": "chop"}, "too_long is 'chop'"),
    ],
)
def test_settings_that_cannot_work_say_what_to_do(asked: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        headrace.PackedSequences(**({"blend": "x.jsonl"} | asked))


def test_padding_without_a_token_to_pad_with_is_refused(tmp_path: Path, source: list[Path]) -> None:
    with raised(SettingsError, setting="pad_id", remedy="give a token to pad with"):
        packed(source, tmp_path / "out", pad_multiple=8, capacity="runtime")


def test_nothing_to_pack_is_an_error(tmp_path: Path) -> None:
    rows = [{"input_ids": [1, 2, 3 + number], "loss_mask": [0, 0, 0]} for number in range(5)]
    path = write_jsonl(tmp_path / "in.jsonl", rows)

    with pytest.raises(InputError, match="no bin was made of 5 rows: bin_without_label 5"):
        packed(path, tmp_path / "out", nothing_trained="keep")


@pytest.mark.parametrize("reader", ["megatron", "headrace"])
def test_the_stream_delivers_every_bin_once(
    tmp_path: Path, source: list[Path], reader: str
) -> None:
    run = packed(source, tmp_path / "out", num_shards=3, reader=reader)

    loader = headrace.open(tmp_path / "out").stream(
        "train",
        batch_size=4,
        shuffle=True,
        seed=0,
        batch_format="arrow",
        columns=["input_ids"],
        remainder="exact",
    )
    found = Counter(tuple(ids) for batch in loader for ids in batch["input_ids"].to_pylist())
    bins = bins_of(tmp_path / "out" / "splits" / "train")
    assert {reader == "megatron"} == {column["nullable"] for column in run.manifest.schema}
    assert headrace.verify(tmp_path / "out").problems == []
    assert Counter(tuple(token for ids, _ in each for token in ids) for each in bins) == found


def test_splits_bins_and_fingerprints_are_pinned(tmp_path: Path) -> None:
    """They may change only with the format version: whoever prepares the same data again must get the same bins."""
    path = write_jsonl(
        tmp_path / "in.jsonl", [{"input_ids": list(range(n, n + 2 + n % 37))} for n in range(400)]
    )

    run = packed(path, tmp_path / "out", pack_size=128)

    groups = {
        group["split"]: (group["bins"], group["print"]) for group in run.manifest.metadata["groups"]
    }
    bins = [[ids[0] for ids, _ in each] for each in bins_of(tmp_path / "out" / "splits" / "train")]
    assert PINNED == (groups, bins[:3])


def test_a_file_that_changes_while_it_is_read_ends_the_run(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", token_rows(50))

    def grow(event: Any) -> None:
        if isinstance(event, StageBegan) and event.stage == "tokenise":
            with path.open("a") as file:
                file.write(json.dumps({"input_ids": [1, 2, 3]}) + "\n")

    with raised(InputError, path=path, remedy="run again"):
        packed(path, tmp_path / "out", on_event=grow)
