"""Blends by tokens: weights and borders that become rows beforehand, and how far realised tokens lie from them."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pure_order import lay
from stream_cases import index_of, ranks

import headrace
from headrace.errors import SettingsError
from headrace.stream.loader.blend import join_indexes
from headrace.stream.order.layout import begin_mixture, schedule_of
from headrace.stream.order.mixture import Mixture, SourceTokens
from laws import examples
from raised import raised

NAMES = "abcd"


def index_by_tokens(lengths, **mixture):
    """A blend of sources whose rows have these lengths, each in blocks of at most 50 rows."""
    parts = []
    for of_source in lengths:
        blocks = [len(of_source[first : first + 50]) for first in range(0, len(of_source), 50)]
        parts.append(index_of(blocks))
    names = NAMES[: len(lengths)]
    joined = join_indexes(parts, Mixture.build(names, **mixture))
    return replace(joined, tokens=tuple(SourceTokens.of(np.array(each)) for each in lengths))


def schedule_by_tokens(index, epoch_rows):
    state = begin_mixture(index, samples_per_epoch=epoch_rows, global_batch=1)
    return schedule_of(index, state, epoch_rows=epoch_rows), state


sources = st.lists(st.lists(st.integers(1, 90), min_size=5, max_size=60), min_size=2, max_size=4)


@settings(max_examples=examples(100), deadline=None)
@given(sources, st.data(), st.integers(50, 400))
def test_expected_tokens_are_in_proportion_at_every_prefix(lengths, data, epoch_rows):
    weight = st.sampled_from([0.2, 1.0, 3.7])
    weights = data.draw(st.lists(weight, min_size=len(lengths), max_size=len(lengths)))
    index = index_by_tokens(lengths, weights=weights, unit="tokens")
    schedule, _ = schedule_by_tokens(index, epoch_rows)
    means = np.array([np.mean(each) for each in lengths])
    shares = np.array(weights) / sum(weights)
    rows_per_token = (shares / means).sum()
    for rows in range(1, 2 * epoch_rows, 17):
        drawn = schedule.drawn_before(rows)
        assert np.abs(drawn - rows * shares / means / rows_per_token).max() < 7


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(2, 100),
    st.integers(100, 20_000),
    st.sampled_from([0.1, 1, 100]),
    st.integers(0, 1 << 30),
)
def test_no_source_is_five_bins_off_its_tokens_at_any_prefix_of_a_stage(number, bins, spread, seed):
    draw = np.random.default_rng(seed)
    weights = draw.dirichlet(np.full(number, spread), 2) + 1e-6
    shares = weights / weights.sum(axis=1)[:, None]
    begin = bins // 3
    mixture = Mixture.build(
        [f"s{source}" for source in range(number)],
        schedule=[(0, weights[0].tolist()), (f"{2048 * begin} tokens", weights[1].tolist())],
        unit="tokens",
    )
    sizes = draw.integers(1, 40, number).tolist()
    joined = join_indexes([index_of([size]) for size in sizes], mixture)
    tokens = tuple(SourceTokens.of(np.full(size, 2048)) for size in sizes)
    schedule, state = schedule_by_tokens(replace(joined, tokens=tokens), bins)
    most = 0.0
    for stage, (first, end) in enumerate([(0, begin), (begin, bins)]):
        source = np.empty(end - first, np.int64)
        for segment in schedule.segments(first, end):
            low, high = max(first, segment.begin), min(end, segment.end)
            positions = np.arange(low, high) - segment.begin
            source[low - first : high - first] = segment.interleave.sources(positions)
        for of_source in range(number):
            drawn = np.cumsum(source == of_source)
            asked = shares[stage, of_source] * np.arange(1, end - first + 1)
            most = max(most, float(np.abs(drawn - asked).max()))

    assert state.stages == (0, begin)
    assert most < 5


@settings(max_examples=examples(100), deadline=None)
@given(sources, st.data(), st.integers(50, 400))
def test_a_stage_begins_where_so_many_tokens_are_expected_before_it(lengths, data, epoch_rows):
    number = len(lengths)
    weights = st.lists(st.sampled_from([0, 0.5, 1, 3]), min_size=number, max_size=number)
    first, second = (data.draw(weights.filter(any)) for _ in range(2))
    tokens = data.draw(st.integers(1, 20_000))
    limits = data.draw(st.dictionaries(st.just("a"), st.sampled_from([1, 2])))
    limits = limits if sum(map(bool, first)) > 1 else {}
    index = index_by_tokens(
        lengths,
        schedule=[(0, first), (f"{tokens} tokens", second)],
        unit=data.draw(st.sampled_from(["rows", "tokens"])),
        limits=limits,
    )
    schedule, state = schedule_by_tokens(index, epoch_rows)
    begin = state.stages[1]
    means = [Fraction(sum(each), len(each)) for each in lengths]

    def expected(row):
        return sum(
            mean * drawn
            for mean, drawn in zip(means, schedule.drawn_before(row).tolist(), strict=True)
        )

    assert abs(expected(begin) - tokens) < 7 * max(means)


@pytest.mark.parametrize("rows", [37, 150, 400, 777])
def test_realised_tokens_deviate_as_much_as_the_plan_says(rows):
    """Over 60 seeds; whole own epochs have exactly their tokens."""
    draw = np.random.default_rng(5)
    lengths = [draw.lognormal(4, 1, size).astype(int) + 1 for size in (400, 150)]
    index = index_by_tokens(lengths, weights=[1, 1], unit="tokens")
    tokens = np.concatenate(lengths)
    errors = []
    for seed in range(60):
        order = lay(
            index, samples_per_epoch=rows, seed=seed, lanes=1, groups=1, window_rows=999, epoch=0,
            shuffle=True,
        )  # fmt: skip
        blocks, inside = order.locate(order.line_of(np.arange(rows)))
        row = index.first_row[blocks] + inside
        drawn = np.bincount(row >= 400, minlength=2)
        realised = np.bincount(row >= 400, tokens[row], minlength=2)
        for source in range(2):
            share = index.tokens[source].expected_in(0, int(drawn[source]))
            if drawn[source] % len(lengths[source]) == 0:
                assert share.expected == realised[source]
                assert share.deviation == 0
            else:
                errors.append((realised[source] - share.expected) / share.deviation)
    assert 0.75 < np.sqrt(np.mean(np.square(errors))) < 1.25


def test_a_deviation_is_none_for_whole_own_epochs_and_rows_of_one_length():
    mixed = SourceTokens.of(np.array([1, 2, 3, 10]))
    assert 0 == mixed.expected_in(0, 4).deviation == mixed.expected_in(4, 12).deviation
    assert 0 < mixed.expected_in(0, 6).deviation < mixed.deviation * 6**0.5
    assert mixed.expected_in(1, 3).expected == 8
    assert 0 == SourceTokens.of(np.full(9, 7)).expected_in(0, 5).deviation


def write_tokens(root, name, lengths, first):
    """Rows first, first + 1, … of these lengths, in shards and row groups."""
    (root / name).mkdir()
    ids = [[first + row] * length for row, length in enumerate(lengths)]
    table = pa.table(
        {
            "input_ids": pa.array(ids, pa.list_(pa.int32())),
            "row": np.arange(first, first + len(lengths)),
            "tokens": np.array(lengths, np.int64),
        }
    )
    for shard, start in enumerate(range(0, len(lengths), 60)):
        pq.write_table(table.slice(start, 60), root / name / f"{shard}.parquet", row_group_size=20)
    return headrace.open(root / name, cache_dir=root / "cache")


LENGTHS = {
    "web": np.random.default_rng(0).integers(3, 60, 240),
    "code": np.random.default_rng(1).integers(30, 200, 90),
    "even": np.full(100, 40),
    "pairs": np.full(130, 10),
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokens")
    return {
        name: write_tokens(root, name, lengths, 1000 * number)
        for number, (name, lengths) in enumerate(LENGTHS.items())
    }


def streams_of(datasets, names, world_size, *, blend=None, **options):
    parts = {name: datasets[name] for name in names}
    mixture = headrace.blend(
        parts, **{"weights": dict.fromkeys(names, 1), "unit": "tokens", **(blend or {})}
    )
    given = {
        "batch_size": 24 // world_size,
        "shuffle": True,
        "seed": 2,
        "batch_format": "numpy",
        **options,
    }
    return [mixture.stream(topology=topology, **given) for topology in ranks(world_size)]


def rows_of_steps(streams, most=None):
    """The rows of each global batch, position by position."""
    steps = []
    passes = [iter(stream) for stream in streams]
    while most is None or len(steps) < most:
        batches = [next(each, None) for each in passes]
        if batches[0] is None:
            break
        rows = np.stack([np.where(each["valid"], each["row"], -1) for each in batches], axis=1)
        steps.append([row for row in rows.ravel().tolist() if row >= 0])
    return steps


@pytest.mark.parametrize("names", [("web", "code"), ("even", "pairs"), ("web", "code", "pairs")])
def test_batches_by_tokens_are_the_same_on_any_ranks_and_a_resume_goes_on(datasets, names):
    stages = [(0, "uniform"), ("2k tokens", dict.fromkeys(names[:2], 1)), ("70%", "sqrt")]
    blend = {"weights": None, "schedule": stages}
    whole = rows_of_steps(streams_of(datasets, names, 1, blend=blend, remainder="pad"))
    for before, after, stop in ((2, 3, 3), (4, 1, 7), (1, 6, 1)):
        streams = streams_of(datasets, names, before, blend=blend)
        head = rows_of_steps(streams, stop)
        states = [json.dumps(stream.state_dict()) for stream in streams]
        later = streams_of(datasets, names, after, blend=blend)
        for stream in later:
            stream.load_state_dict(json.loads(states[0]))

        assert 1 == len(set(states))
        assert whole == head + rows_of_steps(later)


def tokens_by_source(datasets, stream):
    names = stream.blend_sources
    tokens = dict.fromkeys(names, 0)
    for batch in stream:
        real = batch["valid"]
        for source, count in zip(batch["blend_source"][real], batch["tokens"][real], strict=True):
            tokens[names[source]] += int(count)
    return tokens


def test_rows_of_one_length_have_exactly_the_tokens_that_were_asked(datasets):
    (stream,) = streams_of(
        datasets, ("even", "pairs"), 1, blend={"weights": {"even": 3, "pairs": 1}},
        samples_per_epoch=700,
    )  # fmt: skip
    # 3 tokens of rows of 40 to 1 token of rows of 10
    assert {"even": 300 * 40, "pairs": 400 * 10} == tokens_by_source(datasets, stream)
    assert [0, 0] == [share.deviation for share in stream.plan().tokens.values()]
    assert [12_000, 4_000] == [share.expected for share in stream.plan().tokens.values()]


def test_tokens_lie_within_the_deviation_that_the_plan_and_the_log_print(datasets, caplog):
    caplog.set_level("INFO", logger="headrace")
    (stream,) = streams_of(datasets, ("web", "code"), 1, samples_per_epoch=200)
    realised = tokens_by_source(datasets, stream)
    expected = stream.plan().tokens

    for name, share in expected.items():
        assert abs(realised[name] - share.expected) < 4 * share.deviation
        assert f"{name} {share.expected:,} ± " in caplog.text
        assert f"expected tokens of {name}" in stream.plan()._repr_html_()
    shares = [share.expected for share in expected.values()]
    assert abs(shares[0] - shares[1]) < 200  # a row of code


@pytest.mark.parametrize(
    "options",
    [{"pack": headrace.PackRows(capacity=64, too_long="truncate", lengths="tokens")}, {"batch_tokens": 400, "batch_size": 400, "lists": "padded"}],
)  # fmt: skip
def test_packed_and_padded_rows_count_the_tokens_that_they_deliver(datasets, options):
    (stream,) = streams_of(datasets, ("web", "code"), 1, **options)
    most = 64 if "pack" in options else 1000
    for name, tokens in zip(("web", "code"), stream.index.tokens, strict=True):
        assert np.minimum(LENGTHS[name], most).sum() == tokens.total
    for _batch in stream:
        pass
    realised = stream.stats().tokens_by_source
    for name, share in stream.plan().tokens.items():
        assert abs(realised[name] - share.expected) <= 4 * share.deviation


def test_a_state_keeps_the_rows_that_tokens_became(datasets):
    blend = {"weights": None, "schedule": [(0, [1, 1]), ("6k tokens", [1, 3])]}
    (stream,) = streams_of(datasets, ("web", "code"), 1, blend=blend)
    (mixture,) = stream.state_dict()["mixture"]["mixtures"]
    means = [Fraction(int(LENGTHS[name].sum()), len(LENGTHS[name])) for name in ("web", "code")]

    assert [str(1 / mean) for mean in means] == mixture["weights"][0]
    assert abs(mixture["stages"][1] - 3000 / means[0] - 3000 / means[1]) < 3
    assert mixture["blend"].endswith("; in tokens")
    (other,) = streams_of(datasets, ("web", "code"), 1, blend={**blend, "unit": "rows"})
    with raised(headrace.errors.StreamError, setting="blend"):
        other.load_state_dict(stream.state_dict())


def test_what_cannot_be_counted_is_refused_with_a_way_out(datasets, tmp_path):
    web = datasets["web"]
    bare = {"a": web, "b": datasets["code"]}
    with raised(SettingsError, setting="unit", remedy="group_by_length="):
        renamed = tmp_path / "renamed.parquet"
        pq.write_table(pa.table({"ids": [[1, 2], [3]]}), renamed)
        rows = headrace.open(renamed, cache_dir=tmp_path)
        headrace.blend([rows, rows], weights=[1, 1], unit="tokens").stream(batch_size=1)
    with raised(SettingsError, setting="weights", remedy="leave it out"):
        empty = tmp_path / "empty.parquet"
        pq.write_table(pa.table({"input_ids": pa.array([[], []], pa.list_(pa.int32()))}), empty)
        rows = headrace.open(empty, cache_dir=tmp_path)
        headrace.blend([web, rows], weights=[1, 1], unit="tokens").stream(
            batch_size=1, columns=["input_ids"]
        )
    with raised(SettingsError, setting="unit", value="bytes"):
        headrace.blend(bare, weights={"a": 1, "b": 1}, unit="bytes")
    with raised(SettingsError, setting="schedule", remedy="let it begin earlier"):
        headrace.blend(
            bare, schedule=[(0, [1, 1]), ("1B tokens", [1, 1])], limits={"a": 1, "b": 1}
        ).stream(batch_size=1)


def test_a_changed_blend_that_begins_a_stage_at_a_token_is_refused(datasets):
    streams = streams_of(datasets, ("web", "code"), 1)
    rows_of_steps(streams, 2)
    stages = {"weights": None, "schedule": [(0, [1, 1]), ("9k tokens", [1, 3])]}
    (other,) = streams_of(datasets, ("web", "code"), 1, blend=stages)
    with raised(SettingsError, setting="schedule", value="9,000 tokens", remedy="in rows"):
        other.load_state_dict(streams[0].state_dict(), changed="weights")
    (other,) = streams_of(datasets, ("web", "code"), 1, blend={"weights": {"web": 1, "code": 5}})
    other.load_state_dict(streams[0].state_dict(), changed="weights")
    assert 24 == len(rows_of_steps([other], 1)[0])
