"""The fast tests beside the lowest releases that pyproject.toml allows, or beside the newest: `make lowest`, `newest`.

`make attacks` runs only the attacks on templates and fitted pipelines, beside the lowest releases of the two libraries
that stop them. It takes a minute or two, so every submission passes it.

Lowest are the dependencies of the core and of the extras for users, each at its bound, or at the lowest release above it
that gets along with the others; tools of the tests, and what the dependencies need in turn, are the newest that fit. torch is no exception in either: where no index offers its small CPU
build of that release, Linux gets the CUDA build, some gigabytes.
"""

import re
import sys
import tomllib

from environments import BUILD, ROOT, fresh, install, run, uv

TESTS = [
    "tests/cli",
    "tests/dataset",
    "tests/engine",
    "tests/formats",
    "tests/gate",
    "tests/histories",
    "tests/packing",
    "tests/run/test_prepare.py",
    "tests/series",
    "tests/storage",
    "tests/stream/test_lightning.py",
    "tests/stream/test_loader.py",
    "tests/stream/test_options.py",
    "tests/stream/test_state.py",
    "tests/test_cli.py",
    "tests/test_digest.py",
    "tests/test_public.py",
]
ATTACKS = [
    "tests/recipes/packed_sequences/test_template.py",
    "tests/recipes/packed_sequences/test_template_attacks.py",
    "tests/recipes/series/test_skops_attacks.py",
]
STOPS_THEM = ("jinja2", "skops")
DEVELOPERS = {"test", "fuzz", "lint", "docs", "bench", "package"}


def main(which: str) -> None:
    """Makes the environment, says what is in it, and runs the fast tests there."""
    limits = []
    pins = []
    if which == "attacks":
        pins = [pin for pin in lower_bounds() if pin.partition("==")[0] in STOPS_THEM]
    elif which == "lowest":
        pins = lowest_together()
    if pins:
        BUILD.mkdir(parents=True, exist_ok=True)
        limits.append(BUILD / f"{which}.txt")
        limits[-1].write_text("".join(f"{line}\n" for line in pins))
        print("lowest:", *pins, flush=True)
    python = fresh(which)
    if which == "attacks":
        install(
            python,
            "-e",
            f"{ROOT}[chat,series]",
            "pytest",
            "pytest-timeout",
            "hypothesis",
            constraints=limits,
        )
        run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not faults", *ATTACKS)
        return
    install(python, "-e", f"{ROOT}[test]", constraints=limits)
    # Old releases use what new ones of others call deprecated; that is theirs to mend, and theirs are mended.
    lenient = (
        ["-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"]
        if which == "lowest"
        else []
    )
    run(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not faults", *lenient, *TESTS
    )


def lowest_together() -> list[str]:
    """A pin for each of `lower_bounds` that all the extras and the tests can have at once.

    An extra may need a later release of what another extra has a lower bound for, as transformers does of tokenizers.
    """
    found = run(
        *(uv(), "pip", "compile", "--quiet", "--no-header", "--no-annotate"),
        *("--resolution", "lowest-direct", "--python", sys.executable, "--extra", "test"),
        "pyproject.toml",
        quiet=True,
    )
    ours = {canonical(pin) for pin in lower_bounds()}
    return [line for line in found.splitlines() if canonical(line) in ours]


def canonical(pin: str) -> str:
    """The name in a pin as indexes spell it."""
    return re.sub(r"[-_.]+", "-", pin.partition("==")[0].strip()).lower()


def lower_bounds() -> list[str]:
    """A pin for each bound of the core and of the extras for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [
        group for name, group in project["optional-dependencies"].items() if name not in DEVELOPERS
    ]
    asked = {each for group in (project["dependencies"], *groups) for each in group}
    bounds = (
        re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)", each) for each in sorted(asked)
    )
    return [f"{found[1]}=={found[2]}" for found in bounds if found]


if __name__ == "__main__":
    main(sys.argv[1])
