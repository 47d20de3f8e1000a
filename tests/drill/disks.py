"""Drills of file systems and clocks: full, read-only, out of inodes, failing; time that jumps."""

import errno
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

from hpcdl.stack.modules import read_history
from hpcdl.stack.publish import publish
from hpcdl.stack.release import current_id, release_ids
from tests.drill.clusters import site_file
from tests.drill.harness import Done, Drill
from tests.drill.shim import Fault, client
from tests.drill.stacks import ACT, commands, filled, releases, sound, struck
from tests.make.releases import make_release, passing, silent
from tests.make.sites import small_site

FAKETIME = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
)


def slow(bench):
    """A change takes 5 s: the same command beside it waits; nothing is done twice or by half."""
    place, renew = filled(bench)
    for number in bench.times():
        name, words = list(commands(bench, place).items())[number % 7]
        renew()
        at = bench.moment(name, number // 7, words, place)
        renew()
        late = bench.start(words, fault=Fault(place, at, slow=5))
        done = bench.run(words)
        out, err = late.communicate(timeout=60)
        for one in (done, Done(tuple(words), late.returncode, out, err)):
            bench.ended(one)
            bench.must(one.ok or (name == "rollback" and one.code == 2), f"slow at {at}: {one}")
        sound(bench, small_site(place / "prefix"), f"{name} with a change of 5 s at {at}")


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
    place, _ = filled(bench)
    for number in bench.times():
        kind = ("full", "inodes", "read-only")[number % 3]
        with mounted(place, "size=64m,nr_inodes=5k"):
            shutil.copytree(bench.home / "first/prefix", place / "prefix", symlinks=True)
            name, words = list(commands(bench, place).items())[number // 3 % 7]
            made = _fill(place, kind)
            bench.ended(bench.run(words))
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


def two_clients(bench):
    """Two login nodes share a directory by NFS; what each has seen it believes for a minute.

    The first one looks, the second one changes something, then the first one does: by itself, or
    while the second one goes on.
    """
    place, renew = filled(bench)
    site = small_site(place / "prefix")
    nodes = [client(place, bench.home / name) for name in ("login1", "login2")]
    known, prefix = commands(bench, place), str(place / "prefix")
    acts = {f"publish {one}": [*ACT, "publish", prefix, one, "new"] for one in "abcd"}
    acts |= {name: known[name] for name in ("rollback", "gc")}
    for number in bench.times():
        if number % 5 == 0:
            renew()
            for node in nodes:
                Path(node["DRILL_CLIENT"]).unlink(missing_ok=True)
        first, second = bench.chance.sample(nodes, 2)
        bench.run([*ACT, "look", prefix], env=first)
        acts["build"] = [*known["build"][:-1], f"2.23.{number}"]
        before, (one, other) = set(release_ids(site)), bench.chance.sample(sorted(acts), 2)
        early = bench.start(acts[one], env=second)
        if number % 2:
            early.wait()
        late = bench.start(acts[other], env=first)
        told = f"{one}, then {other} on another node"
        ended = [
            Done((act,), run.wait(), *run.communicate())
            for act, run in ((one, early), (other, late))
        ]
        for done in ended:
            bench.ended(done)
            bench.must(done.code in {0, 2}, f"{told}: {done}")
        there = set(release_ids(site))
        built = [done for done in ended if done.argv[0] == "build" and done.ok]
        if "gc" not in {one, other}:  # which takes what is not published
            bench.kept(len(there - before) == len(built), f"a release, {told}")
            bench.kept(not before - there, f"{before - there}, {told}")
        if number % 2 and other.startswith("publish") and ended[1].ok:
            bench.must(current_id(site) == other[-1], f"{told}: {current_id(site)} is current")
        sound(bench, site, told)


def no_locks(bench):
    """A file system whose locks fail: nothing is done without one, and it says so."""
    place, renew = filled(bench)
    for number in bench.times():
        name = ("publish", "rollback", "gc", "build", "import")[number % 5]
        renew()
        before = current_id(small_site(place / "prefix"))
        error = (errno.ENOLCK, errno.ENOSYS, errno.EIO)[number % 3]
        words = commands(bench, place)[name]
        done = bench.run(words, fault=Fault(place, lock=error, error=error))
        bench.ended(done)
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


ALL = ("publish", "rollback", "gc", "build", "import", "render", "ci")
FILES, LOCKED = "publish, rollback, gc, build, history import, render, ci", ", ".join(ALL[:5])
OLD, NONE = "the old state or the new one; it works afterwards", "nothing is done without one"
REAL, CLOCKS = "tmpfs full, without inodes, read-only", "+400 days, -1 h, summer time"
CLIENTS = "two clients of NFS, each of which believes for a minute what it has seen"
BOTH = "nothing is lost, what is current is whole"
FAULTS = {
    "full": ("no space from a change on", 70, {"error": errno.ENOSPC}),
    "quota": ("quota from a change on", 70, {"error": errno.EDQUOT}),
    "read-only": ("read-only from a change on", 70, {"error": errno.EROFS}),
    "error": ("I/O error at a change", 140, {"error": errno.EIO, "once": True}),
    "stale": ("ESTALE at a change", 70, {"error": errno.ESTALE, "once": True}),
    "lost-reply": (
        "a change is made, and answered with an error, as by NFS",
        *(70, {"error": errno.ENOENT, "late": True}),
    ),
}
DRILLS = (
    *(
        Drill(f"disk-{name}", FILES, fault, goal, OLD, 3600, struck(*ALL), how)
        for name, (fault, goal, how) in FAULTS.items()
    ),
    Drill("disk-slow", FILES, "a change of 5 s, another command beside it", 35, OLD, 900, slow),
    Drill("disk-clients", "publish, rollback, gc, build", CLIENTS, 60, BOTH, 1800, two_clients),
    Drill("disk-real", FILES, REAL, 42, OLD, 1200, real_disks),
    Drill("locks", LOCKED, "locks that fail", 30, NONE, 600, no_locks),
    Drill("clocks", "publish, rollback, gc", CLOCKS, 40, "order and history hold", 1200, clocks),
)
