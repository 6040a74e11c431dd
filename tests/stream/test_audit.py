"""An audit says what was delivered, of any loader, over all ranks, with one verdict."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from rank_processes import run_ranks
from stream_cases import Numbers, index_of, ranks
from torch_cases import audit_on_rank

import headrace
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from raised import raised


def report_of(batches, **settings):
    watched = headrace.audit(batches, **settings)
    for _ in watched:
        pass
    return watched.report()


def forms_of(keys):
    """The same keys in every form of a batch."""
    texts = [str(key) for key in keys]
    return [
        {"id": torch.tensor(keys)},
        {"id": np.array(keys, np.int32)},
        {"id": list(keys)},
        {"id": texts},
        {"id": np.array(texts, object)},
        {"id": np.array(keys, "datetime64[D]")},
        {"id": [float(key) for key in keys]},
        pa.table({"id": keys}),
        pa.table({"id": pa.array(texts).dictionary_encode()}),
        pa.RecordBatch.from_pydict({"id": texts}),
    ]


@pytest.mark.parametrize("form", range(10))
def test_duplicates_and_missing_keys_are_counted_in_every_form(form):
    batches = [forms_of(keys)[form] for keys in ([0, 1, 2], [2, 3], [5])]
    report = report_of(batches, expected=7)

    assert (6, 5, 1, 2) == (report.rows, report.distinct, report.duplicates, report.missing)
    assert (3,) == report.batches_per_rank
    assert not report.ok


def test_expected_keys_tell_missing_from_unexpected():
    report = report_of([{"id": [1, 2, 9]}], expected=[1, 2, 3, 4])

    assert (2, 1) == (report.missing, report.unexpected)
    assert report_of([{"id": ["a", "b"]}], expected=pa.array(["b", "a"])).ok


def test_duplicate_numbers_are_named():
    assert (7,) == report_of([{"id": [7, 8]}, {"id": [7]}]).examples


def test_tuples_have_a_place_for_the_key():
    assert report_of(
        [(np.zeros(2), torch.tensor([0, 1])), (np.zeros(1), torch.tensor([2]))], key=1, expected=3
    ).ok


def test_filling_rows_are_not_counted():
    report = report_of([{"id": [1, 2, 2], "valid": torch.tensor([True, True, False])}], expected=2)

    assert report.ok
    assert 2 == report.rows


def test_a_column_named_valid_that_is_no_mask_hides_nothing():
    assert 3 == report_of([{"id": [1, 2, 3], "valid": [0, 1, 0]}]).rows


def test_batches_pass_untouched_and_a_new_pass_counts_anew():
    batches = [{"id": [1]}, {"id": [2]}]
    watched = headrace.audit(batches, expected=2)

    assert [batches, batches] == [list(watched), list(watched)]
    assert watched.report().ok
    assert 2 == len(watched)


def test_our_own_streams_pass_on_every_rank_and_workers():
    rows = (13, 0, 40, 1, 22)
    options = StreamOptions(batch_size=4, shuffle=True, batch_format="numpy")
    batches = [
        batch
        for rank in ranks(3)
        for batch in StreamLoader(index_of(rows), Numbers(rows), options, topology=rank)
    ]

    assert report_of(batches, key="row", expected=list(range(76))).ok


@pytest.mark.parametrize(
    ("batch", "key", "fields"),
    [
        ({"x": [1]}, "id", {"column": "id", "path": "audit"}),
        (pa.table({"x": [1]}), "id", {"column": "id", "path": "audit"}),
        ({"id": [1, None]}, "id", {"column": "id", "path": "audit: batch 0"}),
        ({"id": np.array([1.0, np.nan])}, "id", {"column": "id", "path": "audit: batch 0"}),
        ({"id": np.zeros((2, 2))}, "id", {"column": "id", "path": "audit: batch 0"}),
        ({"id": [[1], [2]]}, "id", {"column": "id", "path": "audit: batch 0"}),
        ({"id": [1, "a"]}, "id", {"column": "id", "path": "audit: batch 0"}),
        ((1, 2), 5, {"setting": "key", "value": 5, "remedy": "the index of the key column"}),
        ((1, 2), "id", {"setting": "key", "value": "id", "remedy": "give dicts"}),
    ],
)
def test_what_is_no_key_is_refused(batch, key, fields):
    with raised(headrace.InputError, **fields):
        report_of([batch], key=key)


@pytest.mark.slow
def test_all_ranks_reach_the_same_verdict(tmp_path: Path):
    run_ranks(audit_on_rank, 3, 3, str(tmp_path), ["none", "twice", "steps"])
    verdicts = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(3)]

    assert verdicts[0] == verdicts[1] == verdicts[2]
    for fault, verdict in verdicts[0].items():
        assert (fault == "none") == verdict["ok"]
        assert (fault == "twice") == bool(verdict["duplicates"])
        assert (fault != "steps") == (len(set(verdict["batches"])) == 1)
