"""Drills of file systems and clocks: full, read-only, out of inodes, failing; time that jumps."""

import errno
import json
import shutil
import subprocess
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hpcdl.stack.gc import collect
from hpcdl.stack.modules import read_history
from hpcdl.stack.publish import publish
from hpcdl.stack.release import current_id, release_ids
from tests.drill.clusters import site_file
from tests.drill.harness import HPCDL, Done, Drill
from tests.drill.shim import Fault
from tests.drill.stacks import ACT, releases, sound
from tests.nights import simulated
from tests.small_release import make_release, passing, silent, small_site

FAKETIME = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
)


def commands(bench, place):
    """Commands that change files below `place`, and need no Slurm."""
    night = bench.home / "night.jsonl"
    night.write_text("".join(json.dumps(row.__dict__) + "\n" for row in simulated(1)))
    act = partial(_act, place / "prefix")
    bench.extra["HPCDL_HISTORY"] = f"{place}/history.sqlite"
    render = "job render --site embedded --partition p100 --gpus 1 --no-module -- true"
    ours = {
        "import": f"check history import --site embedded {night}",
        "render": render,
        "ci": f"check ci gitlab --site embedded --output {place}/ci.yml",
    }
    acts = {"publish": act("publish", "b", "new"), "rollback": act("rollback"), "gc": act("gc")}
    return acts | {name: [*HPCDL, *text.split()] for name, text in ours.items()}


def _act(prefix, name, *more):
    return [*ACT, name, str(prefix), *more]


def _filled(bench):
    """Releases, and a place with a copy of them for each attempt."""
    site = releases(bench)
    first = bench.home / "first"
    first.mkdir()
    site.paths.prefix.rename(first / "prefix")
    return first


def _moments(bench):
    """Each command at each of its changes: its name, its words, a fresh place, the change."""
    first, place = _filled(bench), bench.home / "disk"
    bench.extra["HPCDL_CACHE"] = str(place / "cache")
    for number in bench.times():
        name, words = list(commands(bench, place).items())[number % 6]
        _renewed(first, place)
        at = bench.moment(name, number // 6, words, place)
        _renewed(first, place)
        yield name, words, place, at


def broken(bench, error, **how):
    """An error from a change on, or at one: the old state or the new one, and a clear message."""
    for name, words, place, at in _moments(bench):
        before = set(release_ids(small_site(place / "prefix")))
        done = bench.run(words, fault=Fault(place, at, error, **how))
        _judged(bench, name, done, f"{errno.errorcode[error]} at {at}")
        site = small_site(place / "prefix")
        if name != "gc":
            bench.kept(set(release_ids(site)) == before, f"a release, {name}, {at}")
        sound(bench, site, f"{name} with {errno.errorcode[error]} at {at}")
        again = bench.run(words)
        bench.must(again.ok or (name == "rollback" and again.code == 2), f"afterwards: {again}")
        if name in {"publish", "gc", "rollback"}:
            publish(site, release_ids(site)[0], passing, say=silent, verify_again=True)
            collect(site, dict)


def slow(bench):
    """A change takes 5 s: the same command beside it waits; nothing is done twice or by half."""
    for name, words, place, at in _moments(bench):
        late = bench.start(words, fault=Fault(place, at, slow=5))
        done = bench.run(words)
        out, err = late.communicate(timeout=60)
        for one in (done, Done(tuple(words), late.returncode, out, err)):
            _judged(bench, name, one, f"a change of 5 s at {at}")
            bench.must(one.ok or (name == "rollback" and one.code == 2), f"slow at {at}: {one}")
        sound(bench, small_site(place / "prefix"), f"{name} with a change of 5 s at {at}")


def _judged(bench, name, done, what):
    bench.clear(done)
    bench.must(done.code in {0, 2, 3, 4}, f"{name}, {what}: {done}")


def _renewed(first, place):
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(first, place, symlinks=True)


@contextmanager
def mounted(place, options):
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)
        place.rmdir()


def real_disks(bench):
    """A disk that is really full, has no inodes left, or is read-only."""
    first = _filled(bench)
    for number in bench.times():
        kind = ("full", "inodes", "read-only")[number % 3]
        place = bench.home / "disk"
        with mounted(place, "size=64m,nr_inodes=5k"):
            shutil.copytree(first / "prefix", place / "prefix", symlinks=True)
            bench.extra["HPCDL_CACHE"] = str(place / "cache")
            name, words = list(commands(bench, place).items())[number // 3 % 6]
            made = _fill(place, kind)
            _judged(bench, name, bench.run(words), f"disk {kind}")
            sound(bench, small_site(place / "prefix"), f"{name} with a disk {kind}")
            subprocess.run(["mount", "-o", "remount,rw", place], check=True)
            shutil.rmtree(made, ignore_errors=True)
            again = bench.run(words)
            bench.must(again.ok or (name == "rollback" and again.code == 2), f"then: {again}")


def _fill(place, kind):
    filler = place / "filler"
    filler.mkdir()
    if kind == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        return filler
    try:
        if kind == "full":
            with (filler / "zeros").open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
        for number in range(10_000):
            (filler / str(number)).touch()
    except OSError:
        pass
    return filler


def no_locks(bench):
    """A file system whose locks fail: nothing is done without one, and it says so."""
    first, place = _filled(bench), bench.home / "disk"
    for number in bench.times():
        name, words = list(commands(bench, place).items())[number % 4]
        _renewed(first, place)
        before = current_id(small_site(place / "prefix"))
        error = (errno.ENOLCK, errno.ENOSYS, errno.EIO)[number % 3]
        done = bench.run(words, fault=Fault(place, lock=error, error=error))
        _judged(bench, name, done, f"locks that fail with {errno.errorcode[error]}")
        if name != "import":
            bench.must(done.code == 3, f"done without a lock: {done}")
            bench.must(current_id(small_site(place / "prefix")) == before, f"{name} went on")


def clocks(bench):
    """The clock is 400 days ahead, an hour behind, or in the hour that summer time repeats."""
    library = next((one for one in FAKETIME if Path(one).exists()), None)
    if library is None:
        bench.tally.note = "libfaketime is not installed"
        return
    shifts = (
        {"FAKETIME": "+400d"},
        {"FAKETIME": "-1h"},
        {"FAKETIME": "@2026-10-25 02:30:00", "TZ": "Europe/Berlin"},
        {"FAKETIME": "@2026-03-29 01:59:58", "TZ": "Europe/Berlin"},
    )
    site = releases(bench)
    site_file(bench)
    for number in bench.times():
        shift = {"LD_PRELOAD": library, **shifts[number % 4]}
        before = len(read_history(site))
        target = next(one for one in release_ids(site) if one != current_id(site))
        done = bench.run([*ACT, "publish", str(site.paths.prefix), target, "new"], env=shift)
        bench.must(done.ok and current_id(site) == target, f"publish at {shift}: {done}")
        back = bench.run([*ACT, "rollback", str(site.paths.prefix)])  # by the true clock
        bench.must(back.ok and current_id(site) != target, f"rollback after {shift}: {back}")
        bench.kept(len(read_history(site)) == before + 2, f"an event of {shift}")
        gone = bench.run([*ACT, "gc", str(site.paths.prefix)], env=shift)
        bench.must(gone.ok, f"gc at {shift}: {gone}")
        sound(bench, site, f"the clock {shift}")
        for name in "abcd":
            if name not in release_ids(site):
                make_release(site, name)
                publish(site, name, passing, say=silent)


def _broken(error, **how):
    return lambda bench: broken(bench, error, **how)


SWITCHES = "publish, rollback, gc"
FILES, IMPORT = f"{SWITCHES}, history import, render, ci", f"{SWITCHES}, history import"
OLD, NONE = "the old state or the new one; it works afterwards", "nothing is done without one"
FULL, QUOTA = "no space from a change on", "quota from a change on"
READ_ONLY, ERROR = "read-only from a change on", "I/O error at a change"
STALE, LOST = "ESTALE at a change", "a change is made, and answered with an error, as by NFS"
REAL, CLOCKS = "tmpfs full, without inodes, read-only", "+400 days, -1 h, summer time"
DRILLS = (
    Drill("disk-full", FILES, FULL, 60, OLD, 1800, _broken(errno.ENOSPC)),
    Drill("disk-quota", FILES, QUOTA, 60, OLD, 1800, _broken(errno.EDQUOT)),
    Drill("disk-read-only", FILES, READ_ONLY, 60, OLD, 1800, _broken(errno.EROFS)),
    Drill("disk-error", FILES, ERROR, 120, OLD, 3600, _broken(errno.EIO, once=True)),
    Drill("disk-stale", FILES, STALE, 60, OLD, 1800, _broken(errno.ESTALE, once=True)),
    Drill("disk-lost-reply", FILES, LOST, 60, OLD, 1800, _broken(errno.ENOENT, late=True)),
    Drill("disk-slow", FILES, "a change of 5 s, another command beside it", 30, OLD, 900, slow),
    Drill("disk-real", FILES, REAL, 36, OLD, 1200, real_disks),
    Drill("locks", IMPORT, "locks that fail", 24, NONE, 600, no_locks),
    Drill("clocks", SWITCHES, CLOCKS, 40, "order and history hold", 1200, clocks),
)
