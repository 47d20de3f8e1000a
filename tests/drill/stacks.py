"""Drills of releases: build, publish, rollback, gc, and loads of modules meanwhile."""

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from functools import partial

from hpcdl.stack.gc import collect
from hpcdl.stack.publish import publish, rollback
from hpcdl.stack.release import current_release, read_release, release_for, release_ids
from hpcdl.stack.tree import check_integrity
from tests.drill.harness import HPCDL, Drill, temporary
from tests.make.nights import simulated
from tests.make.releases import LMOD, make_release, passing, silent
from tests.make.sites import small_site

ACT = (sys.executable, "-m", "tests.drill.acts")
VERSIONS = ("2.19.0", "2.20.0", "2.21.0")
LOADS = """
. "$LMOD_INIT"; failed=0; done=0
while (( done < COUNT )) || [[ ! -e "$STOP" ]]; do
  (
    module load tensorflow || exit
    [[ -n $HPCDL_RELEASE && -x $HPCDL_STACK/bin/python ]] || exit
    (( done % 10 )) && exit
    module unload tensorflow && [[ -z $HPCDL_RELEASE && $PATH == /usr/bin:/bin ]]
  ) 2>>"$ERRORS" || failed=$((failed + 1))
  done=$((done + 1))
done
echo "$done $failed"
"""


def published_site(prefix, *, lmod):
    """Three releases, two of one version, all published once."""
    site = small_site(prefix, lmod=lmod)
    for name, version in zip("abc", VERSIONS, strict=True):
        make_release(site, name, version=version)
    make_release(site, "d", version=VERSIONS[-1])
    for name in "abcd":
        publish(site, name, passing, say=silent)
    return site


def load_while(site, scratch, loads, work):
    """Load in four shells while `work` runs, and unload some; the loads, and what failed."""
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "LMOD_INIT": str(LMOD),
        "MODULEPATH": str(site.paths.prefix / "current/modules"),
        "COUNT": str(loads // 4),
        "STOP": str(scratch / "stop"),
        "ERRORS": str(scratch / "errors"),
    }
    shells = [
        subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-c", LOADS],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        work()
    finally:
        (scratch / "stop").touch()
        said = [shell.communicate()[0].split() for shell in shells]
    failures = sum(int(failed) for _, failed in said)
    errors = (scratch / "errors").read_text()[:2000] if failures else ""
    return sum(int(done) for done, _ in said), f"{failures} failed {errors}" if failures else ""


def publish_and_roll_back(site, times):
    for number in range(times):
        if number % 3 == 2:
            rollback(site)
        else:
            publish(site, "abcd"[number % 4], passing, say=silent)
        time.sleep(0.01)


def releases(bench):
    return published_site(bench.home / "prefix", lmod=False)


def sound(bench, site, after):
    """What users and jobs read is whole."""
    current = current_release(site)
    if not bench.kept(current, f"no release is current after {after}"):
        return
    shown = site.paths.prefix / "current/modules"
    bench.must((shown / f"{current.module}.lua").is_file(), f"no modulefile after {after}")
    default = json.loads((shown / ".dispatch.json").read_text())["default"]
    bench.must(default in release_ids(site), f"a module of a release that is gone, {after}")
    bench.must(release_for(site, "p100"), f"a partition without a release after {after}")
    for name in release_ids(site):
        bench.must(check_integrity(read_release(site, name)).ok, f"{name} damaged by {after}")


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
    tools = ("env", f"HPCDL_CACHE={bench.home}/tools")  # made once, and no part of `place`
    acts = {"publish": act("publish", "b", "new"), "rollback": act("rollback"), "gc": act("gc")}
    acts["build"] = [*tools, *act("build", "2.23.0")]
    return acts | {name: [*HPCDL, *text.split()] for name, text in ours.items()}


def _act(prefix, name, *more):
    return [*ACT, name, str(prefix), *more]


def filled(bench):
    """A place with releases, and how to have it again as it was at first."""
    first, place = bench.home / "first", bench.home / "disk"
    published_site(place / "prefix", lmod=False)
    place.rename(first)
    bench.extra["HPCDL_CACHE"] = str(place / "cache")

    def renew():
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(first, place, symlinks=True)

    return place, renew


def struck(*names):
    """These of the commands, each with the drill's fault at one change after the other.

    What is there is the old state or the new one; the same command again, and a publish, complete
    it, and leave nothing of the one that was struck.
    """

    def drill(bench):
        place, renew = filled(bench)
        for name, turn in bench.turns(*names):
            words = commands(bench, place)[name]
            renew()
            before = set(release_ids(small_site(place / "prefix")))
            what = bench.strike(name, turn, words, place, renew)
            whole(bench, name, place, before, what)
            again = bench.run(words)
            bench.must(again.ok or (name == "rollback" and again.code == 2), f"{what}: {again}")
            whole(bench, name, place, before, f"{what}, then again")
            if name == "import":
                rows, results = (bench.home / "night.jsonl").read_text(), place / "history.sqlite"
                bench.kept(count(results) == rows.count("\n"), f"results, {what}")
            elif name in {"publish", "rollback", "gc", "build"}:
                site = small_site(place / "prefix")
                publish(site, release_ids(site)[0], passing, say=silent, enough=lambda _: False)
                collect(site, dict)
                bench.tally.left += [f"{one} after {what}" for one in temporary(place)]

    return drill


def whole(bench, name, place, before, what):
    """No release is lost but by a gc, none is added but by a build, and what is there is whole."""
    site = small_site(place / "prefix")
    added, gone = set(release_ids(site)) - before, before - set(release_ids(site))
    bench.kept(name == "gc" or not gone, f"{gone}, {what}")
    bench.must(name == "build" or not added, f"{added}, {what}")
    sound(bench, site, what)


def count(history):
    """How many results a history has."""
    with sqlite3.connect(history) as connection:
        return connection.execute("SELECT count(*) FROM results").fetchone()[0]


def loads(bench):
    """Four shells load while releases are switched, about once a second."""
    if not LMOD.is_file():
        bench.tally.note = "Lmod is not installed"
        return
    site = published_site(bench.home / "prefix", lmod=True)
    while bench.tally.count < bench.goal and time.monotonic() < bench.deadline:
        count, failed = load_while(site, bench.home / "tmp", 0, lambda: _switch(site, 20))
        bench.tally.count += count
        bench.must(not failed, failed)
        for one in ("stop", "errors"):
            (bench.home / "tmp" / one).unlink(missing_ok=True)


def _switch(site, seconds):
    """Publish and roll back for so long, as a busy day of admins."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        publish_and_roll_back(site, 3)
        time.sleep(3)


def two_at_once(bench):
    """Two of each at the same moment: both say how it went, and the tree is whole."""
    site = releases(bench)
    for number in bench.times():
        action = ("publish", "rollback", "gc", "build")[number % 4]
        more = {"publish": ["a", "x"], "build": [f"2.22.{number}"]}.get(action, [])
        words = [*ACT, action, str(site.paths.prefix), *more]
        for one in bench.together(words, words):
            bench.must(one.code in {0, 2} and "Traceback" not in one.err, f"two {action}: {one}")
        if action == "gc":
            for name in "abcd":
                if name not in release_ids(site):
                    make_release(site, name)
                publish(site, name, passing, say=silent)
        sound(bench, site, f"two {action}")


def waits_for_nobody(bench):
    """A lock's holder is killed: the next command goes on within seconds."""
    site = releases(bench)
    for _ in bench.times():
        holder = bench.start(
            ["flock", "-x", str(site.paths.prefix / ".publish.lock"), "sleep", "300"]
        )
        time.sleep(0.3)
        waiting = bench.start([*ACT, "publish", str(site.paths.prefix), "b", "y"])
        time.sleep(0.5)
        bench.run(["sh", "-c", f"kill -9 $(cat /proc/{holder.pid}/task/*/children) {holder.pid}"])
        holder.wait()
        begin = time.monotonic()
        waiting.communicate(timeout=60)
        bench.must(waiting.returncode == 0 and time.monotonic() - begin < 10, "it waited on")


WHOLE, HOLDER = "what is current is whole; the next one completes", "SIGKILL of the lock's holder"
SWITCHES, MEANWHILE = "publish, rollback, gc", "module load during publishes"
IMPORT, RESULT = "check history import", "each result once"
KILLED = struck("publish", "rollback", "gc")
DRILLS = (
    Drill("switch-kill", SWITCHES, "SIGKILL", 150, WHOLE, 3600, KILLED),
    Drill("build-kill", "build", "SIGKILL", 50, WHOLE, 3600, struck("build")),
    Drill("history-kill", IMPORT, "SIGKILL", 50, RESULT, 900, struck("import")),
    Drill("loads", MEANWHILE, "none", 10_000, "no load fails", 7200, loads),
    Drill(
        "stack-twice", f"{SWITCHES}, build", "two at once", 40, "both end well", 1800, two_at_once
    ),
    Drill("lock-holder-killed", "publish", HOLDER, 20, "it goes on", 600, waits_for_nobody),
)
