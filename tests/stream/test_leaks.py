"""What splits share is found by content, by names of entities, by columns and by benchmark items; nothing else is."""

import json
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_cases import made_rows

import headrace
from commands import headrace as command
from headrace.errors import InputError, SettingsError
from headrace.packing.storage.packed_parquet import ParquetShardWriter
from headrace.stream.audit.overlap import (
    Benchmark,
    RowTexts,
    find_benchmarks,
    find_overlaps,
    read_items,
    texts_in,
    texts_of,
)
from laws import examples
from raised import raised


def write(root, **splits):
    """Parquet shards of the rows of each split, 100 rows a shard, 30 a row group."""
    for name, table in splits.items():
        table = table if isinstance(table, pa.Table) else pa.Table.from_pylist(table)
        (root / name).mkdir(parents=True)
        for start in range(0, max(1, len(table)), 100):
            shard = root / name / f"part-{start // 100}.parquet"
            pq.write_table(table.slice(start, 100), shard, row_group_size=30)
    return headrace.open(root)


def reviews(numbers):
    return [
        {"id": f"user {n}", "text": f"review number {n} of a product", "stars": n % 5}
        for n in numbers
    ]


def test_rows_of_the_same_content_are_counted_and_placed(tmp_path):
    train, test = reviews(range(250)), reviews([*range(1000, 1190), 7, 120, 249])
    for row in test:
        row["id"] = f"other {row['id']}"
    report = headrace.find_leaks(write(tmp_path, train=train, test=test), content=["text", "stars"])

    (found,) = report.shared
    assert (found.earlier, found.split, found.rows) == ("train", "test", 3)
    assert found.fraction == pytest.approx(3 / 193) == report.worst
    assert found.examples == (
        ("train/part-0.parquet:7", "test/part-1.parquet:90"),
        ("train/part-1.parquet:20", "test/part-1.parquet:91"),
        ("train/part-2.parquet:49", "test/part-1.parquet:92"),
    )


def test_rows_that_differ_in_any_value_are_not_the_same(tmp_path):
    train = [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": 3, "b": "y"}]
    test = [{"a": 1, "b": "None"}, {"a": 2, "b": None}, {"a": 3, "b": "yy"}]
    report = headrace.find_leaks(write(tmp_path, train=train, test=test))

    assert [(each.rows, each.rounded) for each in report.shared] == [(0, 0)]
    assert report.worst == 0


def test_rows_whose_texts_differ_in_form_alone_are_counted_apart(tmp_path):
    train = [{"a": 1, "b": "Red"}, {"a": 2, "b": "green"}, {"a": 3, "b": "blue"}]
    test = [{"a": 1, "b": "red "}, {"a": 2, "b": "green"}, {"a": 4, "b": "BLUE"}]
    report = headrace.find_leaks(write(tmp_path, train=train, test=test), content=["a", "b"])

    assert [(each.rows, each.rounded) for each in report.shared] == [(1, 1)]


def test_rows_without_any_value_share_nothing(tmp_path):
    train = [
        {"a": None, "b": 1.5},
        {"a": "", "b": None},
        {"a": None, "b": float("nan")},
        {"a": "x", "b": None},
    ]
    test = [
        {"a": None, "b": None},
        {"a": "", "b": float("nan")},
        {"a": "x", "b": None},
        {"a": "", "b": None},
    ]
    report = headrace.find_leaks(write(tmp_path, train=train, test=test))

    assert report.blank == {"train": 2, "test": 3}
    assert report.repeated == {"train": 0, "test": 0}
    assert [each.rows for each in report.shared] == [1]
    assert report.shared[0].examples == (("train/part-0.parquet:3", "test/part-0.parquet:2"),)


def test_nested_values_are_compared(tmp_path):
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    other = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "ho"}]
    report = headrace.find_leaks(
        write(tmp_path, train=[{"messages": chat}], test=[{"messages": other}, {"messages": chat}])
    )

    assert report.shared[0].rows == 1
    assert report.shared[0].examples == (("train/part-0.parquet:0", "test/part-0.parquet:1"),)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=30), min_size=2, max_size=3))
def test_counts_are_those_of_sets(tmp_path_factory, splits):
    names = ("train", "val", "test")[: len(splits)]
    schema = pa.schema([("x", pa.int64())])
    tables = {name: pa.table({"x": rows}, schema) for name, rows in zip(names, splits, strict=True)}
    report = headrace.find_leaks(write(tmp_path_factory.mktemp("d"), **tables))

    rows = dict(zip(names, splits, strict=True))
    for each in report.shared:
        assert each.rows == sum(value in set(rows[each.earlier]) for value in rows[each.split])
    assert report.repeated == {
        name: len(values) - len(set(values)) for name, values in rows.items()
    }


def test_the_settings_of_a_run_say_what_is_no_content(tmp_path):
    lines = ["when,who,text"]
    lines += [
        f"20{20 + n % 6}-03-01,e{n},text {n // 2}" for n in range(400)
    ]  # each text under two entities
    (tmp_path / "raw.csv").write_text("\n".join(lines) + "\n")
    split = headrace.TemporalSplit(
        source=tmp_path / "raw.csv", time="when", entity="who", split_date="2025-01-01"
    )
    headrace.prepare(split, tmp_path / "out")
    report = headrace.find_leaks(headrace.open(tmp_path / "out"))

    assert report.content == ("text",)
    assert {(each.earlier, each.split) for each in report.shared} == {
        ("train", "val"),
        ("train", "test"),
        ("val", "test"),
    }
    assert report.worst > 0.1
    assert (
        headrace.verify(tmp_path / "out").problems == []
    )  # time and entity are apart all the same


def test_sequences_of_packed_rows_are_compared(tmp_path):
    rows = {name: made_rows(bins=20, seed=seed) for seed, name in enumerate(["train", "test"])}
    moved = rows["train"]
    for name, kept in rows.items():
        (tmp_path / name).mkdir()
        said = {"headrace.loss_mask_alignment": "shift_left"}
        with ParquetShardWriter(tmp_path / name / "a.parquet", 8, metadata=said) as writer:
            writer.write_bins(kept)
            if name == "test":
                ids, mask, starts = moved.bin(3)
                writer.write_bin(0, ids, mask, starts)
                # The second sequence of a train bin, alone in a bin of its own.
                ids, mask, starts = moved.bin(5)
                end = starts[2] if len(starts) > 2 else len(ids)
                writer.write_bin(
                    1, ids[starts[1] : end], mask[starts[1] : end], np.zeros(1, np.int64)
                )
    report = headrace.find_leaks(headrace.open(tmp_path))

    assert report.unit == "sequence"
    by_hand = {
        name: [
            tuple(part) for n in range(20) for part in np.split(kept.bin(n)[0], kept.bin(n)[2][1:])
        ]
        for name, kept in rows.items()
    }
    extra = len(moved.bin(3)[2]) + 1
    assert report.rows == {"train": len(by_hand["train"]), "test": len(by_hand["test"]) + extra}
    at_random = sum(each in set(by_hand["train"]) for each in by_hand["test"])
    assert report.shared[0].rows == at_random + extra
    with raised(InputError, setting="against", remedy="the chats that they were packed from"):
        headrace.find_leaks(headrace.open(tmp_path), against=["items.txt"])


def test_one_entity_under_several_names_is_found(tmp_path):
    train = [{"who": name, "x": n} for n, name in enumerate(["AB", "Zoë", "C D", "E", "f"])]
    test = [
        {"who": name, "x": 10 + n} for n, name in enumerate(["ab ", "Zoe\u0308", "c  d", "E", "g"])
    ]
    report = headrace.find_leaks(write(tmp_path, train=train, test=test), entity="who")

    assert (report.near_ids.entities, report.near_ids.separate) == (3, 3)
    assert {frozenset(each) for each in report.near_ids.examples} == {
        frozenset({"AB", "ab "}),
        frozenset({"C D", "c  d"}),
        frozenset({"Zoë", "Zoe\u0308"}),
    }


def test_a_column_that_gives_the_label_away_is_named(tmp_path):
    rng = np.random.default_rng(0)

    def rows(count):
        label = rng.integers(0, 2, count)
        return pa.table(
            {
                "label": label,
                "noise": rng.random(count),
                "hint": np.where(rng.random(count) < 0.8, label, 1 - label),
                "score": label + rng.normal(0, 0.1, count),
                "word": np.where(label, "yes", "no"),
            }
        )

    report = headrace.find_leaks(write(tmp_path, train=rows(3000), test=rows(1000)), label="label")

    assert {each.column for each in report.telling} == {"score", "word"}
    assert all(each.accuracy > 0.99 and 0.4 < each.most_frequent < 0.6 for each in report.telling)


@pytest.mark.parametrize(
    "asked",
    [{"content": ["nonsense"]}, {"entity": "nonsense"}, {"label": "nonsense"}, {"ngram": 2}],
)
def test_what_is_not_there_is_refused(tmp_path, asked):
    with pytest.raises(SettingsError, match=next(iter(asked))):
        headrace.find_leaks(
            write(tmp_path, train=reviews(range(3)), test=reviews(range(3))), **asked
        )


QUESTION = (
    "a farmer sells nine eggs at the market every day for two dollars each how much does he make"
)
SHORT = "what is the rarest colour"


def overlaps(rows, items, ngram=13):
    texts = [
        RowTexts(np.arange(len(each)), texts_of(pa.table({"t": each})).texts)
        for each in (rows, items)
    ]
    return list(
        find_overlaps({"items": Benchmark.of(texts[1], ngram)}, [("all", "a", 0, texts[0])])
    )


def test_items_are_found_verbatim_embedded_and_in_part():
    words = QUESTION.split()
    rows = [
        "nothing of it",
        QUESTION.upper().replace(" ", ",  "),
        f"Here is one: {QUESTION}? Let us see.",
        " ".join(words[:14]) + " per week",
        " ".join(words[:12]) + " per week",
        f"say, {SHORT} of all",
        "what is the rarest of colours",
    ]
    found = {
        (each.location, each.item): each.fraction for each in overlaps(rows, [QUESTION, SHORT])
    }

    runs = len(words) - 12
    assert found == {("a:1", 0): 1.0, ("a:2", 0): 1.0, ("a:3", 0): 2 / runs, ("a:5", 1): 1.0}


def test_scripts_without_blanks_are_found():
    item = "小明每天卖九个鸡蛋每个两美元他一共赚多少钱"
    found = overlaps([f"问题：{item}？", "小明每天卖鸡蛋"], [item])
    assert [(each.location, each.fraction) for each in found] == [("a:0", 1.0)]


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 10**6), ngram=st.integers(3, 8))
def test_overlaps_are_those_of_a_search_word_by_word(seed, ngram):
    rng = random.Random(seed)

    def text():
        return " ".join(rng.choice("abc") for _ in range(rng.randrange(25)))

    rows, items = ([text() for _ in range(6)] for _ in range(2))
    expected = set()
    for number, item in enumerate(items):
        words = item.split()
        n = min(len(words), ngram)
        wanted = (
            {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}
            if len(words) >= 5
            else set()
        )
        for row, other in enumerate(rows):
            held = other.split()
            if wanted & {tuple(held[i : i + n]) for i in range(len(held) - n + 1)}:
                expected.add((f"a:{row}", number))
    assert {(each.location, each.item) for each in overlaps(rows, items, ngram)} == expected


def test_texts_inside_lists_and_structs_are_looked_at():
    table = pa.Table.from_pylist(
        [
            {
                "m": [{"role": "user", "content": "one"}, {"role": None, "content": "two"}],
                "n": 1,
                "t": None,
            },
            {"m": [], "n": 2, "t": "three"},
            {"m": None, "n": 3, "t": "four"},
        ]
    )
    for found in (texts_of(table), texts_of(table.slice(0, 3))):
        pairs = sorted(zip(found.row.tolist(), found.texts.to_list(), strict=True))
        assert pairs == [(0, "one"), (0, "two"), (0, "user"), (1, "three"), (2, "four")]
    sliced = texts_of(table.slice(1))
    assert sorted(zip(sliced.row.tolist(), sliced.texts.to_list(), strict=True)) == [
        (0, "three"),
        (1, "four"),
    ]


def test_values_behind_a_null_are_not_looked_at():
    words, absent = pa.array(["a", "b", "behind", "c", "d"]), pa.array([False, True, False, False])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3, 4, 5]), words, mask=absent)
    fixed = pa.array([["a", "b"], None, ["c", "d"], ["e", None]], pa.list_(pa.string(), 2))
    structs = pa.StructArray.from_arrays([words[:4]], ["x"], mask=absent)
    for column in (lists, fixed, structs):
        for rows in (pa.table({"it": column}), pa.table({"it": column}).slice(1, 2)):
            expected = texts_in([row["it"] for row in rows.to_pylist()])
            found = texts_of(rows)

            pairs = [
                set(zip(each.row.tolist(), each.texts, strict=True)) for each in (expected, found)
            ]
            assert pairs[0] == pairs[1]


def test_benchmarks_are_read_from_rows_and_lines(tmp_path):
    (tmp_path / "items.txt").write_text(f"{QUESTION}\n\n{SHORT}\n")
    (tmp_path / "items.jsonl").write_text(
        "".join(json.dumps({"question": each, "n": 1}) + "\n" for each in (QUESTION, SHORT))
    )
    (tmp_path / "empty.txt").write_text("too short\n")

    assert read_items(tmp_path / "items.txt").texts.to_list() == [QUESTION, "", SHORT]
    assert read_items(tmp_path / "items.jsonl").texts.to_list() == [QUESTION, SHORT]
    with raised(InputError, path=tmp_path / "empty.txt", remedy="give a file of questions"):
        read_items(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 is what they call it here\n")
    with raised(InputError, path=tmp_path / "latin.txt", remedy="convert it to UTF-8"):
        read_items(tmp_path / "latin.txt")


def test_files_of_a_directory_are_benchmarks_by_name(tmp_path):
    for name in ("a.jsonl", "b/c.txt", "README.md", ".hidden.txt", "b/_more/d.txt"):
        (tmp_path / "evals" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "evals" / name).write_text("x\n")
    found = find_benchmarks([tmp_path / "evals", tmp_path / "evals" / "a.jsonl"])

    assert list(found.values()) == ["evals/a.jsonl", "evals/b/c.txt"]
    (tmp_path / "evals" / "manifest.json").write_text("{}")
    with raised(InputError, path=tmp_path / "evals", remedy="the directory of a split"):
        find_benchmarks([tmp_path / "evals"])


def test_a_planted_benchmark_is_found_in_the_rows_of_a_dataset(tmp_path):
    rows = reviews(range(250))
    rows[131]["text"] = f"I asked: {QUESTION}"
    (tmp_path / "items.txt").write_text(f"{QUESTION}\n{SHORT} in a bag of sweets\n")
    dataset = write(tmp_path / "d", train=rows, test=reviews(range(300, 320)))
    report = headrace.find_leaks(dataset, content=["text"], against=[tmp_path / "items.txt"])

    (found,) = report.overlaps
    assert (found.location, found.item, found.fraction) == ("train/part-1.parquet:31", 0, 1.0)
    assert found.text == " ".join(QUESTION.split()[:13])
    assert report.items == {str(tmp_path / "items.txt"): 2}
    assert report.worst == 0.5


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(["AB", "ab ", " Ab", "CD", "cd", "e"]), max_size=6),
        min_size=2,
        max_size=3,
    )
)
def test_names_of_one_entity_count_where_an_earlier_split_has_another(tmp_path_factory, splits):
    names = ("train", "val", "test")[: len(splits)]
    tables = {
        name: pa.table(
            {"id": pa.array(ids, pa.string()), "x": pa.array(range(len(ids)), pa.int64())}
        )
        for name, ids in zip(names, splits, strict=True)
    }
    if not any(splits):
        return
    report = headrace.find_leaks(
        write(tmp_path_factory.mktemp("d"), **tables), entity="id", content=["x"]
    )
    shares, apart = [0.0], set()
    for later, ids in enumerate(splits):
        earlier = {each for own in splits[:later] for each in own}
        hit = [
            each
            for each in set(ids)
            if any(each != old and each.strip().lower() == old.strip().lower() for old in earlier)
        ]
        apart |= {each.strip().lower() for each in hit}
        shares.append(len(hit) / max(1, len(set(ids))))

    assert (report.near_ids.fraction, report.near_ids.separate) == (max(shares), len(apart))
    assert report.worst >= report.near_ids.fraction


def test_the_command_says_what_it_found_and_exits_by_the_threshold(tmp_path):
    write(tmp_path, train=reviews(range(50)), test=reviews([*range(100, 149), 3]))
    asked = ("leaks", tmp_path, "--content", "text")

    done = command(*asked)
    assert done.returncode == 1
    assert (
        "2.00% of a split or benchmark was found elsewhere, but at most 0.10% is allowed"
        in done.stderr
    )
    assert "train/part-0.parquet:3 = test/part-0.parquet:49" in done.stdout
    assert command(*asked, "--max-share", "0.05").returncode == 0
    told = json.loads(command(*asked, "--max-share", "0.05", "--json").stdout)
    assert (told["ok"], told["worst"], told["shared"][0]["rows"]) == (True, 0.02, 1)


KINDS = {
    "int64": pa.array(range(40)),
    "decimal": pa.array([Decimal(n) / 4 for n in range(40)], pa.decimal128(9, 2)),
    "wide decimal": pa.array([Decimal(n) / 4 for n in range(40)], pa.decimal256(50, 2)),
    "date": pa.array(range(40), pa.date32()),
    "zoned": pa.array(range(40), pa.timestamp("us", "Europe/Berlin")),
    "float": pa.array([float("nan") if n % 5 == 0 else n / 2 for n in range(40)]),
    "codes": pa.array([str(n) for n in range(40)]).dictionary_encode(),
    "bytes": pa.array([b"%04d" % n for n in range(40)], pa.binary(4)),
}


@pytest.mark.parametrize("role", ["entity", "label", "content"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_any_type_of_value_plays_any_role(tmp_path, kind, role):
    rows = pa.table(
        {"it": KINDS[kind], "class": [n % 3 for n in range(40)], "when": ["2024-01-01"] * 40}
    )
    asked = {
        "entity": {"entity": "it", "time": "when"},
        "label": {"label": "it"},
        "content": {"label": "class"},
    }[role]
    report = headrace.find_leaks(write(tmp_path, train=rows, test=rows), content=["it"], **asked)

    [shared] = report.shared
    assert shared.rows == 40 - report.blank["test"]


@pytest.mark.parametrize("role", ["entity", "label"])
@pytest.mark.parametrize("value", [[1], {"a": 1}, b"\xff"])
def test_a_column_that_is_no_key_is_named(tmp_path, value, role):
    rows = pa.table({"it": [value] * 9, "text": ["a"] * 9})

    with raised(InputError, column="it"):
        headrace.find_leaks(
            write(tmp_path, train=rows, test=rows), content=["text"], **{role: "it"}
        )


@pytest.mark.parametrize("empty", [{"train"}, {"test"}, {"train", "test"}])
def test_splits_without_rows_share_nothing(tmp_path, empty):
    rows = pa.table({"text": ["one two three four"] * 9, "good": [n % 2 for n in range(9)]})
    splits = {name: rows.slice(0, 0) if name in empty else rows for name in ("train", "test")}
    report = headrace.find_leaks(write(tmp_path, **splits), label="good", near=0.8)

    assert (report.worst, report.telling) == (0, ())


def test_a_column_that_is_named_twice_is_compared_once(tmp_path):
    data = write(tmp_path, train=reviews([1, 2]), test=reviews([2, 3]))
    once, twice = (
        headrace.find_leaks(data, content=["text"] * times, near=0.8) for times in (1, 2)
    )

    assert once == twice


def test_benchmarks_lie_at_any_depth_and_count_once(tmp_path, monkeypatch):
    item = "which of the seven hills is highest\n"
    for name in ("a/b/x.txt", "a/x.txt", ".hidden/x.txt", "a/_old/x.txt", "a/notes.md"):
        (tmp_path / "eval" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "eval" / name).write_text(item)
    monkeypatch.chdir(tmp_path)
    found = find_benchmarks(["eval", tmp_path / "eval", "eval/a/x.txt", "eval/a"])

    assert sorted(found.values()) == ["eval/a/b/x.txt", "eval/a/x.txt"]
    report = headrace.find_leaks(
        write(tmp_path / "data", train=[{"text": f"Say {item}"}]), against=["eval"]
    )
    assert {str(path): 1 for path in find_benchmarks(["eval"])} == report.items
    assert {(each.source, each.item, each.fraction) for each in report.overlaps} == {
        (path, 0, 1) for path in report.items
    }


def test_items_of_a_text_file_are_its_lines(tmp_path):
    (tmp_path / "items.txt").write_text(
        "one two three\x0cfour five\r\nsix seven eight nine\u2028ten\n"
    )
    items = Benchmark.of(read_items(tmp_path / "items.txt"), 13)
    rows = pa.array(["one two three four five", "six seven eight nine ten"])
    found = find_overlaps(
        {"items": items}, [("all", "rows", 0, texts_of(pa.table({"text": rows})))]
    )

    assert [(each.item, each.location) for each in found] == [(0, "rows:0"), (1, "rows:1")]
