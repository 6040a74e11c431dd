"""`GroupedPipeline` and `UnifiedPipeline` on tables of any kind: rows stay where they are, strangers are refused."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.preprocessing import QuantileTransformer, RobustScaler, StandardScaler

from headrace import GroupedPipeline, UnifiedPipeline
from headrace.errors import InputError, SettingsError
from raised import raised


def table(names: str = "abcab", rows: int = 60, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "gauge_id": [names[number % len(names)] for number in range(rows)],
            "p": rng.gamma(1, 2, rows),
            "q": [None if number % 11 == 5 else float(number) for number in range(rows)],
            "note": [f"row {number}" for number in range(rows)],
        }
    )


@pytest.mark.parametrize("kind", ["polars", "pandas", "arrow"])
def test_every_row_is_scaled_by_its_own_entity_and_stays_in_its_place(kind: str) -> None:
    frame = table()
    given = {"polars": frame, "pandas": frame.to_pandas(), "arrow": frame.to_arrow()}[kind]
    fitted = GroupedPipeline(StandardScaler(), ["q", "p"]).fit(given)

    made = fitted.transform(given)
    back = fitted.inverse_transform(made)

    assert type(made) is type(given)
    expected = frame.with_columns(
        ((pl.col(name) - pl.col(name).mean()) / pl.col(name).std(ddof=0)).over("gauge_id")
        for name in ("p", "q")
    )
    for found, wanted in ((made, expected), (back, frame)):
        found = pl.DataFrame(found) if kind != "pandas" else pl.from_pandas(found)
        assert found["note"].to_list() == frame["note"].to_list()
        np.testing.assert_allclose(
            found["p"].to_numpy(), wanted["p"].to_numpy(), rtol=1e-10, atol=1e-14
        )
        np.testing.assert_allclose(
            found["q"].to_numpy(), wanted["q"].to_numpy(), rtol=1e-10, atol=1e-13
        )
        assert found["q"].null_count() == frame["q"].null_count()


@pytest.mark.parametrize("pipeline", [RobustScaler(), QuantileTransformer(n_quantiles=5)])
def test_pickles_and_batches_are_the_same_fit(pipeline) -> None:
    whole = GroupedPipeline(pipeline, ["p"]).fit(table())
    parts = GroupedPipeline(pipeline, ["p"])
    for name in "cab":
        parts.add(table().filter(pl.col("gauge_id") == name))

    assert pickle.dumps(whole) == pickle.dumps(parts)
    again = pickle.loads(pickle.dumps(whole))
    assert again.transform(table()).equals(whole.transform(table()))
    assert again.entities == ("a", "b", "c")


@pytest.mark.parametrize("pipeline", [RobustScaler(), QuantileTransformer(n_quantiles=5)])
def test_an_entity_that_comes_twice_is_named_and_changes_nothing(pipeline) -> None:
    fitted = GroupedPipeline(pipeline, ["p"]).fit(table("ab"))
    before = pickle.dumps(fitted)

    with raised(InputError, column="gauge_id", value="a"):
        fitted.add(table("abc"))
    assert pickle.dumps(fitted) == before


def test_t12_rows_of_an_unseen_entity_are_an_error() -> None:
    fitted = GroupedPipeline(StandardScaler(), ["p"]).fit(table("ab"))

    with raised(InputError, value="c"):
        fitted.transform(table("abc"))
    slow = GroupedPipeline(QuantileTransformer(n_quantiles=5), ["p"]).fit(table("ab"))
    with raised(InputError, value="c"):
        slow.transform(table("abc"))


def test_one_pipeline_for_all() -> None:
    fitted = UnifiedPipeline([StandardScaler()], ["p", "q"]).fit(table())

    made = fitted.transform(table("xyz"))

    assert abs(made["p"].mean()) < 1e-12
    np.testing.assert_allclose(
        fitted.inverse_transform(made)["p"].to_numpy(), table()["p"].to_numpy(), rtol=1e-12
    )
    np.testing.assert_allclose(
        fitted.sklearn().transform(table().select("p", "q").to_numpy())[:, 0],
        made["p"].to_numpy(),
        rtol=1e-12,
    )
    assert pickle.loads(pickle.dumps(fitted)).transform(table("xyz")).equals(made)


def test_messages_say_what_is_missing() -> None:
    pipeline = GroupedPipeline(StandardScaler(), ["p"])

    with raised(SettingsError, remedy="call fit first, with the rows in train"):
        pipeline.transform(table())
    with raised(InputError, column="gauge_id"):
        pipeline.fit(table().drop("gauge_id"))
    with raised(InputError, remedy="give numbers"):
        GroupedPipeline(StandardScaler(), ["note"]).fit(table())
    with raised(InputError, column="gauge_id", remedy="name them"):
        pipeline.fit(
            table().with_columns(gauge_id=pl.when(pl.int_range(pl.len()) > 2).then("gauge_id"))
        )
    with raised(InputError, remedy="give a polars, pandas or Arrow table"):
        pipeline.fit(3)
    with pytest.raises(SettingsError, match="columns is empty"):
        GroupedPipeline(StandardScaler(), [])


def test_a_pandas_index_is_kept() -> None:
    frame = table().to_pandas().set_index(pd.Index(range(100, 160), name="row"))

    made = GroupedPipeline(StandardScaler(), ["p"]).fit(frame).transform(frame)

    assert made.index.equals(frame.index)
