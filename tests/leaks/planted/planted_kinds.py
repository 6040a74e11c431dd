"""Kinds of leaks that are planted in two splits, and which word of a scan names each.

`named`: the scan says so. `alarm`: it also fails the command. `not seen`: known not to be found; the
page of leaks says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import numpy as np

from headrace.stream.audit.leaks import LeakReport

Columns = dict[str, Any]
TRAIN, TEST = 400, 150
ITEM = "a farmer sells nine eggs at the market every day for two dollars each how much is made"


def clean(rows: int, seed: int) -> Columns:
    """Rows of customers, with nothing in common but what chance gives."""
    rng = np.random.default_rng(seed)
    words = np.array([f"word{n}" for n in range(3_000)])
    return {
        "who": [f"c{seed}x{n // 2}" for n in range(rows)],
        "email": [f"p{seed}x{n // 2}@example.com" for n in range(rows)],
        "x": rng.normal(size=rows),
        "y": rng.lognormal(size=rows),
        "text": [" ".join(rng.choice(words, 14)) for _ in range(rows)],
        "label": rng.integers(0, 2, rows),
    }


@dataclass(frozen=True)
class Kind:
    """A planted leak. plant: changes the splits in place. seen: whether a report names it."""

    name: str
    verdict: Literal["alarm", "named", "not seen"]
    plant: Callable[[Columns, Columns], None]
    seen: Callable[[LeakReport], bool] = lambda report: report.worst > 0.01
    asked: Mapping[str, Any] = field(default_factory=dict)


def copied(*names: str, change: Callable[[Any], Any] = lambda value: value) -> Any:
    """Copy values of the first train rows over half of test, changed."""

    def plant(train: Columns, test: Columns) -> None:
        for name in names or ("x", "y", "text", "email"):
            values = list(test[name])
            values[: TEST // 2] = [change(value) for value in list(train[name])[: TEST // 2]]
            test[name] = values

    return plant


def rows_copied(**changes: Callable[[Any], Any]) -> Any:
    """Copy whole rows but for the customer, with some columns changed."""

    def plant(train: Columns, test: Columns) -> None:
        for columns in (train, test):
            del columns["email"]
        for name in ("x", "y", "text"):
            copied(name, change=changes.get(name, lambda value: value))(train, test)

    return plant


def numbered(name: str, value: Callable[[int], Any]) -> Any:
    """Copy rows, and give each row of both splits a value of its own."""

    def plant(train: Columns, test: Columns) -> None:
        rows_copied()(train, test)
        train[name] = [value(n) for n in range(TRAIN)]
        test[name] = [value(TRAIN + n) for n in range(TEST)]

    return plant


def renamed(change: Callable[[str], str], own: str = "Customer-{:04d}") -> Any:
    """Let half of the customers of test be customers of train under another spelling."""

    def plant(train: Columns, test: Columns) -> None:
        train["who"] = [own.format(n // 2) for n in range(TRAIN)]
        test["who"] = [change(name) for name in train["who"][: TEST // 2]] + test["who"][
            TEST // 2 :
        ]

    return plant


def suffixed(own: str, other: str) -> Any:
    """Copy rows whose words end in one form of a text in train, and in another form in test."""

    def plant(train: Columns, test: Columns) -> None:
        train["text"] = [
            " ".join(f"{word}{own}" for word in text.split()) for text in train["text"]
        ]
        rows_copied(text=lambda text: text.replace(own, other))(train, test)

    return plant


def converted(**changes: Callable[[Any], Any]) -> Any:
    """Copy rows, and change columns of all rows of test."""

    def plant(train: Columns, test: Columns) -> None:
        rows_copied()(train, test)
        for name, change in changes.items():
            test[name] = [change(value) for value in test[name]]

    return plant


def dated(value: Callable[[datetime], Any]) -> Any:
    """Give each row a time, and a date of a joined value that is not before it."""

    def plant(train: Columns, test: Columns) -> None:
        for columns, year in ((train, 2023), (test, 2024)):
            rows = range(len(columns["label"]))
            columns["when"] = [datetime(year, 1, 1, 10) + timedelta(hours=n) for n in rows]
            columns["day"] = [value(when) for when in columns["when"]]

    return plant


def from_files(name: str, value: Callable[[int, int], Any]) -> Any:
    """Say in a column of lineage which file, or which row of it, a row came from."""

    def plant(train: Columns, test: Columns) -> None:
        for columns in (train, test):
            labels = columns["label"].tolist()
            columns[name] = [value(label, n) for n, label in enumerate(labels)]

    return plant


def in_fields(train: Columns, test: Columns) -> None:
    """Put the label into a field of a field."""
    for columns in (train, test):
        labels = columns["label"].tolist()
        columns["meta"] = [{"n": n, "out": {"y": "ny"[y]}} for n, y in enumerate(labels)]


def in_paths(train: Columns, test: Columns) -> None:
    """Keep the rows of each class in a folder."""
    for split, columns in (("train", train), ("test", test)):
        labels = columns["label"].tolist()
        columns["path"] = [
            f"data/{['cats', 'dogs'][y]}/{split}{n}.jpg" for n, y in enumerate(labels)
        ]


def mails_in_fields(train: Columns, test: Columns) -> None:
    for columns in (train, test):
        columns["user"] = [{"mail": mail} for mail in columns.pop("email")]
    copied("user")(train, test)


def days_in_fields(train: Columns, test: Columns) -> None:
    dated(lambda when: {"of": when.date()})(train, test)


def followed(train: Columns, test: Columns) -> None:
    """Give each row the label of the next one."""
    for columns in (train, test):
        columns["hint"] = np.roll(columns["label"], -1)


def exchanged(train: Columns, test: Columns) -> None:
    """Copy rows, with two columns of test exchanged."""
    rows_copied()(train, test)
    test["x"], test["y"] = test["y"], test["x"]


def vectors(train: Columns, test: Columns) -> None:
    """Copy lists of numbers, with noise."""
    for columns, seed in ((train, 1), (test, 2)):
        for name in ("x", "y", "text", "email"):
            del columns[name]
        rows = len(columns["label"])
        columns["vector"] = list(np.random.default_rng(seed).normal(size=(rows, 8)))
    copied("vector", change=lambda vector: vector + 1e-9)(train, test)


def later_clock(train: Columns, test: Columns) -> None:
    """Copy rows with a time that is nine hours later in test."""
    for columns, seed in ((train, 1), (test, 2)):
        seconds = np.random.default_rng(seed).integers(0, 10**7, len(columns["label"])).tolist()
        columns["at"] = [datetime(2024, 1, 1) + timedelta(seconds=value) for value in seconds]
    rows_copied()(train, test)
    copied("at", change=lambda at: at + timedelta(hours=9))(train, test)


def in_order_of_labels(train: Columns, test: Columns) -> None:
    for columns in (train, test):
        columns["label"] = np.sort(columns["label"])


def born(train: Columns, test: Columns) -> None:
    """Let a first name and a day of birth together say who a customer of both splits is."""
    for columns, first in ((train, 0), (test, 0)):
        rows = range(len(columns["label"]))
        columns["first_name"] = [f"name {(first + n) % 40}" for n in rows]
        columns["birthday"] = [f"{1950 + (first + n) // 40}-05-0{1 + n % 9}" for n in rows]


def told(value: Callable[[int, int], Any]) -> Any:
    """Add a column that is made from the label."""

    def plant(train: Columns, test: Columns) -> None:
        for columns in (train, test):
            labels = columns["label"].tolist()
            columns["hint"] = [value(label, n) for n, label in enumerate(labels)]

    return plant


def quoted(change: Callable[[str], str]) -> Any:
    """Put an item of a benchmark into a row of train."""

    def plant(train: Columns, test: Columns) -> None:
        train["text"][7] = f"Somebody asked: {change(ITEM)}? Nobody knew."

    return plant


def linked(change: Callable[[str], str], column: str = "email") -> Any:
    """Let new customers of test have a value of customers of train."""

    def plant(train: Columns, test: Columns) -> None:
        if column != "email":
            train[column] = [f"{column} {n // 2}" for n in range(TRAIN)]
            test[column] = [f"{column} {1_000 + n // 2}" for n in range(TEST)]
        copied(column, change=change)(train, test)

    return plant


def spelled(report: LeakReport) -> bool:
    return report.spellings is not None and report.spellings.separate > 10


def same_name(report: LeakReport) -> bool:
    return report.near_ids is not None and report.near_ids.separate > 10


def hinted(report: LeakReport) -> bool:
    return "hint" in {telling.column for telling in report.telling}


def found(report: LeakReport) -> bool:
    return bool(report.overlaps)


def links(report: LeakReport) -> bool:
    return bool(report.links)


def late(report: LeakReport) -> bool:
    return "day" in {value.column for value in report.late_values}


def from_lineage(report: LeakReport) -> bool:
    return any(telling.column.startswith("source_") for telling in report.telling)


def near(report: LeakReport) -> bool:
    return report.near is not None and report.near.shared[0].rows > 10


def by_path(report: LeakReport) -> bool:
    return "path" in {telling.column for telling in report.telling}


def by_field(report: LeakReport) -> bool:
    return "meta.out.y" in {telling.column for telling in report.telling}


def late_field(report: LeakReport) -> bool:
    return "day.of" in {value.column for value in report.late_values}


LABEL = {"label": "label"}
TIME = {"time": "when"}
NEAR = {"near": 0.8}
AGAINST = {"against": True}
CONTENT = {"content": ["text"]}


def swap_word(text: str) -> str:
    return text.replace(text.split()[-1], "another")


def shuffle_words(text: str) -> str:
    return " ".join(sorted(text.split()))


def same_customers(train: Columns, test: Columns) -> None:
    test["who"][:20] = train["who"][:20]


def sums(train: Columns, test: Columns) -> None:
    for columns in (train, test):
        noise = np.random.default_rng(3).normal(size=len(columns["label"]))
        columns["a"], columns["b"] = noise, columns["label"] - noise


def random_hint(label: int, n: int) -> Any:
    return label if n % 5 else 1 - label


KINDS = (
    Kind("whole rows", "alarm", rows_copied()),
    Kind("whole rows with a row number", "alarm", numbered("row_id", int)),
    Kind("whole rows with a uuid", "alarm", numbered("uuid", lambda n: f"a{n * 7919:x}-{n}")),
    Kind("whole rows with a url", "alarm", numbered("url", lambda n: f"https://x.org/{n}")),
    Kind("whole rows with a free remark", "not seen", numbered("note", lambda n: f"note of {n}")),
    Kind("texts alone", "alarm", copied("text"), asked=CONTENT),
    Kind("numbers with noise of 1e-9", "alarm", rows_copied(x=lambda v: v + 1e-9)),
    Kind("numbers in float32", "alarm", rows_copied(y=lambda v: float(np.float32(v)))),
    Kind("numbers rounded to nine places", "alarm", rows_copied(x=lambda v: round(v, 9))),
    Kind("numbers of some rows in other units", "not seen", rows_copied(x=lambda v: 1.8 * v + 32)),
    Kind("numbers of a split in other units", "alarm", converted(x=lambda v: 1.8 * v + 32)),
    Kind(
        "numbers of a split in rounded other units",
        "alarm",
        converted(x=lambda v: round(1.8 * v + 32, 2)),
    ),
    Kind("numbers of a split with a changed sign", "alarm", converted(y=lambda v: -v)),
    Kind(
        "all numbers of a split in other units",
        "alarm",
        converted(x=lambda v: (v - 3.7) / 2.9, y=lambda v: 100 * v),
    ),
    Kind(
        "numbers of a split on another scale", "not seen", converted(y=lambda v: float(np.cbrt(v)))
    ),
    Kind("numbers with noise of 1 %", "not seen", rows_copied(x=lambda v: v * 1.01 + 0.01)),
    Kind("texts in other case", "alarm", rows_copied(text=str.upper), near, NEAR),
    Kind(
        "texts with blanks", "alarm", rows_copied(text=lambda t: t.replace(" ", "  ")), near, NEAR
    ),
    Kind("texts with punctuation", "alarm", rows_copied(text=lambda t: f"*{t}!*"), near, NEAR),
    Kind("texts with underscores", "alarm", rows_copied(text=lambda t: f"_{t}_"), near, NEAR),
    Kind(
        "texts with zero-width characters",
        "alarm",
        rows_copied(text=lambda t: t.replace("o", "o\u200b")),
        near,
        NEAR,
    ),
    Kind("texts in Turkish capitals", "alarm", suffixed("ışi", "IŞİ"), near, NEAR),
    Kind("texts with ligatures", "alarm", suffixed("fi", "\ufb01"), near, NEAR),
    Kind(
        "texts with marks of direction",
        "alarm",
        rows_copied(text=lambda t: t.replace(" ", " \u200f")),
        near,
        NEAR,
    ),
    Kind(
        "texts with variation selectors",
        "alarm",
        rows_copied(text=lambda t: t.replace("o", "o\ufe0f\U000e0101")),
        near,
        NEAR,
    ),
    Kind(
        "texts with unseen fillers",
        "alarm",
        rows_copied(text=lambda t: t.replace("o", "o\u034f\u3164")),
        near,
        NEAR,
    ),
    Kind("copies in other case, not near", "alarm", rows_copied(text=str.upper)),
    Kind("copies with blanks around texts", "alarm", rows_copied(text=lambda t: f" {t} ")),
    Kind("copies with two columns exchanged", "not seen", exchanged),
    Kind("copies with times nine hours later", "not seen", later_clock),
    Kind("vectors with noise of 1e-9", "not seen", vectors),
    Kind(
        "texts with look-alike letters",
        "alarm",
        rows_copied(text=lambda t: t.replace("o", "\u043e")),
        near,
        NEAR,
    ),
    Kind(
        "texts with hyphens at the ends of lines",
        "not seen",
        rows_copied(text=lambda t: t.replace("o", "o-\n")),
        near,
        NEAR,
    ),
    Kind(
        "texts in full width",
        "alarm",
        rows_copied(text=lambda t: t.replace("w", "\uff57")),
        near,
        NEAR,
    ),
    Kind("texts with one word changed", "alarm", rows_copied(text=swap_word), near, NEAR),
    Kind(
        "texts of the same words in order", "not seen", rows_copied(text=shuffle_words), near, NEAR
    ),
    Kind("texts cut in half", "not seen", rows_copied(text=lambda t: t[: len(t) // 2]), near, NEAR),
    Kind("customers of train", "named", same_customers, lambda r: r.same_entities["test"] > 5),
    Kind("names in other case", "alarm", renamed(str.upper), same_name),
    Kind("names with blanks", "alarm", renamed(lambda n: f" {n} "), same_name),
    Kind("names in full width", "alarm", renamed(lambda n: n.replace("C", "\uff23")), same_name),
    Kind(
        "names with look-alike letters",
        "alarm",
        renamed(lambda n: n.replace("o", "\u043e").replace("e", "\u0435")),
        same_name,
    ),
    Kind("names with a check digit", "not seen", renamed(lambda n: f"{n}-7"), spelled),
    Kind("names with zero-width", "alarm", renamed(lambda n: f"{n}\u200b"), same_name),
    Kind(
        "names in Turkish capitals",
        "alarm",
        renamed(lambda n: n.replace("i", "\u0130").upper(), "inci-{:04d}"),
        same_name,
    ),
    Kind("numbers of customers with a blank", "alarm", renamed(lambda n: f"{n} ", "{}"), same_name),
    Kind("numbers of customers with a point", "named", renamed(lambda n: f"{n}.0", "{}"), spelled),
    Kind("numbers of customers with a zero", "named", renamed(lambda n: f"0{n}", "{}"), spelled),
    Kind("names with other hyphens", "named", renamed(lambda n: n.replace("-", "_")), spelled),
    Kind("names without hyphens", "named", renamed(lambda n: n.replace("-", "")), spelled),
    Kind("names without leading zeros", "named", renamed(lambda n: n.replace("-0", "-")), spelled),
    Kind("names with accents", "named", renamed(lambda n: n.replace("u", "ú")), spelled),
    Kind("names with a typing error", "not seen", renamed(lambda n: n.replace("s", "z")), spelled),
    Kind("an e-mail address", "named", linked(str), links),
    Kind("an e-mail address in a field of a struct", "named", mails_in_fields, links),
    Kind("an e-mail address in other case", "named", linked(str.upper), links),
    Kind("a device", "named", linked(str, "device"), links),
    Kind("a household", "named", linked(str, "address"), links),
    Kind("a first name and a day of birth", "not seen", born, links),
    Kind("an e-mail address at another provider", "not seen", linked(lambda m: f"{m}.org"), links),
    Kind("the label as a word", "named", told(lambda y, n: ["no", "yes"][y]), hinted, LABEL),
    Kind("the label as a number", "named", told(lambda y, n: y + n / 1e4), hinted, LABEL),
    Kind(
        "the label as text of numbers",
        "named",
        told(lambda y, n: f"{y + n / 1e4:.6f}"),
        hinted,
        LABEL,
    ),
    Kind(
        "the label as numbers with gaps",
        "named",
        told(lambda y, n: f"{y + n / 1e4:.6f}" if n % 30 else "n/a"),
        hinted,
        LABEL,
    ),
    Kind(
        "the label as a time",
        "named",
        told(lambda y, n: datetime(2024, 1 + y, 1 + n % 28, n % 24, n % 60)),
        hinted,
        LABEL,
    ),
    Kind(
        "the label as a missing value",
        "named",
        told(lambda y, n: None if y else n / 7),
        hinted,
        LABEL,
    ),
    Kind(
        "the label as the file of a row",
        "named",
        from_files("source_shard", lambda y, n: ["no.csv", "yes.csv"][y]),
        from_lineage,
        LABEL,
    ),
    Kind(
        "the label as the number of a row",
        "named",
        from_files("source_row", lambda y, n: 1_000 * y + n),
        from_lineage,
        LABEL,
    ),
    Kind("the label as the order of rows", "not seen", in_order_of_labels, hinted, LABEL),
    Kind("the label inside a text", "named", told(lambda y, n: f"row {n}, {y}"), hinted, LABEL),
    Kind("the label in the path of a file", "named", in_paths, by_path, LABEL),
    Kind("the label in a field of a struct", "named", in_fields, by_field, LABEL),
    Kind("the label in a list", "not seen", told(lambda y, n: ["a", f"class {y}"]), hinted, LABEL),
    Kind("the label of the next row", "not seen", followed, hinted, LABEL),
    Kind("the label in two columns together", "not seen", sums, hinted, LABEL),
    Kind("the label four times of five", "not seen", told(random_hint), hinted, LABEL),
    Kind("a total of the same day", "named", dated(datetime.date), late, TIME),
    Kind(
        "a total of the same day, as midnight",
        "named",
        dated(lambda when: datetime(when.year, when.month, when.day)),
        late,
        TIME,
    ),
    Kind(
        "a total of the same day, as a number",
        "named",
        dated(lambda when: int(when.strftime("%Y%m%d"))),
        late,
        TIME,
    ),
    Kind("a total of the same day, in a field", "named", days_in_fields, late_field, TIME),
    Kind("a value of the same instant", "named", dated(lambda when: when), late, TIME),
    Kind(
        "a value of an hour later, in seconds since 1970",
        "named",
        dated(lambda when: int(when.replace(tzinfo=UTC).timestamp()) + 3_600),
        late,
        TIME,
    ),
    Kind(
        "a total of the same day, as 31.12.2024",
        "not seen",
        dated(lambda when: when.strftime("%d.%m.%Y")),
        late,
        TIME,
    ),
    Kind("an item of a benchmark", "alarm", quoted(str), found, AGAINST),
    Kind("an item in upper case", "alarm", quoted(str.upper), found, AGAINST),
    Kind(
        "an item in Markdown",
        "alarm",
        quoted(lambda t: t.replace("eggs", "_eggs_")),
        found,
        AGAINST,
    ),
    Kind(
        "an item with soft hyphens",
        "alarm",
        quoted(lambda t: t.replace("mar", "mar\u00ad")),
        found,
        AGAINST,
    ),
    Kind(
        "a passage of an item", "alarm", quoted(lambda t: " ".join(t.split()[1:15])), found, AGAINST
    ),
    Kind(
        "an item in other words",
        "not seen",
        quoted(lambda t: " so ".join(t.split())),
        found,
        AGAINST,
    ),
)
