"""Legacy pickles: what was written comes back, and a file from anywhere is read without running what it names."""

import builtins
import contextlib
import io
import os
import pickle
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed_cases import as_lists, made_rows, table_lists
from recipe_cases import all_sequences, labels, packed, token_rows, write_jsonl

from headrace import PackedBatches
from headrace import open as open_dataset
from headrace.bins.rows import ALIGNMENT_KEY
from headrace.errors import InputError
from headrace.packing.storage.legacy import (
    LegacyPickleWriter,
    convert_legacy_to_parquet,
    read_legacy,
)
from raised import raised


def write(path, rows):
    with LegacyPickleWriter(path) as writer:
        writer.write_bins(rows)
    return path


def save(path, records):
    """What the specification's writer does."""
    with open(path, "wb") as file:
        np.save(file, records, allow_pickle=True)
    return path


def read(path):
    return [each for rows in read_legacy(path) for each in as_lists(rows)]


def test_numpy_reads_what_was_written(tmp_path):
    rows = made_rows(7)
    loaded = np.load(write(tmp_path / "s.npy", rows), allow_pickle=True)

    assert as_lists(rows) == [
        (each["input_ids"], each["loss_mask"], each["seq_start_id"]) for each in loaded
    ]
    assert [tmp_path / "s.npy"] == list(tmp_path.iterdir())


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_what_was_written_is_read(tmp_path, at_once):
    rows = made_rows(7)
    parts = []
    for part in read_legacy(write(tmp_path / "s.npy", rows), bins_at_once=at_once):
        parts += as_lists(part)

    assert as_lists(rows) == parts


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_bins_of_one_length_are_bins_and_no_matrix(tmp_path, count):
    rows = [{"input_ids": [1, 2], "loss_mask": [0, 1], "seq_start_id": [0]}] * count
    save(tmp_path / "s.npy", rows)

    assert [([1, 2], [0, 1], [0])] * count == (read(tmp_path / "s.npy") if count else [])


RECORD = ([5, 6, 7], [0, 1, 1], [0, 2])


@pytest.mark.parametrize(
    "form",
    [list, tuple, np.array, lambda v: np.array(v, ">i4"), lambda v: np.array(v, np.uint16), lambda v: [np.int64(x) for x in v]],
    ids=["list", "tuple", "array", "big-endian", "uint16", "numpy numbers"],
)  # fmt: skip
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_values_may_be_lists_arrays_or_numpy_numbers(tmp_path, form, protocol):
    record = dict(zip(("input_ids", "loss_mask", "seq_start_id"), map(form, RECORD), strict=True))
    path = npy(tmp_path, pickle.dumps(as_objects([record]), protocol=protocol))

    assert [RECORD] == read(path)


def test_masks_may_be_bools(tmp_path):
    save(
        tmp_path / "s.npy", [{"input_ids": [1, 2], "loss_mask": [False, True], "seq_start_id": [0]}]
    )

    assert [([1, 2], [0, 1], [0])] == read(tmp_path / "s.npy")


def test_the_writer_ends_once(tmp_path):
    writer = LegacyPickleWriter(tmp_path / "s.npy")
    assert {"format": "legacy_pickle", "num_bins": 0} == writer.finalize()

    with pytest.raises(RuntimeError, match="bin 4 comes after the end"):
        writer.write_bin(4, *made_rows().bin(0))
    with pytest.raises(RuntimeError, match="finalized before"):
        writer.finalize()


def test_an_error_writes_nothing(tmp_path):
    with pytest.raises(KeyError), LegacyPickleWriter(tmp_path / "s.npy") as writer:
        writer.write_bins(made_rows())
        raise KeyError

    assert list(tmp_path.iterdir()) == []


# What is not run


def as_objects(records):
    array = np.empty(len(records), object)
    array[:] = records
    return array


def npy(directory, pickled, header="{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"):
    """A .npy file with this pickle in it."""
    text = header.encode() + b"\n"
    path = directory / "s.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + pickled)
    return path


class Calling:
    """Pickles as a call."""

    def __init__(self, function, *arguments, state=None):
        self.call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.call


def hostile(marker):
    command = f"touch {marker}"
    return {
        "os.system": Calling(os.system, command),
        "builtins.eval": Calling(builtins.eval, f"open({str(marker)!r}, 'w')"),
        "builtins.exec": Calling(builtins.exec, f"open({str(marker)!r}, 'w')"),
        "builtins.getattr": Calling(getattr, "text", "upper"),
        "builtins.__import__": Calling(builtins.__import__, "os"),
        "subprocess.Popen": Calling(
            subprocess.Popen, command, -1, None, None, None, None, None, True, True
        ),
        "io.open": Calling(io.open, str(marker), "w"),
        "pathlib.PosixPath": Calling(Path, str(marker)),
        "numpy.load": Calling(np.load, str(marker)),
        "numpy.memmap": Calling(np.memmap, str(marker), "u1", "w+", 0, (9,)),
        "numpy.fromfile": Calling(np.fromfile, str(marker)),
    }


@pytest.mark.parametrize("name", sorted(hostile("x")))
@pytest.mark.parametrize("place", ["whole", "record", "value", "key"])
def test_a_pickle_that_names_anything_else_is_refused_and_not_run(tmp_path, name, place):
    marker = tmp_path / "ran"
    bad = hostile(marker)[name]
    sound = {"input_ids": [1], "loss_mask": [1], "seq_start_id": [0]}
    content = {
        "whole": bad,
        "record": [bad],
        "value": [{**sound, "input_ids": bad}],
        "key": [{bad: 1, **sound}],
    }[place]
    path = npy(tmp_path, pickle.dumps(content))
    with raised(InputError, path=path, remedy="ask where it comes from"):
        read(path)

    assert not marker.exists()


@pytest.mark.parametrize(
    "code",
    [
        b"cos\nsystem\n(S'touch ran'\ntR.",
        b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.tos\x93.",  # dotted names
        b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93\x8c\x04name\x85\x81.",  # an object of a stand-in
        b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93}\x8c\x01xK\x01sb.",  # fill a stand-in
        b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93N}\x8c\x05_makeK\x01s\x86b.",
        b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93\x8c\x02O8\x85R\x8c\x05numpy\x8c\x07ndarray\x93b.",
        b"\x80\x02\x82\x01.",  # extension code
        b"Pid\n.",  # persistent id
        b"\x80\x04\x8c\x08builtins\x8c\x04list\x93)R.",
        b"\x80\x02]}N"
        + b"\x85" * 3000
        + b"K\x01sa.",  # a bin whose key is nested too deep to be shown
    ],
)
def test_no_opcode_leads_out(tmp_path, code):
    with pytest.raises(InputError, match=r"s\.npy"):
        read(npy(tmp_path, code))


@pytest.mark.parametrize(
    "state", [None, 3, (1, 2), (1, (1,), "i8", False, b""), (1, ("a",), np.dtype("i8"), False, b"")]
)
def test_an_array_of_a_strange_state_is_an_input_error(tmp_path, state):
    make = np.zeros(1).__reduce__()[:2]
    bad = {
        "input_ids": Calling(*make[:1], *make[1], state=state),
        "loss_mask": [1],
        "seq_start_id": [0],
    }
    with raised(InputError, path=tmp_path / "s.npy", remedy="one dictionary a bin"):
        read(npy(tmp_path, pickle.dumps([bad])))


def test_other_arrays_are_not_made_by_numpy(tmp_path):
    class Odd(np.ndarray):
        pass

    globals()["Odd"] = Odd
    Odd.__qualname__ = "Odd"
    with raised(InputError, path=tmp_path / "s.npy", remedy="ask where it comes from"):
        read(npy(tmp_path, pickle.dumps([np.zeros(3).view(Odd)])))


@given(st.data())
def test_a_damaged_file_is_an_input_error_or_reads(tmp_path, data):
    path = write(tmp_path / "s.npy", made_rows(2, longest=4))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    with contextlib.suppress(InputError), warnings.catch_warnings(action="ignore"):
        assert all(isinstance(each[0], list) for each in read(path))


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"input_ids": [1], "loss_mask": [1]}, "bin 1: it has no seq_start_id, only input_ids, loss_mask"),
        ([1, 2], "bin 1: it is list, not a dictionary"),
        ({"input_ids": [1, 2], "loss_mask": [1], "seq_start_id": [0]}, "bin 1: it has 2 input_ids and 1 loss_mask values"),
        ({"input_ids": [1, 2], "loss_mask": [1, 1], "seq_start_id": [0, 2]}, "bin 1: seq_start_id is .* in a row of 2 tokens"),
        ({"input_ids": [], "loss_mask": [], "seq_start_id": []}, r"bin 1: seq_start_id is \[\] in a row of 0 tokens"),
        ({"input_ids": [1.5], "loss_mask": [1], "seq_start_id": [0]}, "bin 1: input_ids are float64; give integers"),
        ({"input_ids": [2**40], "loss_mask": [1], "seq_start_id": [0]}, "bin 1: input_ids: 1099511627776 does not fit"),
        ({"input_ids": [2**80], "loss_mask": [1], "seq_start_id": [0]}, "bin 1: input_ids are object"),
        ({"input_ids": [[1]], "loss_mask": [1], "seq_start_id": [0]}, r"bin 1: input_ids have shape \(1, 1\)"),
        ({"input_ids": [[1], 2], "loss_mask": [1], "seq_start_id": [0]}, "bin 1: input_ids are not a flat list"),
        ({"input_ids": [3, -1], "loss_mask": [1, 1], "seq_start_id": [0]}, "bin 1: input_ids: -1 is not a token"),
        ({"input_ids": [True], "loss_mask": [1], "seq_start_id": [0]}, "bin 1: input_ids are bool; give integers"),
        ({"input_ids": [1, 2], "loss_mask": [1, 2], "seq_start_id": [0]}, "bin 1: loss_mask: 2 is neither 0 nor 1"),
        ({"input_ids": [1], "loss_mask": [-1], "seq_start_id": [0]}, "bin 1: loss_mask: -1 does not fit"),
        ({"input_ids": [1], "loss_mask": [0.5], "seq_start_id": [0]}, "bin 1: loss_mask are float64; give integers"),
        ({"input_ids": [float("nan")], "loss_mask": [1], "seq_start_id": [0]}, "bin 1: input_ids are float64"),
        ({"input_ids": [1, 2], "loss_mask": [1, 1], "seq_start_id": []}, "bin 1: seq_start_id is .* in a row of 2 tokens"),
        ({"input_ids": [1, 2], "loss_mask": [1, 1], "seq_start_id": [-1]}, "bin 1: seq_start_id is .* in a row of 2 tokens"),
        ({"input_ids": [1, 2], "loss_mask": [1, 1, 1], "seq_start_id": [0]}, "bin 1: it has 2 input_ids and 3 loss_mask"),
        ({"input_ids": None, "loss_mask": [1], "seq_start_id": [0]}, "bin 1: input_ids are NoneType"),
        ({"input_ids": "abc", "loss_mask": [1], "seq_start_id": [0]}, "bin 1: input_ids are str"),
        ({"input_ids": np.zeros((1, 1), int), "loss_mask": [1], "seq_start_id": [0]}, "packed data has one axis"),
        ({"input_ids": np.array(["a"]), "loss_mask": [1], "seq_start_id": [0]}, "an array of type 'U1'"),
    ],
)  # fmt: skip
def test_a_bad_bin_is_refused_by_number(tmp_path, record, says):
    sound = {"input_ids": [1], "loss_mask": [1], "seq_start_id": [0]}
    save(tmp_path / "s.npy", as_objects([sound, record, sound]))
    with pytest.raises(InputError, match=says):
        convert_legacy_to_parquet(
            tmp_path / "s.npy", tmp_path / "out" / "s.parquet", row_group_size=1
        )

    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a .npy file"),
        (b"PAR1", "is not a .npy file"),
        (b"\x93NUMPY\x07\x00", "is not a .npy file"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "is not a .npy file"),
    ],
)
def test_what_is_no_npy_is_said_to_be_none(tmp_path, content, says):
    (tmp_path / "s.npy").write_bytes(content)

    with pytest.raises(InputError, match=says):
        read(tmp_path / "s.npy")


def test_arrays_without_objects_are_no_bins(tmp_path):
    np.save(tmp_path / "s.npy", np.arange(3))

    with pytest.raises(InputError, match=r"is an array of int64 with shape \(3,\)"):
        read(tmp_path / "s.npy")


def test_a_missing_file_is_told(tmp_path):
    with raised(InputError, path=tmp_path / "s.npy", remedy="check the path"):
        read(tmp_path / "s.npy")


# Converting


def test_converted_bins_are_the_same_bins_and_smaller(tmp_path):
    rows = made_rows(60, longest=400)
    write(tmp_path / "s.npy", rows)
    result = convert_legacy_to_parquet(
        tmp_path / "s.npy", tmp_path / "s.parquet", row_group_size=25
    )
    file = pq.ParquetFile(tmp_path / "s.parquet")

    assert as_lists(rows) == table_lists(file.read())
    assert (60, 3, (tmp_path / "s.npy").stat().st_size) == (
        result["num_bins"], file.num_row_groups, result["source_bytes"],
    )  # fmt: skip
    assert result["bytes"] < result["source_bytes"]


def test_bins_converted_without_an_alignment_are_not_streamed_as_lists_silently(tmp_path):
    rows = made_rows(9)
    write(tmp_path / "s.npy", rows)
    convert_legacy_to_parquet(
        tmp_path / "s.npy", tmp_path / "s.parquet", metadata={ALIGNMENT_KEY: "unknown"}
    )
    dataset = open_dataset(tmp_path / "s.parquet")

    with pytest.warns(UserWarning, match="loss masks have no known alignment"):
        dataset.stream(batch_size=2, batch_format="numpy")
    settings = PackedBatches(loss_mask_alignment="shift_left")
    batch = next(
        iter(dataset.stream(batch_size=2, batch_format="numpy", packed=settings, shuffle=False))
    )
    assert batch["input_ids"].size == sum(rows.sizes[:2])


@pytest.mark.parametrize("alignment", ["shift_left", "legacy_roll_right"])
def test_a_legacy_file_is_a_source_of_packing(tmp_path, alignment):
    """Bins written by the recipe and read as its source hold the same sequences with the same labels."""
    settings = {"num_shards": 1, "train_ratio": 1.0, "val_ratio": 0.0, "test_ratio": 0.0}
    source = write_jsonl(tmp_path / "in.jsonl", token_rows(40, longest=60))
    old = packed(
        source,
        tmp_path / "old",
        packed_storage="legacy_npy_pickle",
        loss_mask_alignment=alignment,
        **settings,
    )
    (bins,) = (old.run / "datasets").rglob("*.npy")
    blend = {"name": "old", "path": str(bins), "alignment": alignment}
    packed(blend, tmp_path / "new", nothing_trained="keep", empty_bins="keep", **settings)
    packed(source, tmp_path / "direct", nothing_trained="keep", empty_bins="keep", **settings)

    new, direct = all_sequences(tmp_path / "new"), all_sequences(tmp_path / "direct")
    if alignment == "shift_left":
        assert direct == new
    else:  # the value of the last token of each bin is lost
        assert sorted(ids for ids, _ in direct) == sorted(ids for ids, _ in new)
        assert (
            sum(map(labels, direct)) - len(read(bins))
            <= sum(map(labels, new))
            <= sum(map(labels, direct))
        )


def test_a_legacy_file_without_an_alignment_is_refused(tmp_path):
    write(tmp_path / "s.npy", made_rows(3))
    with raised(InputError, setting="alignment", remedy='alignment="legacy_roll_right"'):
        packed(tmp_path / "s.npy", tmp_path / "out")


@pytest.mark.parametrize(
    "content", [as_objects([]), np.empty((1, 0), object), np.empty((0, 3), object)]
)
def test_a_file_without_bins_is_an_error(tmp_path, content):
    save(tmp_path / "s.npy", content)
    with raised(InputError, path=tmp_path / "s.npy", remedy="one dictionary a bin"):
        convert_legacy_to_parquet(tmp_path / "s.npy", tmp_path / "s.parquet")
    assert ["s.npy"] == os.listdir(tmp_path)


def test_a_header_that_counts_other_bins_is_an_error(tmp_path):
    """The header of a file that was cut and pickled again, say."""
    sound = {"input_ids": [1], "loss_mask": [1], "seq_start_id": [0]}
    save(tmp_path / "s.npy", as_objects([sound, sound, sound]))
    content = (tmp_path / "s.npy").read_bytes()
    assert 1 == content.count(b"(3,)")
    (tmp_path / "s.npy").write_bytes(content.replace(b"(3,)", b"(4,)"))

    with pytest.raises(InputError, match="counts 4 bins, the pickle holds 3"):
        read(tmp_path / "s.npy")
