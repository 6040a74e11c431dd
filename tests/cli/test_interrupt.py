"""An interrupt inside a callback whose exceptions are ignored is heard all the same."""

import subprocess
import sys

import pytest

LOST = """
import signal, sys, time, weakref
from headrace.cli.outermost import resend_sigint

class Thing: pass

def lose(_):
    signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with resend_sigint():
        things = [Thing() for _ in range(3)]
        callbacks = [weakref.ref(thing, lose) for thing in things[:1]]
        things.clear()
        time.sleep(240)
except KeyboardInterrupt:
    print("heard")
"""

COMMAND = """
import sys
from headrace import cli
from headrace.cli import application

def wait() -> None:
    raise KeyboardInterrupt

application._COMMANDS["This machine"]["wait"] = "__main__:wait"
sys.argv = ["headrace", "wait"]
cli.main()
"""

LATE = """
import signal, threading, time
from headrace.cli.outermost import resend_sigint

kill, about_to = signal.pthread_kill, threading.Event()

def late(*arguments):
    about_to.set()
    time.sleep(1.5)  # a machine with more to do
    kill(*arguments)

signal.pthread_kill = late
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with resend_sigint():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            about_to.wait()
except KeyboardInterrupt:
    time.sleep(2)
    print("ended")
"""


@pytest.mark.slow
def test_nobody_is_reminded_after_the_end_of_a_reminder_that_was_under_way():
    done = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, timeout=250, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_an_interrupt_that_is_lost_in_a_weak_reference_comes_again():
    done = subprocess.run(
        [sys.executable, "-c", LOST], capture_output=True, text=True, timeout=250, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "heard\n", "")


@pytest.mark.slow
def test_other_errors_that_are_ignored_are_still_reported():
    code = LOST.replace("signal.raise_signal(signal.SIGINT)", "1 / 0").replace(
        "time.sleep(240)", "print('on')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False
    )

    assert done.stdout == "on\n"
    assert "ZeroDivisionError" in done.stderr


def test_an_interrupted_command_says_that_it_can_go_on() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, timeout=250
    )

    assert (130, "") == (ended.returncode, ended.stdout)
    assert (
        "error: interrupted; finished shards are kept, run the same command again to continue\n"
        == ended.stderr
    )
