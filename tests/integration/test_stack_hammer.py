"""Publishing while users load, and publishing that is killed: the tree is valid every time."""

import functools
import json
import multiprocessing
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.site import Site
from hpcdl.stack.publish import publish, rollback
from hpcdl.stack.release import current_release, release_for, release_ids
from tests.drill.acts import publish_anew
from tests.integration.conftest import needs_lmod
from tests.small_release import LMOD, make_release, passing, silent, small_site

FORK = multiprocessing.get_context("fork")
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


def published_site(prefix: Path, *, lmod: bool) -> Site:
    """Three releases, two of one version, all published once."""
    site = small_site(prefix, lmod=lmod)
    for name, version in zip("abc", VERSIONS, strict=True):
        make_release(site, name, version=version)
    make_release(site, "d", version=VERSIONS[-1])
    for name in "abcd":
        publish(site, name, passing, say=silent)
    return site


def load_while(site: Site, scratch: Path, loads: int, work: Callable[[], None]) -> tuple[int, str]:
    """Load in four shells while `work` runs, and unload some; the loads, and what failed."""
    env = {
        "PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LMOD_INIT": str(LMOD),
        "MODULEPATH": str(site.paths.prefix / "current/modules"), "COUNT": str(loads // 4),
        "STOP": str(scratch / "stop"), "ERRORS": str(scratch / "errors"),
    }  # fmt: skip
    shells = [
        subprocess.Popen(["bash", "--noprofile", "--norc", "-c", LOADS], env=env,
                         stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]  # fmt: skip
    try:
        work()
    finally:
        (scratch / "stop").touch()
        said = [shell.communicate()[0].split() for shell in shells]
    failures = sum(int(failed) for _, failed in said)
    errors = (scratch / "errors").read_text()[:2000] if failures else ""
    return sum(int(done) for done, _ in said), f"{failures} failed {errors}" if failures else ""


def publish_and_roll_back(site: Site, times: int) -> None:
    for number in range(times):
        if number % 3 == 2:
            rollback(site)
        else:
            publish(site, "abcd"[number % 4], passing, say=silent)
        time.sleep(0.01)


@needs_lmod
def test_loads_never_fail_while_releases_are_switched(tmp_path):
    site = published_site(tmp_path / "prefix", lmod=True)
    loads, failed = load_while(site, tmp_path, 40, lambda: publish_and_roll_back(site, 12))
    assert failed == ""
    assert loads >= 40


def killed_after(seconds: float, act: Callable[[], object]) -> bool:
    """Run `act` in a child and kill it after that time; whether it had ended before."""
    child = FORK.Process(target=act)
    child.start()
    time.sleep(seconds)
    child.kill()
    child.join()
    return child.exitcode >= 0


def assert_valid(site: Site, before: str, after: str) -> None:
    """What users and jobs read is whole: the old state or the new one."""
    current = current_release(site)
    assert current.id in {before, after}
    shown = site.paths.prefix / "current/modules"
    assert (shown / f"{current.module}.lua").read_text().startswith("local release = {")
    assert json.loads((shown / ".dispatch.json").read_text())["default"] in release_ids(site)
    for release_id in release_ids(site):
        own = site.paths.prefix / "releases" / release_id
        assert json.loads((own / "proof.json").read_text())["passed"]
        assert (own / "modules/tensorflow/.modulerc.lua").is_file()
    assert release_for(site, "p100") is not None
    assert sorted(release_ids(site)) == ["a", "b", "c", "d"]


def kill_publishes(site: Site, times: int, seed: int) -> int:
    """Kill that many publishes at random moments; how many were killed before their end."""
    chance = random.Random(seed)
    killed = 0
    for number in range(times):
        current = current_release(site)
        target = chance.choice([name for name in "abcd" if name != current.id])
        if number % 10 == 0:
            # How long one takes now, on a machine that others use too; and then back again.
            start = time.monotonic()
            publish_anew(site, target, f"timed{number}")
            longest = 1.2 * (time.monotonic() - start)
            rollback(site)
        act = functools.partial(publish_anew, site, target, f"new{number}")
        killed += not killed_after(chance.uniform(0, longest), act)
        assert_valid(site, current.id, target)
    return killed


@pytest.mark.parametrize("lmod", [False, pytest.param(True, marks=needs_lmod)])
def test_a_killed_publish_leaves_the_old_state_or_the_new_one(tmp_path, lmod):
    assert kill_publishes(published_site(tmp_path / "prefix", lmod=lmod), 12, seed=1) > 0


def test_publishes_at_once_queue_and_all_succeed(tmp_path):
    site = published_site(tmp_path / "prefix", lmod=False)
    act = functools.partial(publish, site, gate=passing, say=silent)
    children = [FORK.Process(target=act, args=[name]) for name in "abcd"]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0, 0]
    events = json.loads((site.paths.prefix / "history.json").read_text())["events"]
    assert current_release(site).id == events[-1]["release"]
