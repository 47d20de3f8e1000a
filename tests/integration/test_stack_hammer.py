"""Publishing while users load, and publishing that is killed: the tree is valid every time."""

import functools
import json
import multiprocessing
import shutil

import pytest

from hpcdl.stack.publish import publish
from hpcdl.stack.release import current_release
from tests.drill import stacks
from tests.drill.harness import carry_out
from tests.drill.stacks import load_while, publish_and_roll_back, published_site
from tests.integration.conftest import needs_lmod
from tests.make.releases import passing, silent


@needs_lmod
def test_loads_never_fail_while_releases_are_switched(tmp_path):
    site = published_site(tmp_path / "prefix", lmod=True)
    loads, failed = load_while(site, tmp_path, 40, lambda: publish_and_roll_back(site, 12))
    assert failed == ""
    assert loads >= 40


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_what_is_killed_leaves_the_old_state_or_the_new_one(tmp_path):
    """The drill of publish, rollback and gc in small: each is killed at two of its changes."""
    (drill,) = [one for one in stacks.DRILLS if one.name == "switch-kill"]
    found = carry_out(drill, range(6), tmp_path / "d", seed=1, most=300)
    assert (found.count, found.lost, found.wrong, found.left) == (6, [], [], [])


def test_publishes_at_once_queue_and_all_succeed(tmp_path):
    site = published_site(tmp_path / "prefix", lmod=False)
    act = functools.partial(publish, site, gate=passing, say=silent)
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=act, args=[name]) for name in "abcd"]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0, 0]
    events = json.loads((site.paths.prefix / "history.json").read_text())["events"]
    assert current_release(site).id == events[-1]["release"]
