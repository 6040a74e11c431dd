"""Point `splits/` at a finished run: the one rename after which readers of paths see another run.

Every step before the rename is invisible, every step after it removes what nobody reads. A process that dies anywhere
leaves the old run or the new one, and preparing again finishes the rest.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.dataset.manifest import Manifest
from headrace.dataset.pointer import SPLITS, beside_links, leads_into_a_run, own_links
from headrace.errors import StoreError
from headrace.run.events import Note, OnEvent, Step
from headrace.storage import local


def check_pointer(out: Path) -> None:
    """Refuse an output where the pointer could not be made: before the work, so that no work is lost.

    Raises `StoreError` that names what is in the way, or says that the file system has no symbolic links.
    """
    pointer = out / SPLITS
    if pointer.is_symlink():
        if not leads_into_a_run(pointer, out):
            raise _in_the_way(pointer)
        return
    if pointer.is_dir():
        for entry in sorted(pointer.iterdir()):
            if not leads_into_a_run(entry, out) and not _is_stray(entry):
                raise _in_the_way(entry)
    elif pointer.exists():
        raise _in_the_way(pointer)
    probe = local.temporary_for(pointer)
    try:
        os.symlink(SPLITS, probe)
        probe.unlink()
    except OSError as error:
        raise StoreError(
            f"{out}: cannot hold symbolic links ({error.strerror}), and splits/ is one; choose an output directory on "
            "another file system"
        ) from error


def make_own_links(run: Path, manifest: Manifest) -> None:
    """Make `runs/<run_id>/splits/`, durably. Runs of earlier versions get theirs when they are pointed at."""
    links = own_links(manifest)
    directory = local.make_directory(run / SPLITS)
    with local.storing(directory):
        for name, place in sorted(manifest.facts["directories"].items()):
            local.make_directory(run / place)  # a split without rows
            if name in links:
                local.link_to(directory / name, links[name])
    local.sync_directory(directory)
    local.sync_directory(run)


def point_at(out: Path, run: Path, manifest: Manifest, on_event: OnEvent) -> None:
    """Let `splits`, and every file that the run publishes beside it, lead to this run."""
    make_own_links(run, manifest)
    on_event(Step("links.made", SPLITS))
    pointer, beside = out / SPLITS, beside_links(manifest)
    with _alone(out):
        check_pointer(out)
        for name in sorted(beside):
            if os.path.lexists(out / name) and not leads_into_a_run(out / name, out):
                raise _in_the_way(out / name)
        moved = _move_aside(pointer, on_event)
        _remove_links(out, lambda link: link.name not in beside and not os.readlink(link).startswith(f"{SPLITS}/"))
        for name, text in sorted(beside.items()):
            local.link_to(out / name, text)  # leads nowhere, or to the old run, until the next line
        on_event(Step("beside.linked", SPLITS))
        local.link_to(pointer, f"runs/{run.name}/{SPLITS}")
        local.sync_directory(out)
        on_event(Step("splits.linked", str(pointer)))
        _remove_links(out, lambda link: link.name not in beside)
        if moved is not None and not remove_single_links(moved):
            on_event(
                Note("warning", f"{moved}: holds files that came into splits/ meanwhile; move them where you want")
            )


def remove_single_links(moved: Path) -> bool:
    """Remove a directory of links that an earlier version made; whether it is gone. Other files stay, and it with them.

    moved: that directory, beside where it was, or below any other name of the same parent.
    """
    with local.storing(moved):
        for entry in sorted(moved.iterdir()):
            if leads_into_a_run(entry, moved.parent) or _is_stray(entry):
                entry.unlink(missing_ok=True)
        with suppress(OSError):
            moved.rmdir()
    return not moved.exists()


def _remove_links(out: Path, which: Callable[[Path], bool]) -> None:
    """Remove links beside `splits` that headrace made. Those of earlier versions do not follow the pointer."""
    with local.storing(out):
        for entry in sorted(out.iterdir()):
            if entry.name != SPLITS and leads_into_a_run(entry, out) and which(entry):
                entry.unlink(missing_ok=True)


def _move_aside(pointer: Path, on_event: OnEvent) -> Path | None:
    """Take the directory of single links away whole: one rename cannot put a link in its place.

    For a moment there is no `splits` at all, which readers notice; a half-changed directory they would not.
    """
    if pointer.is_symlink() or not pointer.is_dir():
        return None
    moved = local.temporary_for(pointer)
    with local.storing(pointer):
        os.rename(pointer, moved)
    on_event(Step("splits.moved", SPLITS))
    return moved


def _is_stray(entry: Path) -> bool:
    return entry.is_symlink() and entry.name.startswith(local.TEMP_PREFIX)


def _in_the_way(path: Path) -> StoreError:
    return StoreError(f"{path}: is in the way of a link of that name; move it, or choose another --out")


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Wait for other processes that point `splits` at their runs: each makes all its links, then the next one does."""
    with local.storing(out):
        descriptor = os.open(out / "runs", os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
