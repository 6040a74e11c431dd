"""Say in one sentence what the machine ran out of: memory, threads or open files.

A limit of the address space (`ulimit -v`, RLIMIT_AS) counts what libraries reserve, far more than
they use. Below `least_address_space` some of them end the process from inside, which nothing can
catch, so that much is asked for at the start. Above it, what they raise is of many types:
`MemoryError`, `ImportError` of a library that could not be mapped, panics of Polars, errors of
Arrow, and errors that follow from a library that was loaded in part.

Nobody can say it where the kernel ends the process (SIGKILL at the limit of a cgroup).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

from headrace.errors import StoreError

_GIB = 1 << 30
_LEAST = 5 * _GIB // 2  # with 2.2 GiB on two cores Polars still ended the process
_LEAST_FOR_CORE = 32 << 20  # stacks and heaps of the threads that libraries start for it
_TEXTS = re.compile(
    r"cannot allocate memory|failed to map segment|malloc of size|bad_alloc|out of memory"
    r"|memory allocation|resource temporarily unavailable|could not spawn thread"
    r"|can't start new thread|failed to launch worker thread|cannot join thread before it is"
    r"|static tls block",
    re.IGNORECASE,
)
_OF_THREADS = re.compile("thread|temporarily unavailable", re.IGNORECASE)


def address_limit() -> int | None:
    """Return the bytes of address space that this process may use; None without a limit."""
    return _limit("RLIMIT_AS")


def least_address_space() -> int:
    """Return the bytes of address space that commands and streams need on this machine."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    return _LEAST + cores * _LEAST_FOR_CORE


def refuse_small_address_space() -> None:
    """Raise `StoreError` if the limit of the address space is too small to load the libraries."""
    limit = address_limit()
    if limit is not None and limit < least_address_space():
        raise StoreError(
            f"out of memory: this process may use {_size(limit)} of address space (ulimit -v), and"
            f" the libraries that it needs reserve {_size(least_address_space())}",
            remedy="raise that limit, or limit the memory that is used, by a cgroup",
        )


def shortage(error: BaseException) -> str | None:
    """Return a sentence if the error, or one that led to it, says that the machine refused
    something; None if it says anything else.
    """
    for cause in _chain(error):
        sentence = _sentence(cause)
        if sentence is not None:
            return sentence
    return None


def is_likely(error: BaseException) -> bool:
    """Return whether an unexpected error of a library is likely to follow from a limit of the
    address space.
    """
    limit = address_limit()
    return (
        limit is not None
        and limit < 4 * least_address_space()
        and not isinstance(error, AssertionError)
    )


def memory_sentence() -> str:
    """Say that memory ran out, how much this process may use, and what to do."""
    limit = address_limit()
    if limit is None:
        return "the machine ran out of memory; use fewer workers, or a machine with more"
    return (
        f"out of memory: this process may use {_size(limit)} of address space (ulimit -v); raise"
        " that limit, or use fewer workers"
    )


def _sentence(error: BaseException) -> str | None:
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.EMFILE, errno.ENFILE):
        return (
            f"too many open files: this process may open {_count('RLIMIT_NOFILE')} (ulimit -n);"
            " raise that limit, or use fewer workers"
        )
    if isinstance(error, MemoryError) or code == errno.ENOMEM:
        return memory_sentence()
    text = str(error)
    if isinstance(error, OSError) or not _TEXTS.search(text):
        return None
    if _OF_THREADS.search(text) and address_limit() is None:
        return (
            f"no more threads: this user may have {_count('RLIMIT_NPROC')} processes and threads"
            " (ulimit -u), fewer if a container says so; raise that limit, or use fewer workers"
        )
    return memory_sentence()


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    left: BaseException | None = error
    while left is not None and id(left) not in seen:
        seen.add(id(left))
        yield left
        left = left.__cause__ or left.__context__


def _limit(name: str) -> int | None:
    try:
        import resource

        soft = int(resource.getrlimit(getattr(resource, name))[0])
    except (ImportError, AttributeError, OSError, ValueError):
        return None
    return None if soft == resource.RLIM_INFINITY else soft


def _count(name: str) -> str:
    limit = _limit(name)
    return "any number of" if limit is None else f"{limit:,}"


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
