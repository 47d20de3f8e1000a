"""What the machine refuses becomes one line with an exit code, and nothing is lost."""

import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.stack.publish import publish
from hpcdl.stack.recipe import lock_file
from hpcdl.stack.release import current_id
from hpcdl.stack.verify import store_proof
from hpcdl.system.errors import MissingPrerequisite
from tests.make.releases import make_release, passing, plan_build, silent
from tests.make.sites import small_site

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount or change user")


@pytest.fixture
def home(tmp_path):
    """An HPCDL_HOME whose embedded site has `a` published and `b` built and proven."""
    site = embedded(tmp_path)
    for name in "ab":
        store_proof(
            made := make_release(site, name, version=f"2.{ord(name)}.0"), passing(site, made)
        )
    publish(site, "a", passing, say=silent)
    return tmp_path


def embedded(home):
    return small_site(home / "embedded" / "prefix")


def hpcdl(home, *words, before="true"):
    """Run a command in a mount namespace of its own, after a line of shell."""
    command = shlex.join([sys.executable, "-m", "hpcdl", *words, "--site", "embedded"])
    return subprocess.run(
        ["unshare", "--mount", "bash", "-ec", f"{before}\ncd {ROOT}\n{command}"],
        env={**os.environ, "HPCDL_HOME": str(home), "HPCDL_CACHE": str(home / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def assert_one_line(done, code, words):
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk(home):
    prefix = home / "embedded" / "prefix"
    small = (
        f"mkdir {home}/m && mount -t tmpfs -o size=400k none {home}/m && cp -a {prefix}/. {home}/m"
        f" && mount --bind {home}/m {prefix} && ! cat /dev/zero > {prefix}/fill 2>/dev/null"
    )
    check = f"{small}; set +e; trap 'readlink {prefix}/current; ls {prefix}/releases' EXIT"
    done = hpcdl(home, "stack", "publish", "b", before=check)
    assert_one_line(done, 3, "no space left on the file system")
    assert done.stdout.split() == ["releases/a", "a", "b"]


def test_a_way_back_on_a_full_disk(home):
    """A publish keeps the room that a rollback needs."""
    prefix = home / "embedded" / "prefix"
    small = f"mkdir {home}/m && mount -t tmpfs -o size=400k none {home}/m"
    small += f" && cp -a {prefix}/. {home}/m && mount --bind {home}/m {prefix}"
    fill = f"! cat /dev/zero > {prefix}/fill 2>/dev/null"
    publish = f"(cd {ROOT}; {sys.executable} -m hpcdl stack publish b --local --site=embedded)"
    show = f"trap 'readlink {prefix}/current; ls -A {prefix}/releases' EXIT; set +e"
    done = hpcdl(home, "stack", "rollback", before=f"{small}\n{publish}\n{fill}\n{show}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-3:] == ["releases/a", "a", "b"]


def test_a_full_disk_while_building(home):
    prefix = home / "embedded" / "prefix"
    small = f"mount -t tmpfs -o size=5m none {prefix}"
    plan = plan_build(small_site(prefix))
    lock = lock_file(plan.recipe, plan.python)
    if not lock.is_file():
        pytest.skip("the wheels have not been fetched")
    shutil.copytree(lock.parent, home / "cache" / "locks" / lock.parent.name)
    planned = hpcdl(home, "stack", "build", "--dry-run", before=small)
    assert planned.returncode == 3
    assert "not on this machine: no space left for the stack" in planned.stdout
    done = hpcdl(home, "stack", "build", before=small)
    assert_one_line(done, 3, "no space left for the stack")
    assert "hpcdl stack gc" in done.stderr


def test_a_read_only_file_system(home):
    prefix = home / "embedded" / "prefix"
    frozen = f"mount --bind {prefix} {prefix} && mount -o remount,bind,ro {prefix}"
    assert_one_line(hpcdl(home, "stack", "publish", "b", before=frozen), 3, "read-only")
    assert current_id(embedded(home)) == "a"


def test_no_permission():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        site = replace(small_site(Path(folder) / "prefix"), private=True)
        make_release(site, "b")
        child = multiprocessing.get_context("fork").Process(target=_publish_as_nobody, args=[site])
        child.start()
        child.join()
        assert child.exitcode == 3
        assert current_id(site) is None


def _publish_as_nobody(site):
    os.setgid(65534)
    os.setuid(65534)
    with pytest.raises(MissingPrerequisite, match="no permission") as lack:
        publish(site, "b", passing, say=silent)
    sys.exit(lack.value.exit_code)


def test_releases_on_another_file_system_than_the_cache(home):
    """Nothing is hard-linked or renamed across; publishing works as ever."""
    prefix = home / "embedded" / "prefix"
    other = (
        f"mkdir {home}/m && mount -t tmpfs none {home}/m && cp -a {prefix}/releases/. {home}/m"
        f" && mount --bind {home}/m {prefix}/releases"
    )
    done = hpcdl(home, "stack", "publish", "b", "--local", before=other)
    assert done.returncode == 0, done.stderr


def test_a_prefix_that_is_a_file(home):
    shutil.rmtree(home / "embedded" / "prefix")
    (home / "embedded" / "prefix").touch()
    assert_one_line(hpcdl(home, "stack", "publish", "b"), 2, "there is no release 'b'")
    assert hpcdl(home, "stack", "list").returncode == 0
