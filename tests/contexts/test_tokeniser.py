"""Fields, widths and modes of time of tokens: what is shown is what the default shows of it."""

from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.contexts import Tokeniser, decode_context, open_contexts
from headrace.errors import SettingsError
from headrace.histories.contexts.index import phases_of
from headrace.histories.contexts.sample import FULL, NONE, PARTIAL
from headrace.run.prepare import Prepared
from raised import raised


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Sales of numbered shops: some have few, one has thousands."""
    directory = tmp_path_factory.mktemp("shops")
    draw = np.random.default_rng(0)
    shop = np.concatenate([np.repeat(700, 4000), draw.integers(0, 300, 2000)])
    lines = [
        f"{number},{time},{milli},{draw.choice(['till', 'web'])},{draw.integers(0, 99)},{draw.integers(70)}"
        for number, time, milli in zip(
            shop, draw.integers(0, 10**6, len(shop)), draw.integers(-2, 90, len(shop)), strict=True
        )
    ]
    (directory / "a.csv").write_text("\n".join(["shop,when,ms,how,items,partner", *lines]))
    settings = headrace.Histories(
        source=directory / "a.csv",
        entity="shop",
        entity_kind="number",
        peer="partner",
        peer_kind="text",
        time="when",
        value="ms",
        values={"how": "category", "items": "int16"},
        dialect={"time_format": "epoch_s"},
        format="arrow",
        train_ratio=1,
    )
    return headrace.prepare(settings, directory / "out")


TOKENISERS = [
    Tokeniser(),
    Tokeniser(fields=("peer", "items"), peer_bytes=1),
    Tokeniser(fields=("entity",), entity_bytes=2, times=(0, 10, 0)),
    Tokeniser(entity_bytes=1, times=(10, 0, 0)),
    Tokeniser(fields=("value", "how"), times=(0, 0, 10)),
]


@pytest.mark.parametrize("tokeniser", TOKENISERS, ids=range(len(TOKENISERS)))
def test_what_is_shown_is_of_the_measurements(shops: Prepared, tokeniser: Tokeniser) -> None:
    shown = tokeniser.fields or ("entity", "peer", "value", "how", "items")
    contexts = open_contexts(shops.out, "train", tokeniser=tokeniser, rows="measurements")
    whole = open_contexts(shops.out, "train", context_tokens=1 << 18)  # every row is in one
    known = {as_shown(each, shown, tokeniser) for each in measurements_of(whole, Tokeniser())}
    found = list(measurements_of(contexts, tokeniser))

    assert len(found) > 3000
    assert {as_shown(each, shown, tokeniser) for each in found} <= known
    plan = contexts.plan()
    assert plan.padding < 0.1
    full, _, none = tokeniser.times
    timed = np.mean([each.time is not None for each in found])
    assert (none < 10) == (timed > 0)
    assert (full == 10) == (timed == 1)


def measurements_of(contexts, tokeniser):
    for position in range(len(contexts)):
        context = contexts[position]
        for segment in decode_context(context, values=contexts.rows.values, tokeniser=tokeniser):
            yield from segment


def as_shown(each, shown, tokeniser):
    """A measurement with what the tokeniser shows of it, without its time."""
    entity = number_in(each.entity, tokeniser.entity_bytes)
    peer = number_in(each.peer, tokeniser.peer_bytes)
    return (
        entity if "entity" in shown else None,
        peer if "peer" in shown else None,
        each.code if "value" in shown else None,
        *(each.values[n] if name in shown else None for n, name in enumerate(("how", "items"))),
    )


def number_in(data, width):
    if data is None:
        return None
    number = int.from_bytes(data, "big")
    if len(data) > width:
        number = min(number, 256**width - 1)
    return number


def test_the_default_cycle_is_four_three_three() -> None:
    f, p, n = FULL, PARTIAL, NONE
    expected = [(f, 0), (n, 0), (p, 0), (f, 0), (n, 0), (p, 1), (f, 0), (p, 2), (n, 0), (f, 0)]

    assert expected == list(phases_of((4, 3, 3)))
    for times in ((10, 0, 0), (0, 10, 0), (1, 2, 7), (5, 0, 5)):
        modes = [mode for mode, _ in phases_of(times)]
        assert [modes.count(mode) for mode in (FULL, PARTIAL, NONE)] == list(times)


@pytest.mark.parametrize(
    ("name", "value"),
    [("times", (4, 3, 2)), ("times", (5, 5)), ("entity_bytes", 5), ("new_texts", "guess")],
)
def test_settings_that_cannot_work_are_refused(name: str, value: object) -> None:
    with raised(SettingsError, setting=name):
        Tokeniser(**{name: value})


def test_fields_that_the_run_lacks_are_refused(shops: Prepared, tmp_path: Path) -> None:
    with raised(SettingsError, setting="fields", value="price", remedy="how, items"):
        open_contexts(shops.out, tokeniser=Tokeniser(fields=("price",)))
    (tmp_path / "a.csv").write_text("src_addr,event_time,rtt\n10.0.0.1,2024-01-01,1\n")
    headrace.prepare(
        headrace.Histories(source=tmp_path / "a.csv", format="arrow"), tmp_path / "out"
    )
    with raised(SettingsError, setting="entity_bytes", value=2):
        open_contexts(tmp_path / "out", tokeniser=Tokeniser(entity_bytes=2))
