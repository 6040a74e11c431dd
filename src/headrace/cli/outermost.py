"""Turn whatever ends a command into a message on stderr and an exit code.

Imports only modules that Python has already loaded or loads quickly, so that it is ready before
anything can fail.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from headrace.cli.output import in_flags, json_errors
from headrace.credentials import without_secrets
from headrace.errors import HeadraceError
from headrace.printable import printable, printable_lines
from headrace.shortage import (
    address_limit,
    is_likely,
    memory_sentence,
    refuse_small_address_space,
    shortage,
)

_OF_INTERRUPT = 130  # 128 plus the signal's number, as in shells
_INTERRUPTED = "interrupted; finished shards are kept, run the same command again to continue"
_SWITCH = "HEADRACE_TRACEBACK"
_WORD = re.compile(r"[a-z]{1,20}")
_RESEND_S = 0.5  # between two interrupts
_WITHOUT_LIBRARIES = ("doctor", "--help", "-h", "--version")
_owns_process = threading.Event()  # where this process runs nothing but the command


def run_guarded(work: Callable[[], None], arguments: list[str]) -> None:
    """Run a command; describe any error on stderr, and raise nothing but `SystemExit` with the exit
    code.
    """
    try:
        with _warnings_as_lines(), json_errors(arguments, explain), resend_sigint():
            if arguments and not set(_WITHOUT_LIBRARIES).intersection(arguments):
                refuse_small_address_space()
            work()
    except BaseException as error:  # noqa: BLE001 - the outermost handler, which says all of them
        with _interrupts_ignored():
            _, message, code = explain(error)
            if code and not isinstance(error, SystemExit):
                if os.environ.get(_SWITCH) == "1":
                    lines = "".join(traceback.format_exception(error))
                    _write(without_secrets(printable_lines(lines), os.environ))
                _complain(message if code != _OF_INTERRUPT else _INTERRUPTED)
                if code != _OF_INTERRUPT and not _is_expected(error):
                    _complain(_report_hint(arguments), label="")
            elif (
                code == _OF_INTERRUPT
            ):  # typer turns an interrupt inside a command into this code, silently
                _complain(_INTERRUPTED)
        sys.exit(code)


def _is_expected(error: BaseException) -> bool:
    """Return whether an error is no bug of headrace."""
    if isinstance(error, HeadraceError) or (isinstance(error, OSError) and error.strerror):
        return True
    return shortage(error) is not None or is_likely(error)


@contextmanager
def _warnings_as_lines() -> Generator[None]:
    """Within the block, print each warning as one line on stderr, without its source location."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        _complain(_clean(str(message)), label="warning: ")

    before = warnings.showwarning
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


@contextmanager
def _interrupts_ignored() -> Generator[None]:
    """Within the block, ignore interrupts, so that a second Ctrl-C does not cut the message
    short.
    """
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # only the main thread receives interrupts
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def resend_sigint() -> Generator[None]:
    """Within the block, raise a lost interrupt again every half second, until it ends the command.

    Python raises an interrupt wherever the main thread happens to be. It is lost in a callback of a
    weak reference, in a finalizer, or in a library that ignores failed imports.
    """
    main = threading.main_thread()
    if (
        threading.current_thread() is not main
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    done = threading.Event()
    again = threading.Event()
    begun: list[threading.Thread] = []

    def remind() -> None:
        while not done.wait(_RESEND_S) and main.ident is not None:
            again.set()
            signal.pthread_kill(main.ident, signal.SIGINT)  # a real signal also ends blocking waits

    def on_interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        reminded = again.is_set()
        again.clear()
        if not begun and hasattr(signal, "pthread_kill"):
            begun.append(threading.Thread(target=remind, name="headrace-interrupt", daemon=True))
            begun[0].start()
        if not (reminded and caused_by_interrupt(sys.exc_info()[1])):
            raise KeyboardInterrupt

    def quietly(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            report(lost)

    report = sys.unraisablehook
    sys.unraisablehook = quietly
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        done.set()
        try:
            for thread in begun:  # so that it does not interrupt later work
                thread.join()
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = report


def caused_by_interrupt(error: BaseException | None) -> bool:
    """Return True if the error, or one in its chain of contexts, is an interrupt."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


class Explained(NamedTuple):
    """What an error is to the user of a command, and the exit code of a command that it ends."""

    error_type: str
    message: str
    exit_code: int


def explain(error: BaseException) -> Explained:
    """Put an error into words."""
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            code = error.code
        else:
            code = int(error.code is not None)
        error_type = {2: "UsageError", _OF_INTERRUPT: "Interrupted"}.get(code, "Exit")
        return Explained(error_type, "interrupted", code)
    if isinstance(error, HeadraceError):
        return _explain_ours(error)
    if caused_by_interrupt(error):
        return Explained("Interrupted", "interrupted", _OF_INTERRUPT)
    name = type(error).__name__
    lacking = shortage(error)
    if lacking is not None:
        return Explained(name, lacking, 1)
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None:
            prefix = ""
        else:
            prefix = f"{_clean(os.fsdecode(error.filename))}: "
        remedy = "check the path, its permissions and the disk, then run the command again"
        return Explained(name, f"{prefix}{error.strerror}; {remedy}", 1)
    text = _clean(str(error))
    message = f"{name}: {text}" if text else name
    if is_likely(error):
        message = f"{memory_sentence()} (a library failed with {message})"
    return Explained(name, message, 1)


def _explain_ours(error: HeadraceError) -> Explained:
    public = next(
        family for family in type(error).__mro__ if family.__module__ == HeadraceError.__module__
    )
    led_to_it = error.__cause__ or error.__context__
    if led_to_it is not None and address_limit() is not None:
        lacking = shortage(led_to_it)
        if lacking is not None:  # it only looked like damage, or like a package that is missing
            return Explained("StoreError", lacking, 1)
    message = without_secrets(error.words(in_flags), os.environ)
    return Explained(public.__name__, message, error.exit_code)


def _report_hint(arguments: Sequence[str]) -> str:
    """Describe what a bug report needs.

    Arguments are left out because they may name private paths.
    """
    import headrace

    words = []
    for word in arguments[:1]:
        if _WORD.fullmatch(word):
            words.append(word)
    return (
        "This is a bug in headrace. Please report it with the line above and this: headrace"
        f" {headrace.__version__}, command `{' '.join(['headrace', *words])}`, Python"
        f" {platform.python_version()} on {sys.platform}. With {_SWITCH}=1 in the environment, the"
        " command shows the whole traceback."
    )


def _clean(text: str) -> str:
    return without_secrets(printable(text), os.environ)


def _complain(text: str, label: str = "error: ") -> None:
    plain = os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR")
    if label and not plain and sys.stderr is not None and sys.stderr.isatty():
        label = f"\x1b[1;{33 if label.startswith('warning') else 31}m{label}\x1b[0m"
    _write(f"{label}{text}\n")


def _write(text: str) -> None:
    """Write to stderr, even if it is closed, full, or cannot encode some characters."""
    if sys.stderr is None:
        return
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    with suppress(OSError, ValueError):
        sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stderr.flush()


class _HiddenPandas:
    """Finds that pandas is not installed."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - of the protocol
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> None:
        """Raise `ModuleNotFoundError` for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def spare_pandas() -> None:
    """Let Arrow find no pandas, which it imports at its first conversion of Python numbers: a
    quarter of a second for nothing. It looks again for `to_pandas`.

    Does nothing outside a process of our own, or where pandas is already imported: without it Arrow
    takes a Series for any sequence.
    """
    if not _owns_process.is_set() or "pandas" in sys.modules:
        return
    import pyarrow as pa

    hidden = _HiddenPandas()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)


@contextmanager
def quiet_process() -> Generator[None]:
    """Give a process that only runs the command its standard streams and a quiet end.

    If descriptor 0, 1 or 2 were missing, the first opened file would get it, and output of
    libraries would go into data. Once the command is over, an interrupt ends the process at once,
    without a traceback.
    """
    _owns_process.set()
    with suppress(OSError):
        while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(opened, True)
        os.close(opened)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a text stream of the process
    code = 0
    try:
        yield
    except SystemExit as end:
        if isinstance(end.code, int):
            code = end.code
        else:
            code = int(end.code is not None)
    with suppress(ValueError, OSError):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        sys.stdout.flush()
    except (
        OSError,
        ValueError,
    ):  # the reader has gone; without this, Python would print it on stderr
        code = code or 1
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
