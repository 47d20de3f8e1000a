"""Drills of releases: build, publish, rollback, gc, and loads of modules meanwhile."""

import json
import shutil
import subprocess
import sys
import time
from functools import partial

from hpcdl.stack.gc import collect
from hpcdl.stack.publish import publish, rollback
from hpcdl.stack.release import current_release, read_release, release_for, release_ids
from hpcdl.stack.tree import check_integrity
from tests.drill.harness import Drill
from tests.small_release import LMOD, make_release, passing, silent, small_site

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


def killed_switches(bench):
    """Kill publish, rollback and gc; then the same command again, to its end."""
    site = releases(bench)
    spare = bench.home / "spare"
    shutil.copytree(site.paths.prefix, spare, symlinks=True)
    for number in bench.times():
        action = ("publish", "rollback", "gc")[number % 3]
        again = partial(_again, site.paths.prefix, spare)
        again()
        before = set(release_ids(site))
        last = _words(bench, site, action, number)
        at = bench.kill(action, number // 3, last, site.paths.prefix, again)
        sound(bench, site, f"{action} killed at change {at}")
        if action != "gc":
            bench.kept(set(release_ids(site)) == before, f"a release by {action} at {at}")
        _to_its_end(bench, site, action, number, at)


def _words(bench, site, action, number):
    more = {"publish": [bench.chance.choice(release_ids(site)), f"new{number}"]}
    return [*ACT, action, str(site.paths.prefix), *more.get(action, [])]


def _again(prefix, spare):
    """The releases as they were at first: a gc needs something to remove."""
    shutil.rmtree(prefix)
    shutil.copytree(spare, prefix, symlinks=True)


def _to_its_end(bench, site, action, number, at):
    """After a publish and a gc nothing is left of what was killed."""
    for one in (action, "publish"):
        done = bench.run(_words(bench, site, one, number))
        # After a rollback was taken there may be no earlier release to go back to.
        bench.must(done.ok or action == "rollback", f"after a kill at {at}: {done}")
    collect(site, dict)
    sound(bench, site, f"{action} again after {at}")


def killed_builds(bench):
    """Kill a build at a change, or at a program's start or end; the next one completes."""
    site = small_site(bench.home / "prefix")
    act = [*ACT, "build", str(site.paths.prefix)]
    bench.moment("build", 0, [*act, "2.20.0"])
    publish(site, release_ids(site)[0], passing, say=silent)
    for number in bench.times():
        words = [*act, f"2.21.{number}"]
        before = set(release_ids(site))
        at = bench.kill("build", number, words)
        bench.kept(before <= set(release_ids(site)), f"a release by a build killed at {at}")
        for name in set(release_ids(site)) - before:
            bench.must(check_integrity(read_release(site, name)).ok, f"half a release at {at}")
        bench.must((done := bench.run(words)).ok, f"build again after {at}: {done}")
        sound(bench, site, f"build killed at {at}")
        collect(site, dict, keep=1, unpublished=True)


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
DRILLS = (
    Drill("switch-kill", SWITCHES, "SIGKILL", 150, WHOLE, 3600, killed_switches),
    Drill("build-kill", "build", "SIGKILL", 50, WHOLE, 3600, killed_builds),
    Drill("loads", MEANWHILE, "none", 10_000, "no load fails", 7200, loads),
    Drill(
        "stack-twice", f"{SWITCHES}, build", "two at once", 40, "both end well", 1800, two_at_once
    ),
    Drill("lock-holder-killed", "publish", HOLDER, 20, "it goes on", 600, waits_for_nobody),
)
