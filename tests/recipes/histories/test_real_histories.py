"""The traps of two real data sets, each with the outcome it must have.

RIPE Atlas pings labelled by W. Shao (MIT): 50 files, one probe each, ten of them with the day first. Seattle (Zhu et
al., MIT): 688 matrices of 99 × 99 latencies, where all pairs of a slice tie in time and zeros are no measurements.
"""

import csv
import gzip
import io
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pings import SPLITS, blobs_of, decoded, rounded_ms, shards_of

import headrace
from headrace.histories.codec.rows import decode_rows
from headrace.histories.codec.values import decode_latencies
from headrace.histories.config import Histories
from headrace.run.prepare import Prepared, prepare
from raised import raised

DATA = Path(__file__).parents[3].parent / "shared" / "data"
RIPE = DATA / "job3-ripe-rtt-labelled" / "real_trace_labelled"
SEATTLE = DATA / "job3-seattle-latency" / "Seattle.tar.gz"
FORMS = ("%Y-%m-%d %H:%M:%S", "%d/%m/%Y %H:%M")
DAY_FIRST = [
    "11119",
    "11134",
    "11145",
    "11148",
    "11323",
    "12125",
    "14206",
    "16933",
    "22309",
    "22568",
]

needs_ripe = pytest.mark.skipif(
    not RIPE.is_dir(), reason=f"{RIPE} is not there: the data set is not in the repository"
)
needs_seattle = pytest.mark.skipif(
    not SEATTLE.is_file(), reason=f"{SEATTLE} is not there: the data set is not in the repository"
)

Truth = dict[str, list[tuple[int, float]]]


def ripe_rows() -> dict[str, list[list[str]]]:
    """Probe → the rows of its file as text: time, milliseconds, change point."""
    return {
        path.name.removesuffix(".csv.gz"): list(
            csv.reader(io.StringIO(gzip.decompress(path.read_bytes()).decode()), delimiter=";")
        )[1:]
        for path in sorted(RIPE.glob("*.csv.gz"))
    }


def ripe_truth() -> Truth:
    """Probe → (epoch seconds, ms), as Python reads them."""
    truth: Truth = {}
    for probe, rows in ripe_rows().items():
        if probe in DAY_FIRST:
            times = [datetime.strptime(epoch, FORMS[1]) for epoch, _, _ in rows]
        else:
            times = [datetime.fromisoformat(epoch) for epoch, _, _ in rows]
        seconds = [int(time.replace(tzinfo=UTC).timestamp()) for time in times]
        truth[probe] = list(zip(seconds, (float(rtt) for _, rtt, _ in rows), strict=True))
    return truth


def ripe_histories(out: Path, **settings: object) -> Prepared:
    """The raw files, which are separated by semicolons, to histories."""
    asked = {
        "entity_from": "file_name",
        "entity_kind": "number",
        "time": "epoch",
        "dialect": {"time_format": FORMS},
    }
    return prepare(Histories(source=RIPE, **{**asked, **settings}), out, workers=2)


@pytest.mark.slow
@needs_ripe
def test_ripe_histories_hold_every_ping_in_time_order(tmp_path: Path) -> None:
    prepared = ripe_histories(tmp_path / "out")
    truth = ripe_truth()

    found: dict[str, list[tuple[int, int]]] = {}
    for path in sorted((prepared.run / "histories").rglob("part-*")):
        for blob in blobs_of(path):
            (row,) = decode_rows([blob], [str(path)])
            probe = str(int.from_bytes(row.entity_bytes[:4].tobytes(), "big"))
            found[probe] = list(
                zip(
                    (row.first_time + row.offsets.astype(np.int64)).tolist(),
                    decode_latencies(row.codes).tolist(),
                    strict=True,
                )
            )
    assert set(truth) == set(found)
    for probe, measurements in truth.items():
        expected = sorted(
            (time, -1 if (ms := rounded_ms(rtt)) is None else round(ms * 1000))
            for time, rtt in measurements
        )
        assert [time for time, _ in expected] == [time for time, _ in found[probe]]
        assert expected == sorted(found[probe])

    metadata = prepared.manifest.metadata
    assert {"train": 374_082, "test": 34_005} == metadata["source_rows"]
    assert metadata["backwards"] == 4
    assert metadata["failed"] == sum(rtt < 0 for series in truth.values() for _, rtt in series)
    assert (
        sum(len(path.read_bytes()) for path in (prepared.run / "histories").rglob("part-*"))
        < 408_087 * 9
    )
    assert headrace.verify(tmp_path / "out").problems == []


@pytest.mark.slow
@needs_ripe
def test_the_day_first_files_of_ripe_are_an_error_unless_their_form_is_declared(
    tmp_path: Path,
) -> None:
    with raised(headrace.InputError, row=1, column="epoch", value="14/10/2016 21:17"):
        ripe_histories(tmp_path / "out", dialect={"time_format": FORMS[0]})

    dropped = ripe_histories(tmp_path / "out", dialect={"time_format": FORMS[0]}, bad_rows="drop")
    rows = ripe_rows()
    assert sum(len(rows[name]) for name in DAY_FIRST) == dropped.manifest.dropped["unreadable_time"]
    assert dropped.manifest.metadata["first_dropped"]["unreadable_time"].startswith(
        "11119.csv.gz: row 1, column 'epoch'"
    )
    assert sum(dropped.manifest.metadata["entities"].values()) == 40


@pytest.mark.slow
@needs_ripe
def test_error_codes_of_ripe_may_be_refused_by_file_and_row(tmp_path: Path) -> None:
    row = next(
        number
        for rows in ripe_rows().values()
        for number, (_, rtt, _) in enumerate(rows, 1)
        if rtt.startswith("-")
    )

    with raised(headrace.InputError, row=row, column="rtt", remedy="give negative="):
        ripe_histories(tmp_path / "out", negative="error")


@needs_ripe
def test_the_command_prepares_the_raw_files_of_ripe(tmp_path: Path) -> None:
    probes = ("11119", "11297", "13746")  # the first has the day first
    source = [RIPE / f"{probe}.csv.gz" for probe in probes]
    forms = ["--dialect", ",".join(f"time_format={form}" for form in FORMS)]
    asked = [
        "--entity-from",
        "file_name",
        "--entity-kind",
        "number",
        "--time",
        "epoch",
        *forms,
        "--json",
    ]
    code = "from headrace.cli import main; main()"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "histories",
            *map(str, source),
            "--out",
            str(tmp_path / "out"),
            *asked,
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    rows = ripe_rows()
    metadata = headrace.open(tmp_path / "out").manifest.metadata
    assert sum(len(rows[probe]) for probe in probes) == sum(metadata["source_rows"].values())
    assert headrace.verify(tmp_path / "out").problems == []


@pytest.fixture(scope="module")
def seattle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """40 slices as shards in the order of their names, which is not the order of time; and the array [slice, i, j]."""
    directory = tmp_path_factory.mktemp("seattle")
    slices = {}
    with tarfile.open(SEATTLE) as archive:
        for member in archive:
            name = Path(member.name).name
            if (
                not name.startswith("SeattleData_")
                or (number := int(name.split("_")[1].split(".")[0])) > 40
            ):
                continue
            file = archive.extractfile(member)
            assert file is not None
            slices[number] = np.loadtxt(io.BytesIO(file.read()))
    matrices = np.stack([slices[number] for number in sorted(slices)])
    for number, matrix in zip(sorted(slices), matrices, strict=True):
        i, j = np.indices(matrix.shape)
        table = pa.table(
            {
                "from": i.ravel(),
                "to": j.ravel(),
                "slice": np.full(i.size, number),
                "s": matrix.ravel(),
            }
        )
        pq.write_table(table, directory / f"SeattleData_{number}.parquet")
    return directory, matrices


@pytest.mark.slow
@needs_seattle
def test_seattle_ties_and_zeros(seattle: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    source, matrices = seattle
    asked = {
        "source": source,
        "entity": "from",
        "peer": "to",
        "time": "slice",
        "value": "s",
        "entity_kind": "number",
        "peer_kind": "number",
        "dialect": {"time_format": "epoch_s"},
        "value_unit": "s",
        "zero": "drop",
        "max_row_bytes": 8 << 10,
    }
    prepared = prepare(Histories(**asked, partitions=2), tmp_path / "out", workers=2)
    merged = prepare(
        Histories(**asked, partitions=2, memory_limit=8 << 20), tmp_path / "merged", workers=2
    )

    assert shards_of(prepared) == shards_of(merged)
    assert int((matrices == 0).sum()) == prepared.manifest.dropped["zero_value"]
    found = decoded(prepared)
    both = [each for split in SPLITS for each in found[split]]
    assert int((matrices != 0).sum()) == len(both)
    times = sorted({each.event_time for each in both})
    for each in both[::97]:
        value = matrices[times.index(each.event_time), int(each.src_addr), int(each.dst_addr or -1)]
        assert each.rtt == pytest.approx(value * 1000, rel=0.00049)
    one = [each for each in both if each.src_addr == "5"]
    assert [(each.event_time, int(each.dst_addr or -1)) for each in one] == sorted(
        (each.event_time, int(each.dst_addr or -1)) for each in one
    )
    assert one[-1].part > 0
    assert headrace.verify(tmp_path / "out").problems == []
