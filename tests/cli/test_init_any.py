"""`headrace init DATA`: the recipe is chosen, and what is not certain is refused with what to give."""

import contextlib
import gzip
import json
import os
import pty
import subprocess
import sys
import zipfile
from pathlib import Path

import duckdb
import polars as pl
import pytest
import yaml

import headrace
from commands import headrace as command
from headrace.cli.init import look, trial
from headrace.cli.init.choose import fits
from headrace.cli.init.commented import needed_settings, settings_of
from headrace.cli.init.look import Data
from headrace.cli.init.options import InitSplitOptions
from headrace.errors import HeadraceError, InputError, SettingsError
from headrace.split.init import split_sections
from raised import raised

EVENTS = "customer,when,amount\n" + "".join(
    f"c{n % 37},2024-{1 + n % 12:02d}-{1 + n % 28:02d},{n}.5\n" for n in range(600)
)
CHATS = "".join(
    json.dumps({"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "yes"}]}) + "\n"
    for n in range(50)
)  # fmt: skip
READINGS = "at,sensor\n" + "".join(
    f"2024-01-{1 + n // 24:02d}T{n % 24:02d}:00,{n % 7}.25\n" for n in range(480)
)
LABELLED = "text,label\n" + "".join(f"fine thing {n},{n % 2}\n" for n in range(400))
REVIEWS = "when,who,text\n" + "".join(
    f"2024-{1 + n % 12:02d}-03,u{n % 40},fine thing {n}\n" for n in range(400)
)


def written(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / "raw" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("events.csv", EVENTS, "split"),
        ("chats.jsonl", CHATS, "pack"),
        ("readings.csv", READINGS, "split"),
        ("reviews.csv", REVIEWS, "split"),
        ("labelled.csv", LABELLED, "split"),
    ],
)
def test_the_recipe_is_chosen_by_the_data(tmp_path: Path, name: str, text: str, word: str) -> None:
    assert word == fits(Data([written(tmp_path, name, text)]), "out", {})[0].word


def test_what_is_written_runs(tmp_path: Path) -> None:
    source = written(tmp_path, "events.csv", EVENTS)
    config = tmp_path / "config.yaml"
    done = command("init", source, "--out", str(tmp_path / "out"), "--config", str(config))
    run = command("run", str(config))
    settings = yaml.safe_load(config.read_text())

    assert (0, 0) == (done.returncode, run.returncode), done.stderr + run.stderr
    assert ("temporal_split", "customer", "when") == tuple(
        settings[name] for name in ("recipe", "entity", "time")
    )
    assert "series" in done.stdout
    assert set(headrace.open(tmp_path / "out").splits) >= {"train", "test"}


def test_readings_are_no_entities(tmp_path: Path) -> None:
    best = fits(Data([written(tmp_path, "readings.csv", READINGS)]), "out", {})[0]
    settings = {name: value for part in best.sections for name, value in part.settings.items()}

    assert "at" == settings["time"]
    assert not isinstance(settings["entity"], str)
    assert "train_ratio" not in settings


def test_times_in_several_forms_are_refused_and_not_drawn_at_random(tmp_path: Path) -> None:
    text = "at,x\n" + "".join(f"2024/01/{n:02d} 10:00,{n}\n" for n in range(1, 20))
    text += "".join(f"2024/02/{n:02d} 10:00:30,{n}\n" for n in range(1, 20))
    with raised(SettingsError, remedy="write them in one form"):
        fits(Data([written(tmp_path, "a.csv", text)]), "out", {})


TICKERS = "Ticker,Date,Close\n" + "".join(
    f"{name},2024-{1 + n // 28:02d}-{1 + n % 28:02d},{n}.5\n"
    for name in ("AA", "BB", "CC")
    for n in range(280)
)


def settings_of_best(source: str) -> dict[str, object]:
    return settings_of(fits(Data([source]), "out", {})[0].sections)


def test_tickers_are_cut_by_date_and_not_held_out(tmp_path: Path) -> None:
    best = fits(Data([written(tmp_path, "a.csv", TICKERS)]), "out", {})[0]
    settings = settings_of(best.sections)

    assert ("Date", None) == (settings["time"], settings.get("entity"))
    assert 840 == sum(best.trial.rows.values())
    assert not best.trial.dropped


def test_a_date_and_a_time_of_day_are_one_time(tmp_path: Path) -> None:
    text = "order,date,time,kind\n" + "".join(
        f"o{n // 3},{1 + n % 12}/{1 + n % 28}/2015,11:{n % 60:02d}:00,x{n % 5}\n"
        for n in range(600)
    )
    settings = settings_of_best(written(tmp_path, "orders.csv", text))

    assert ["date", "time"] == settings["time"]


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("months.csv", "Month,Day,x\n" + "".join(f"{1 + n % 9},{1 + n % 28},{n}\n" for n in range(60)), "time="),
        ("wide.csv", "country,1952,1957,1962\n" + "".join(f"c{n},1,2,{n}\n" for n in range(60)), "melt"),
        ("months.csv", "shop,Jan,Feb,Mar\n" + "".join(f"c{n},1,2,{n}\n" for n in range(60)), "melt"),
        ("answer.json", json.dumps({"status": "ok", "data": [{"at": "2024-01-01", "x": n} for n in range(60)]}), "jq"),
        ("ids.jsonl", "".join(f'{{"id": "{n:032x}"}}\n' for n in range(60)), "columns"),
    ],
)  # fmt: skip
def test_rows_that_may_have_times_are_not_drawn_at_random_unasked(
    tmp_path: Path, name: str, text: str, remedy: str
) -> None:
    with raised(SettingsError, remedy=remedy):
        fits(Data([written(tmp_path, name, text)]), "out", {})


FORMS = {
    "%b %d, %Y %I:%M %p": "Jan {day:02d}, 2024 03:15 PM",
    "%d%b%Y": "{day:02d}JAN2024",
    "%d-%b-%Y": "{day}-Jan-2024",
    "%d %B %Y": "{day} January 2024",
}


@pytest.mark.parametrize("form", FORMS)
def test_months_in_words_are_times(tmp_path: Path, form: str) -> None:
    lines = [f'{n},"{FORMS[form].format(day=1 + n % 28)}"\n' for n in range(90)]
    settings = settings_of_best(written(tmp_path, "a.csv", "x,when\n" + "".join(lines)))

    assert ("when", form) == (settings["time"], settings["dialect"]["time_format"])


@pytest.mark.parametrize("word", ["?", ".", "\\N", "NULL"])
def test_words_for_missing_among_numbers_are_nulls(tmp_path: Path, word: str) -> None:
    lines = [f"{word if n % 9 == 0 else n},fine thing {n}\n" for n in range(90)]
    settings = settings_of_best(written(tmp_path, "a.csv", "x,note\n" + "".join(lines)))

    assert {"null_values": [word]} == settings["dialect"]


def test_fields_of_structs_are_the_time_and_the_entity(tmp_path: Path) -> None:
    rows = [
        {"user": {"id": f"u{n * 7 % 40}"}, "meta": {"at": f"2024-01-{1 + n % 28:02d}"}, "x": n}
        for n in range(300)
    ]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    settings = settings_of_best(written(tmp_path, "a.jsonl", text))

    assert ("meta.at", "user.id") == (settings["time"], settings["entity"])


def test_times_that_names_do_not_tell_apart_are_asked_the_earliest_first(tmp_path: Path) -> None:
    lines = [f"2024-02-{1 + n % 28:02d},2024-01-{1 + n % 28:02d},{n}\n" for n in range(90)]
    source = written(tmp_path, "a.csv", "dropoff_date,pickup_date,x\n" + "".join(lines))
    with raised(SettingsError, setting="time") as error:
        fits(Data([source]), "out", {})

    assert error.value.candidates[:2] == ("pickup_date", "dropoff_date")


def test_chats_in_a_column_of_csv_are_no_entity(tmp_path: Path) -> None:
    lines = []
    for n in range(90):
        chat = json.loads(CHATS.splitlines()[n % 40])["messages"]
        lines.append({"at": f"2024-01-{1 + n % 28:02d}", "messages": json.dumps(chat)})
    source = tmp_path / "raw" / "a.csv"
    source.parent.mkdir()
    pl.DataFrame(lines).write_csv(source)

    assert "packed_sequences" == settings_of_best(str(source))["recipe"]


def test_nameless_and_empty_columns_are_left_out(tmp_path: Path) -> None:
    text = ",x,note,\n" + "".join(f"{n},{n % 7},,\n" for n in range(90))
    source = written(tmp_path, "a.csv", text.replace(",note,\n", ",note\n").replace(",,\n", ",\n"))

    assert ["", "note"] == settings_of_best(source)["drop_columns"]


def test_a_wide_table_below_titles_is_said(tmp_path: Path) -> None:
    table = "country,1952,1957,1962,\n" + "".join(f"c{n},1,2,{n},\n" for n in range(60))
    with raised(SettingsError, remedy="melt"):
        fits(Data([written(tmp_path, "a.csv", f'"Source","World"\n\n{table}')]), "out", {})


def test_no_time_may_be_said(tmp_path: Path) -> None:
    text = "year,x\n" + "".join(f"{2007 + n % 3},{n}.5\n" for n in range(90))
    source = written(tmp_path, "a.csv", text)
    sections, _ = split_sections(InitSplitOptions([source], "out", time="none"), Data([source]))

    assert "random_split" == settings_of(sections)["recipe"]


def test_messages_are_found_below_other_keys_and_files_in_subdirectories(tmp_path: Path) -> None:
    for part in range(2):
        folder = tmp_path / "raw" / f"2018-{part}"
        folder.mkdir(parents=True)
        rows = []
        for n in range(20):
            turns = [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "yes"}]
            rows.append(json.dumps({"id": f"c{n}", "data": {"turns": turns}}) + "\n")
        (folder / "chats.jsonl").write_text("".join(rows))
    settings = settings_of_best(str(tmp_path / "raw"))

    (dataset,) = settings["blend"]["datasets"]
    assert {"messages": "data.turns"} == dataset["mapping"]


def test_files_with_one_number_are_numbered_anew(tmp_path: Path) -> None:
    for year in (2023, 2024):
        (tmp_path / "raw" / f"year={year}").mkdir(parents=True)
        text = EVENTS.replace("2024-", f"{year}-")
        (tmp_path / "raw" / f"year={year}" / "part-0.csv").write_text(text)

    assert "dense" == settings_of_best(str(tmp_path / "raw"))["shard_numbers"]


def test_more_than_can_be_tried_is_tried_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "WHOLE", 4_000)
    best = fits(Data([written(tmp_path, "events.csv", EVENTS)]), "out", {})[0]

    assert 0 < best.trial.tried <= 4_000 < best.trial.of


def test_what_is_tried_ends_between_rows_of_several_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = "and more\n" * 9
    text = "when,who,text\n" + "".join(
        f'2024-{1 + n % 12:02d}-03,u{n % 40},"one ""fine"" thing\n{more}{n}"\n' for n in range(400)
    )
    source = written(tmp_path, "reviews.csv", text)
    for most in range(4_000, 4_100, 20):
        monkeypatch.setattr(trial, "WHOLE", most)
        best = fits(Data([source]), "out", {})[0]

        assert ("split", True) == (best.word, 3_000 < best.trial.tried <= most)


PERIODS = "period,x\n" + "".join(f"{1939 + n // 4}Q{1 + n % 4},{n}\n" for n in range(60))


def without_answers(rows: int) -> str:
    lines = []
    for n in range(rows):
        turns = [{"role": "user", "content": f"{n}?"}]
        if n % 2:
            turns.append({"role": "assistant", "content": "yes"})
        lines.append(json.dumps({"messages": turns}) + "\n")
    return "".join(lines)


@pytest.mark.parametrize(
    ("text", "time", "form"),
    [
        (PERIODS, "period", "period"),
        ("day,x\n" + "".join(f"{1 + n % 12}/{1 + n % 28}/2024 {1 + n % 12}:15 PM,{n}\n" for n in range(90)), "day", "%m/%d/%Y %I:%M %p"),
        ("date,x\n" + "".join(f"{41275 + n}.25,{n}\n" for n in range(60)), "date", "excel_days"),
        ("year,month,day,x\n" + "".join(f"2020,{1 + n % 9},{1 + n % 28},{n}.5\n" for n in range(90)), ["year", "month", "day"], "%Y %m %d"),
    ],
    ids=["quarters", "afternoons", "excel", "parts"],
)  # fmt: skip
def test_dates_as_people_write_them_are_times(
    tmp_path: Path, text: str, time: object, form: str
) -> None:
    settings = settings_of_best(written(tmp_path, "a.csv", text))

    assert (time, form) == (settings["time"], settings["dialect"]["time_format"])


def test_what_named_recipes_write_has_been_tried(tmp_path: Path) -> None:
    source = written(tmp_path, "events.csv", EVENTS)
    config = tmp_path / "config.yaml"
    flags = ("--out", str(tmp_path / "out"), "--config", str(config), "--split-date", "2020-01-01")
    done = command("init", "split", source, "--time", "when", *flags)

    assert False is config.exists()
    assert "train has no rows" in done.stderr


def test_chats_without_answers_are_counted_and_never_allowed_unasked(tmp_path: Path) -> None:
    best = fits(Data([written(tmp_path, "chats.jsonl", without_answers(80))]), "out", {})[0]

    assert ["tokenizer", "max_bad_share"] == best.trial.stand_ins
    assert "50% have no answer" in best.about
    assert needed_settings(best.sections)["max_bad_share"] < 0.6


def test_texts_that_are_not_utf_8_have_their_encoding_written(tmp_path: Path) -> None:
    source = Path(written(tmp_path, "events.csv", ""))
    source.write_bytes(EVENTS.replace("c1,", "Köln,").encode("latin-1"))

    assert {"encoding": "cp1252"} == settings_of_best(str(source))["dialect"]


def test_data_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    first_rows = look.first_rows

    def counted(path: Path, name: str, *more: object) -> object:
        read.append(name)
        return first_rows(path, name, *more)

    monkeypatch.setattr(look, "first_rows", counted)
    fits(Data([written(tmp_path, "events.csv", EVENTS)]), "out", {})

    assert ["events.csv"] == read


@pytest.mark.parametrize("library", ["polars", "pandas", "duckdb", "path"])
def test_python_takes_what_open_takes(tmp_path: Path, library: str) -> None:
    table: object = written(tmp_path, "events.csv", EVENTS)
    if library != "path":
        table = pl.read_csv(str(table), try_parse_dates=True)
    if library == "pandas":
        table = table.to_pandas()
    if library == "duckdb":
        connection = duckdb.connect()
        connection.register("events", table.to_arrow())
        table = connection.sql("select * from events")
    recipe = headrace.init(table)
    headrace.prepare(recipe, tmp_path / "out")

    assert isinstance(recipe, headrace.TemporalSplit)
    assert ("when", "customer") == (recipe.time, recipe.entity)
    assert headrace.open(tmp_path / "out").split_rows["train"] > 0


def test_python_raises_with_the_setting_to_give(tmp_path: Path) -> None:
    wide = "country,1952,1957,1962\n" + "".join(f"c{n},1,2,{n}\n" for n in range(60))
    source = written(tmp_path, "wide.csv", wide)
    with raised(SettingsError, setting="time", remedy="melt"):
        headrace.init(source)
    with raised(SettingsError, setting="tokenizer", remedy="give tokenizer="):
        headrace.init(written(tmp_path / "chats", "chats.jsonl", CHATS))

    assert isinstance(headrace.init(source, time="none"), headrace.RandomSplit)
    assert isinstance(headrace.init(source, recipe="split", time="none"), headrace.RandomSplit)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tme": "when"}, "did you mean 'time'"),
        (
            {"recipe": "split", "tokenizer": "."},
            "use one of decimal, entity, header, split_date, time",
        ),
        ({"time": "when", "tokenizer": "."}, "no recipe takes time and tokenizer together"),
    ],
)
def test_options_that_no_recipe_takes_are_refused(
    tmp_path: Path, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        headrace.init(written(tmp_path, "events.csv", EVENTS), **options)


def test_a_target_chooses_series(tmp_path: Path) -> None:
    recipe = headrace.init(written(tmp_path, "readings.csv", READINGS), target="sensor")

    assert isinstance(recipe, headrace.Series)


def at_terminal(answers: str, *words: str) -> tuple[int, str]:
    """Return the exit status of a command at a terminal, and what the terminal shows."""
    outer, inner = pty.openpty()
    os.write(outer, answers.encode())
    code = "from headrace.cli import main; main()"
    arguments = [sys.executable, "-c", code, *words]
    done = subprocess.run(arguments, stdin=inner, stdout=inner, stderr=inner, check=False)
    os.close(inner)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: all has been read
        while part := os.read(outer, 1 << 16):
            shown += part
    os.close(outer)
    return done.returncode, shown.decode()


def test_at_a_terminal_it_asks_and_the_best_answer_is_the_first(tmp_path: Path) -> None:
    text = "year,x\n" + "".join(f"{2007 + n % 3},{n}.5\n" for n in range(90))
    source = written(tmp_path, "a.csv", text)
    config = tmp_path / "config.yaml"
    flags = ("--out", str(tmp_path / "out"), "--config", str(config))
    code, shown = at_terminal("9\n2\n", "init", source, *flags)
    refused = command("init", source, "--out", "out", "--config", str(tmp_path / "no.yaml"))

    assert 0 == code, shown
    assert "1  year" in shown
    assert "random_split" == yaml.safe_load(config.read_text())["recipe"]
    assert 2 == refused.returncode
    assert "--time none" in refused.stderr


@pytest.mark.parametrize("seconds", [1704067200, 1704067200.125], ids=["whole", "fractions"])
def test_events_of_users_are_no_prompts(tmp_path: Path, seconds: float) -> None:
    text = "timestamp,user,x\n" + "".join(
        f"{seconds + 7200 * n},u{n % 37},{n}\n" for n in range(600)
    )
    best = fits(Data([written(tmp_path, "a.csv", text)]), "out", {})[0]

    assert ("split", "timestamp") == (best.word, settings_of(best.sections)["time"])


def test_a_broken_line_among_events_is_said_and_they_are_no_prompts(tmp_path: Path) -> None:
    lines = [
        json.dumps({"user": f"u{n % 37}", "at": f"2024-01-{1 + n % 28:02d}"}) for n in range(90)
    ]
    lines[50] = lines[50][:20]
    with pytest.raises(HeadraceError, match="line 51"):
        fits(Data([written(tmp_path, "a.jsonl", "\n".join(lines))]), "out", {})


def test_data_that_no_recipe_can_read_are_refused_by_the_one_reason(tmp_path: Path) -> None:
    text = EVENTS + "c1,2024-01-01,1,2\n"
    with raised(InputError, row=601) as caught:
        fits(Data([written(tmp_path, "a.csv", text)]), "out", {})

    assert 1 == str(caught.value).count("a.csv")


def test_chats_with_tool_calls_are_packed(tmp_path: Path) -> None:
    lines = []
    for n in range(40):
        function = {"name": "weather", "arguments": json.dumps({"city": n})}
        turns = [
            {"role": "user", "content": f"weather in {n}?"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{n}", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": "sunny"},
            {"role": "assistant", "content": "It is sunny."},
        ]  # fmt: skip
        tool = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
        lines.append(
            json.dumps({"messages": turns, "tools": [{"type": "function", "function": tool}]})
        )
    best = fits(Data([written(tmp_path, "a.jsonl", "\n".join(lines))]), "out", {})[0]

    assert "pack" == best.word


def test_files_of_two_tables_are_not_drawn_as_one(tmp_path: Path) -> None:
    source = written(tmp_path, "orders.csv", EVENTS)
    text = "customer,city\n" + "".join(f"c{n},x{n % 5}\n" for n in range(37))
    (tmp_path / "raw" / "customers.csv").write_text(text)
    with raised(SettingsError, setting="time", column="when", remedy="customers.csv"):
        fits(Data([str(Path(source).parent)]), "out", {})


def test_files_of_several_formats_are_written_as_parquet(tmp_path: Path) -> None:
    source = written(tmp_path, "a.csv", EVENTS.replace(".5\n", "\n"))
    pl.read_csv(source).write_parquet(tmp_path / "raw" / "b.parquet")

    assert "parquet" == settings_of_best(str(Path(source).parent))["format"]


GERMAN = "Datum;Filiale;Umsatz;Menge\n" + "".join(
    f"{1 + n % 28:02d}.{1 + n % 12:02d}.2024;F{n % 40};1.{n % 900 + 100},{n % 90 + 10};{n % 7},5\n"
    for n in range(600)
)


def test_numbers_with_a_decimal_comma_are_read_as_numbers(tmp_path: Path) -> None:
    source = written(tmp_path, "a.csv", GERMAN)
    settings = settings_of_best(source)

    assert {"time_format": "%d.%m.%Y", "decimal": ",", "thousands": "."} == settings["dialect"]
    assert {"Umsatz": "float64", "Menge": "float64"} == settings["types"]
    headrace.prepare(headrace.init(source), tmp_path / "out")
    batch = next(iter(headrace.open(tmp_path / "out").stream("train", batch_size=4)))
    assert 1100 <= batch["Umsatz"][0] < 2000


def test_numbers_with_leading_zeros_are_no_types(tmp_path: Path) -> None:
    text = "zip,amount\n" + "".join(f"{n * 37 % 9999:05d},{n}\n" for n in range(400))
    sections, _ = split_sections(
        InitSplitOptions([written(tmp_path, "a.csv", text)], "out"), Data([str(tmp_path / "raw")])
    )
    types = next(part.settings["types"] for part in sections if "types" in part.settings)

    assert {"amount": "int64"} == types.value


def test_a_text_that_is_no_time_is_shown(tmp_path: Path) -> None:
    text = EVENTS + "Total,Total,9\n"
    with pytest.raises(SettingsError, match="'Total' is not read"):
        fits(Data([written(tmp_path, "a.csv", text)]), "out", {})


def test_a_day_that_may_be_a_month_is_said(tmp_path: Path) -> None:
    text = "date,customer\n" + "".join(
        f"{1 + n % 12:02d}/{1 + n % 11:02d}/2024,c{n % 37}\n" for n in range(600)
    )
    best = fits(Data([written(tmp_path, "a.csv", text)]), "out", {})[0]

    assert "%m/%d/%Y would read them as well" in " ".join(best.trial.warnings)


def test_a_named_time_drops_rows_without_one(tmp_path: Path) -> None:
    source = written(tmp_path, "a.csv", EVENTS + "Total,Total,9\n")
    (best, *_) = fits(Data([source]), "out", {"time": "when"})

    assert "drop" == settings_of(best.sections)["bad_rows"]
    assert "'Total'" in " ".join(best.trial.warnings)
    assert 601 == sum(best.trial.rows.values()) + sum(best.trial.dropped.values())


def test_a_time_that_a_file_lacks_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path, "orders.csv", EVENTS)
    (tmp_path / "raw" / "customers.csv").write_text("customer,city\nc1,x\n")
    with raised(SettingsError, setting="time", value="when", remedy="customers.csv"):
        fits(Data([str(Path(source).parent)]), "out", {"time": "when"})
    with raised(SettingsError, setting="entity", value="amount", remedy="customers.csv"):
        fits(Data([str(Path(source).parent)]), "out", {"time": "none", "entity": "amount"})


def test_times_with_and_without_an_offset_are_read(tmp_path: Path) -> None:
    text = "time,user\n" + "".join(
        f"2024-{1 + n % 12:02d}-03T10:00:00{('', '+02:00')[n % 2]},u{n % 37}\n" for n in range(400)
    )
    best = fits(Data([written(tmp_path, "a.csv", text)]), "out", {})[0]

    assert {"time_format": "iso"} == settings_of(best.sections)["dialect"]
    assert "time_zone" in " ".join(best.trial.warnings)


def test_files_without_rows_are_refused_by_that(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="holds no rows; give a source"):
        fits(Data([written(tmp_path, "a.csv", "a,b\n")]), "out", {})


def test_numbers_with_points_beside_decimal_commas_get_no_type(tmp_path: Path) -> None:
    text = "date;price;weight\n" + "".join(
        f"2024-{1 + n % 12:02d}-{1 + n % 28:02d};{n},{n % 90 + 10};{n}.5\n" for n in range(300)
    )

    assert {"price": "float64"} == settings_of_best(written(tmp_path, "a.csv", text))["types"]


def test_users_and_models_of_devices_are_no_chats(tmp_path: Path) -> None:
    rows = []
    for n in range(400):
        row = {"user": f"u{n % 40}", "model": "phone", "ts": 1704067200000 + n * 7200000}
        rows.append(json.dumps(row | {"props": {"page": n}}) + "\n")

    assert "split" == fits(Data([written(tmp_path, "a.jsonl", "".join(rows))]), "out", {})[0].word


def test_chats_with_reasoning_are_packed(tmp_path: Path) -> None:
    rows = []
    for n in range(40):
        answer = {"role": "assistant", "reasoning_content": "well", "content": "yes"}
        rows.append(json.dumps({"messages": [{"role": "user", "content": f"{n}?"}, answer]}) + "\n")

    assert "pack" == fits(Data([written(tmp_path, "a.jsonl", "".join(rows))]), "out", {})[0].word


def test_a_target_with_marks_of_thousands_is_read(tmp_path: Path) -> None:
    text = "Tag;Laden;Umsatz\n" + "".join(
        f"{1 + n % 28:02d}.{1 + n // 28:02d}.2024;L{m};1.{n % 900 + 100},5\n"
        for m in range(3)
        for n in range(280)
    )
    source = written(tmp_path, "a.csv", text)
    best = fits(Data([source]), "out", {"target": "Umsatz", "entity": "Laden"})[0]

    assert {"decimal": ",", "thousands": "."}.items() <= settings_of(best.sections)[
        "dialect"
    ].items()


def test_a_target_of_words_is_refused(tmp_path: Path) -> None:
    text = READINGS.replace(".25", " low")
    with raised(SettingsError, setting="target"):
        fits(Data([written(tmp_path, "a.csv", text)]), "out", {"target": "sensor"})


def sales(amount: str = "{n}.25", when: str = "2024-{month:02d}-{day:02d}", sep: str = ",") -> str:
    """Lines of a CSV of sales. amount, when: their texts."""
    lines = [sep.join(("when", "customer", "amount"))]
    for n in range(300):
        day = when.format(month=1 + n // 28 % 12, day=1 + n % 28)
        lines.append(f"{day}{sep}c{n % 30}{sep}{amount.format(n=n, of=17 * n, cents=n % 100)}")
    return "\n".join(lines) + "\n"


def proposed(tmp_path: Path, text: str, **options: str) -> dict[str, object]:
    best = fits(Data([written(tmp_path, "sales.csv", text)]), str(tmp_path / "out"), options)[0]

    assert not best.trial.why
    return settings_of(best.sections)


@pytest.mark.parametrize(
    "title",
    ['Sales of "2024\n\n', "# exported, by me\n# in EUR\n", "Sales,,\n,,\n", "\n\nSales\n"],
)
def test_lines_before_the_line_of_names_are_skipped(title: str, tmp_path: Path) -> None:
    settings = proposed(tmp_path, title + sales())

    assert {"skip_rows": title.count("\n")} == settings["dialect"]
    assert ("when", "customer") == (settings["time"], settings["entity"])


def test_a_damaged_row_makes_no_row_the_line_of_names(tmp_path: Path) -> None:
    rows = "".join(f"{one}{two},Ghent\n" for one in "abcdefgh" for two in "klmnop")
    path = written(tmp_path, "a.csv", f"name,city\nBob,Lier,x\n{rows}")
    with raised(InputError, path=path):
        fits(Data([path]), "out", {})


def test_years_of_two_digits_are_asked_for(tmp_path: Path) -> None:
    text = sales(when="{day:02d}/{month:02d}/24")
    path = written(tmp_path, "sales.csv", text)

    for recipe, more in (("split", {}), ("series", {"target": "amount"}), ("histories", {})):
        with raised(SettingsError, setting="time_format", column="when", remedy="%d/%m/%y"):
            headrace.init(path, recipe=recipe, **more)
    found = headrace.init(path, time_format="%d/%m/%y")
    assert ("when", ("%d/%m/%y",)) == (found.time, found.dialect.time_format)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (sales('"{of:,}"'), {"thousands": ","}),
        (sales('"{n},{cents:02d}"'), {"decimal": ","}),
        (sales("{of:,}", sep=";").replace(",", "."), None),
        (sales('"{n},125"'), {"decimal": ","}),
        (sales('"1{n},125"'), {"decimal": ","}),
        (sales('"1,{n:03d}"'), None),
    ],
)
def test_a_comma_before_three_digits_is_decided_by_all_values_or_asked(
    text: str, expected: dict[str, str] | None, tmp_path: Path
) -> None:
    if expected is not None:
        settings = proposed(tmp_path, text)
        assert (expected, {"amount": "float64"}) == (settings["dialect"], settings["types"])
        return
    with raised(SettingsError, setting="decimal", column="amount"):
        proposed(tmp_path, text)


def test_thousands_beside_decimal_commas_of_another_column_are_asked_for(tmp_path: Path) -> None:
    lines = sales("{of:,}", sep=";").splitlines()
    text = "".join(f"{line};{n},5\n" if n else f"{line};price\n" for n, line in enumerate(lines))
    with raised(SettingsError, setting="decimal", column="amount"):
        proposed(tmp_path, text)


@pytest.mark.parametrize("name", ["book.xlsx", "book.csv"])
def test_a_workbook_is_refused_with_what_hands_it_over(name: str, tmp_path: Path) -> None:
    path = tmp_path / "raw" / name
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("[Content_Types].xml", "")
        book.writestr("xl/workbook.xml", "")

    for source in (path, path.parent):
        with raised(InputError, path=path, remedy="polars.read_excel"):
            headrace.init(source)


def test_one_chat_is_shown_with_its_mask(tmp_path: Path) -> None:
    path = written(tmp_path, "chats.jsonl", CHATS)
    config = str(tmp_path / "c.yaml")
    shown = command("init", path, "--out", str(tmp_path / "out"), "--config", config).stdout

    assert "⟦yes<|im_end|>⟧" in shown
    assert "⟦0?" not in shown


@pytest.mark.parametrize(
    ("text", "setting", "problem"),
    [
        (EVENTS.split("\n", 1)[1], "header", "no line of names"),
        (EVENTS.replace("when", "birth_date", 1), "time", "day of birth"),
        ("x,customer\n" + "".join(f"{1_700_000_000 + 86_400 * n},c{n % 30}\n" for n in range(300)), "time", "seconds since 1970"),
    ],
    ids=["rows for names", "births", "seconds"],
)  # fmt: skip
def test_what_looks_like_something_else_is_asked_about(
    text: str, setting: str | None, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(HeadraceError, match=problem) as caught:
        fits(Data([written(tmp_path, "a.csv", text)]), "out", {})

    assert setting == caught.value.setting


def test_numbers_with_a_unit_stay_texts_and_that_is_said(tmp_path: Path) -> None:
    text = sales("${n}.25")
    best = fits(Data([written(tmp_path, "a.csv", text)]), "out", {})[0]

    assert "amount ('$0.25')" in " ".join(best.trial.warnings)


def test_chats_below_a_title_are_packed(tmp_path: Path) -> None:
    lines = "".join(f"what is {n}?,it is {n} here\n" for n in range(100))
    settings = proposed(tmp_path, f"Questions of 2024\n\nquestion,answer\n{lines}")

    assert ("packed_sequences", {"skip_rows": 2}) == (settings["recipe"], settings["dialect"])


def test_titles_are_found_in_a_compressed_file_too(tmp_path: Path) -> None:
    path = tmp_path / "sales.csv.gz"
    path.write_bytes(gzip.compress(f"Sales of 2024\n\n{sales()}".encode()))
    settings = settings_of(fits(Data([str(path)]), "out", {})[0].sections)

    assert ({"skip_rows": 2}, "when") == (settings["dialect"], settings["time"])


FLOWERS = "".join(f"{5 + n % 9 / 10},{n % 7 / 2},{n % 3},{'abc'[n % 3] * 4}\n" for n in range(90))
PEOPLE = "".join(f"KX{n:04d},{'yes' if n % 2 else 'no'},{20 + n * 7 % 50}\n" for n in range(90))
NUMBERS = "".join(f"{11 + n % 7},{3 + n % 5},9,2\n" for n in range(90))
WORDS = "".join(f"{'ham' if n % 2 else 'spam'}\tThis is message {n} of them.\n" for n in range(90))


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", FLOWERS), ("a.csv", PEOPLE), ("a.tsv", WORDS), ("a.csv", NUMBERS)],
    ids=["fractions", "ids", "repeated texts", "whole numbers"],
)
def test_a_first_row_is_not_taken_for_names_unasked(name: str, text: str, tmp_path: Path) -> None:
    source = written(tmp_path, name, text)
    with raised(SettingsError, setting="header", remedy="first_line"):
        fits(Data([source]), "out", {})

    assert fits(Data([source]), "out", {"header": "first_line", "time": "none"})
    with raised(SettingsError, setting="header", value="yes"):
        headrace.init(source, header="yes")


@pytest.mark.parametrize(
    "names",
    ["country,1990,1995,2010", "x,0,1,2", "wave,900.5,902.5,904.5", "site,q1,q2,pm2.5"],
    ids=["years", "counts", "steps", "words"],
)
def test_names_that_are_numbers_are_names(names: str, tmp_path: Path) -> None:
    text = f"{names}\n" + "".join(f"c{n},{n}.5,{n},{n % 7}\n" for n in range(90))

    assert Data([written(tmp_path, "a.csv", text)]).tables.columns


def test_a_line_of_names_that_comes_again_is_said(tmp_path: Path) -> None:
    with raised(InputError, remedy="remove that row"):
        _ = Data([written(tmp_path, "a.csv", LABELLED + LABELLED)]).tables
