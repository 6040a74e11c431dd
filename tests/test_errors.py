"""An error's fields become words in one place, for Python or for the command line, and survive the way to another process."""

import pickle

import pytest

from headrace.errors import (
    HeadraceError,
    InputError,
    MissingExtra,
    SettingsError,
    setting,
    setting_name,
    spell,
)

FLAGS = {"time": "--time", "train_share": "--train-share", "remainder": "--remainder", "shuffle": "--shuffle", "as_json": "--json"}  # fmt: skip


def in_flags(text: str) -> str:
    return spell(text, FLAGS)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("is empty"), "is empty"),
        (InputError("is empty", path="a.csv"), "a.csv: is empty"),
        (InputError("is empty", path="a.csv", row=1200), "a.csv: row 1,200: is empty"),
        (InputError("is empty", path="a.csv", row="line 7", remedy="correct it"), "a.csv: line 7: is empty; correct it"),
        (
            InputError("not a number", path="a.csv", row=17, column="age", value="x", remedy="correct it"),
            "a.csv: row 17, column 'age' is 'x': not a number; correct it",
        ),
        (SettingsError(setting="time", value=2, remedy="give a name"), "time is 2; give a name"),
        (SettingsError("not a name", setting="time", value=2), "time is 2: not a name"),
        (SettingsError("a is wrong", "b is wrong", path="f.yaml", remedy="mend both"), "f.yaml: a is wrong\nb is wrong; mend both"),
        (SettingsError(remedy="go"), "go"),
        (SettingsError(setting="time", value=None, remedy="give a name"), "time is None; give a name"),
        (InputError("has no date", path="a.csv", row=2, column="day", value=None), "a.csv: row 2, column 'day' is None: has no date"),
        (SettingsError("two columns: a, b", path="f.yaml", setting="time"), "f.yaml: time: two columns: a, b"),
    ],
)  # fmt: skip
def test_given_fields_are_in_the_message(error: HeadraceError, message: str) -> None:
    assert message == str(error)


@pytest.mark.parametrize(
    ("text", "in_python", "on_the_command_line"),
    [
        (f"give {setting('time')}", "give time=", "give --time"),
        (f"{setting_name('train_share')} is 2", "train_share is 2", "--train-share is 2"),
        (f"set {setting('remainder', 'pad', 'drop', 'exact')}", 'set remainder="pad", "drop" or "exact"', "set --remainder pad, drop or exact"),
        (f"set {setting('shuffle', True)}", "set shuffle=True", "set --shuffle"),
        (f"set {setting('train_share', 0.8)}", "set train_share=0.8", "set --train-share 0.8"),
        (f"leave {setting('as_json')} out", "leave as_json= out", "leave --json out"),
        (f"leave {setting('label')} out", "leave label= out", "leave label out"),
        (f"set {setting('lanes', 4)}", "set lanes=4", "set lanes=4"),
        ("a time=2024-01-01/part-0.csv", "a time=2024-01-01/part-0.csv", "a time=2024-01-01/part-0.csv"),
        ("a \ufdee b \ufdef", "a \\ufdee b \\ufdef", "a \\ufdee b \\ufdef"),
    ],
)  # fmt: skip
def test_marked_settings_are_written_for_their_reader(
    text: str, in_python: str, on_the_command_line: str
) -> None:
    assert in_python == str(SettingsError(text))
    assert on_the_command_line == SettingsError(text).words(in_flags)


def test_a_field_is_written_for_its_reader() -> None:
    error = SettingsError(setting="train_share", value=2, remedy=f"or give {setting('time')}")

    assert str(error) == "train_share is 2; or give time="
    assert error.words(in_flags) == "--train-share is 2; or give --time"


def test_the_first_marked_name_of_a_problem_is_the_setting() -> None:
    error = SettingsError(
        f"{setting_name('seed')} has no effect without {setting('shuffle')}", value=3
    )

    assert error.setting == "seed"
    assert str(error) == "seed has no effect without shuffle="
    assert (
        SettingsError(f"leave {setting('seed')} out", setting="seed").words() == "leave seed= out"
    )


def test_a_quoted_error_keeps_its_marks() -> None:
    inner = SettingsError("too large", setting="train_share", value=2)
    outer = SettingsError(f"run.yaml: {inner.marked}")

    assert outer.setting == "train_share"
    assert outer.words(in_flags) == "run.yaml: --train-share is 2: too large"


def test_fields_survive_pickling() -> None:
    for error in (
        InputError("bad", path="a.csv", row=3, column="age", value=[1], remedy="correct it"),
        MissingExtra("torch", "torch"),
        SettingsError(setting="time", value="x"),
        SettingsError(setting="time", value=None),
        SettingsError(setting="time"),
    ):
        again = pickle.loads(pickle.dumps(error))

        assert type(error) is type(again)
        assert vars(error) == vars(again)
        assert str(error) == str(again)


def test_fields_are_escaped_and_short_in_the_message_and_exact_in_the_error() -> None:
    nasty = "a\x1b[31mb" + "x" * 100_000
    error = InputError("bad", path=nasty, column=nasty, value=nasty, remedy=nasty)

    assert "\x1b" not in str(error)
    assert len(str(error)) < 4_000
    assert nasty == error.path == error.column == error.value == error.remedy


def test_the_remedy_names_settings_as_python_writes_them() -> None:
    error = InputError("no date", remedy=f"give {setting('time_format', '%d.%m.%Y')}")

    assert 'give time_format="%d.%m.%Y"' == error.remedy
    assert error.remedy in str(error)
