"""Laws of `dictionaries_from`: codes of texts stay those of an earlier run, whatever is added."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from events import event_histories, random_events, write_events

import headrace
from headrace.contexts import Tokeniser, decode_context, open_contexts
from headrace.errors import InputError, SettingsError
from headrace.histories.dictionary import Dictionary
from headrace.run.prepare import Prepared
from raised import raised

ROLES = ("entity", "peer", "value-02")


def texts_of(prepared: Prepared, role: str) -> list[str]:
    return Dictionary(prepared.run / "dictionaries" / f"{role}.arrow").texts.to_pylist()


def shop(tmp_path: Path, name: str, customers: list[str], **settings: object) -> Prepared:
    directory = tmp_path / name
    directory.mkdir()
    lines = "".join(f"{customer},{60 * n},1\n" for n, customer in enumerate(customers))
    (directory / "a.csv").write_text(f"shop,when,amount\n{lines}")
    asked = headrace.Histories(
        source=directory,
        entity="shop",
        entity_kind="text",
        time="when",
        dialect={"time_format": "epoch_s"},
        values={"amount": "float32"},
        format="arrow",
        **settings,
    )
    return headrace.prepare(asked, tmp_path / f"{name}_out")


def test_bakery_stays_0(tmp_path: Path) -> None:
    """Case 13: a trained model reads the code of bakery."""
    old = shop(tmp_path, "old", ["bakery", "café"])
    alone = shop(tmp_path, "alone", ["antiques", "bakery", "café"])
    new = shop(tmp_path, "new", ["antiques", "bakery", "café"], dictionaries_from=old.out)

    assert ["antiques", "bakery", "café"] == texts_of(alone, "entity")
    assert ["bakery", "café", "antiques"] == texts_of(new, "entity")


@pytest.mark.parametrize("memory_limit", ["1MiB", "2GiB"])
def test_old_codes_never_change_whatever_is_added(tmp_path: Path, memory_limit: str) -> None:
    draw = random.Random(7)
    previous = event_histories(
        write_events(tmp_path / "0", random_events(0, 300), 2), tmp_path / "out0"
    )
    for generation in (1, 2):
        events = random_events(generation, 400)
        for event in events:
            event["user"] += draw.choice(["", " B", " \N{SNOWMAN}"])
            event["kind"] = draw.choice([event["kind"], "a gift", f"kind {generation}"])
        source = write_events(tmp_path / f"{generation}", events, 3)
        out = tmp_path / f"out{generation}"
        prepared = event_histories(
            source, out, dictionaries_from=previous.out, memory_limit=memory_limit
        )
        for role in ROLES:
            before = texts_of(previous, role)
            after = texts_of(prepared, role)
            added = after[len(before) :]
            assert before == after[: len(before)]
            assert sorted(added) == added
            assert len(after) == len({*after})
        verdict = headrace.verify(out)
        assert verdict.problems == []
        assert not [check for check in verdict.checks if check.category == "unchecked"]
        previous = prepared


def test_verify_finds_other_codes_and_says_when_the_run_is_gone(tmp_path: Path) -> None:
    old = shop(tmp_path, "old", ["bakery", "café"])
    new = shop(tmp_path, "new", ["antiques"], dictionaries_from=old.out)
    moved = tmp_path / "elsewhere"
    old.out.rename(moved)
    gone = headrace.verify(new.out)
    unchecked = [check.name for check in gone.checks if check.category == "unchecked"]

    assert ["bakery", "café", "antiques"] == texts_of(new, "entity")
    assert gone.problems == []
    assert ["codes are of the named run"] == unchecked


def test_the_identity_is_of_the_named_run_and_not_of_its_place(tmp_path: Path) -> None:
    old = shop(tmp_path, "old", ["bakery", "café"])
    new = shop(tmp_path, "new", ["antiques"], dictionaries_from=old.out)
    settings = headrace.Histories(**{**new_settings(new), "dictionaries_from": old.run})
    again = headrace.prepare(settings, new.out)

    assert ("reused", new.run) == (again.how, again.run)


def new_settings(prepared: Prepared) -> dict[str, object]:
    config = json.loads((prepared.run / "config.json").read_text())
    config.pop("recipe")
    return config


@pytest.mark.parametrize("name", ["entity_kind", "values", "peer"])
def test_a_run_with_other_tokens_is_refused(tmp_path: Path, name: str) -> None:
    old = shop(tmp_path, "old", ["1", "2"])
    other = {"entity_kind": "number", "values": {"amount": "float64"}, "peer": "amount"}
    settings = {**new_settings(old), "dictionaries_from": old.out, name: other[name]}
    if name == "peer":
        settings |= {"values": {}, "value": "shop", "entity": "when", "time": "x"}
    with raised(SettingsError, setting="dictionaries_from"):
        headrace.prepare(headrace.Histories(**settings), tmp_path / "out")


@pytest.mark.parametrize(
    ("old", "new", "other"),
    [
        (["12.5"], ["12", "12.0"], "12.0"),
        (["12", "7.5"], ["12.0"], "12.0"),
    ],
)
def test_one_value_in_two_spellings_is_refused(
    tmp_path: Path, old: list[str], new: list[str], other: str
) -> None:
    first = shop(tmp_path, "old", old)
    asked = {"dictionaries_from": first.out}
    with raised(InputError, column="shop", value=other):
        shop(tmp_path, "new", new, **asked)
    kept = shop(tmp_path, "kept", new, **asked, spellings="keep")

    assert [*sorted(old), *new] == texts_of(kept, "entity")


@pytest.mark.parametrize("texts", [["007", "7"], ["1.5", "1.50x"], ["12", "13"], ["", "1"]])
def test_texts_that_are_no_values_may_look_alike(tmp_path: Path, texts: list[str]) -> None:
    prepared = shop(tmp_path, "in", texts, bad_rows="drop")

    assert sorted(filter(None, texts)) == texts_of(prepared, "entity")


def test_a_trained_model_reads_the_same_tokens(tmp_path: Path) -> None:
    """Tokens of old measurements are byte-equal, though a category outgrows its byte."""
    events = [{**event, "page": "/"} for event in random_events(3, 300)]
    old = event_histories(write_events(tmp_path / "old", events, 2), tmp_path / "old_out")
    more = [
        {**event, "user": f"{event['user']} again", "page": f"/{n}", "kind": f"kind {n}"}
        for n, event in enumerate(events)
    ]
    source = write_events(tmp_path / "new", [*events, *more], 2)
    new = event_histories(source, tmp_path / "new_out", dictionaries_from=old.out)
    every = Tokeniser(times=(10, 0, 0))
    before = said(old, tokeniser=every)
    after = said(new, tokeniser=every)
    unknown = b"\xff" * 4
    added = {each for each in after if each not in before}

    assert "uint16" == new.manifest.metadata["values"]["kind"]
    assert before <= after
    assert {(unknown, unknown, 255)} == {(each[1], each[2], each[4][2]) for each in added}
    codes = said(new, tokeniser=Tokeniser(times=(10, 0, 0), new_texts="codes"))
    assert before <= codes
    assert 1 < len({each[1] for each in codes - before})
    assert 254 in {each[4][2] for each in codes}
    third = event_histories(
        write_events(tmp_path / "third", events, 1), tmp_path / "3", dictionaries_from=new.out
    )
    assert before == said(third, tokeniser=every)


def said(prepared: Prepared, **options: Any) -> set[tuple[Any, ...]]:
    """The measurements of the contexts of both splits, as a model reads them."""
    measurements = set()
    for split in ("train", "test"):
        contexts = open_contexts(prepared.out, split, context_tokens=1 << 15, **options)
        for position in range(len(contexts)):
            for segment in decode_context(
                contexts[position], values=contexts.rows.values, tokeniser=options["tokeniser"]
            ):
                measurements.update(segment)
    return {
        tuple(str(value) if value != value else value for value in each) for each in measurements
    }
