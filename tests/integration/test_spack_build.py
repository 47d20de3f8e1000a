"""Building with Spack: in parallel, resumed, signed, and with failures that a person can use.

Small packages stand for the stack: they are built by the real Spack, with nothing to download or
compile.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hpcdl.stack.gc import collect
from hpcdl.stack.publish import publish
from hpcdl.stack.spack_backend.environment import (
    LOG,
    PackageFailed,
    build_folder,
    concretize,
    install,
    inventory,
    lock_holder,
    open_spack,
    require_unlocked,
)
from hpcdl.stack.spack_backend.spack_build import adopt_installed, plan_adoption
from hpcdl.stack.tree import record_release
from hpcdl.system.errors import CheckFailed, MissingPrerequisite
from hpcdl.system.files import locked
from tests.integration.conftest import small_disk
from tests.integration.spack_fixture import RECIPE, SMALL, want, why_not
from tests.make.releases import make_current, make_release, passing, silent
from tests.make.sites import small_site
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.spack,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.timeout(2400),
]
REPOSITORY = Path(__file__).resolve().parents[2]


def solve(home, *specs, tree="tree"):
    want(home, *specs, tree=tree)
    concretize(home, SMALL, silent)
    return home / "environments" / "small"


def opened(where, **settings):
    settings["config.yaml"] = f"config:\n  build_stage: ['{build_folder(where) / 'stage'}']\n"
    return open_spack(where.parents[1], build_folder(where) / "scope", settings)


def build(where, spack, **env):
    install(spack, where, env)
    return (build_folder(where) / LOG).read_text()


def names(spack, where):
    packages = inventory(spack, where)["packages"]
    return {one["name"] for one in packages if one["installed"]}


def test_a_failure_names_the_package_its_last_lines_and_reopens_and_then_goes_on(small, tmp_path):
    where = solve(small, "above", "waits")
    spack = opened(where)
    file = tmp_path / "there"
    with pytest.raises(PackageFailed) as caught:
        build(where, spack, SMALL_FILE=str(file))
    assert caught.value.message == "waits@1.0 did not build"
    assert any("the compiler speaks" in line for line in caught.value.details)
    (reopen,) = [line for line in caught.value.details if line.startswith("reopen:")]
    command = reopen.removeprefix("reopen: ").removesuffix("bash") + "env"
    told = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "SPACK_SHORT_SPEC=waits@1.0" in told.stdout
    (log,) = [line.split()[-1] for line in caught.value.details if line.startswith("log:")]
    assert Path(log).is_relative_to(build_folder(where) / "stage")
    assert names(spack, where) == {"works", "above"}

    file.touch()
    assert build(where, spack, SMALL_FILE=str(file)).count("\n[+]") == 1, "only what is missing"
    assert names(spack, where) == {"works", "above", "waits"}


def test_a_killed_build_goes_on(small, tmp_path):
    where = solve(small, "sleeps", "above")
    file, started = tmp_path / "there", tmp_path / "started"
    program = (
        "import sys; from pathlib import Path; "
        "from hpcdl.stack.spack_backend.environment import *; "
        "where, scope, program, file, started = "
        "map(Path, sys.argv[1:]); install(Spack(program, '', scope), where, "
        "{'SMALL_FILE': str(file), 'SMALL_STARTED': str(started)})"
    )
    spack = opened(where)
    words = [sys.executable, "-c", program, where, spack.scope, spack.program, file, started]
    process = subprocess.Popen(words, cwd=REPOSITORY)
    wait_for(lambda: started.exists() or process.poll() is not None, 600)
    assert started.exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    file.touch()  # what it left behind ends now
    build(where, spack, SMALL_FILE=str(file), SMALL_STARTED=str(started))
    assert names(spack, where) == {"works", "above", "sleeps"}


def test_a_full_disk_is_named_and_nothing_is_lost(small):
    tree = small.parent / "tree"
    with small_disk(tree, "size=8m"):
        where = solve(small, "works", "fills")
        spack = opened(where)
        said = "no space left while Spack built fills"
        with pytest.raises(MissingPrerequisite, match=said) as caught:
            build(where, spack, SMALL_TREE=str(tree))
        assert "what is built stays built" in caught.value.hint
        assert names(spack, where) == {"works"}


@pytest.fixture
def keyring(monkeypatch):
    if shutil.which("gpg") is None:
        pytest.skip("gpg is not installed")
    # The agent's socket needs a short path.
    place = Path(tempfile.mkdtemp(prefix="hpcdl-keys-", dir="/tmp"))
    monkeypatch.setenv("SPACK_GNUPGHOME", str(place))
    yield
    subprocess.run(["gpgconf", "--homedir", place, "--kill", "all"], check=False)
    shutil.rmtree(place, ignore_errors=True)


def test_a_build_cache_is_spack_s_own_signed_and_filled_by_itself(small, keyring, tmp_path):
    where = solve(small, "above")
    entry = f"{{url: 'file://{tmp_path}/cache', signed: true, autopush: true}}"
    spack = opened(where, **{"mirrors.yaml": f"mirrors: {{builds: {entry}}}\n"})
    spack.run("gpg", "create", "nobody", "nobody@localhost")
    build(where, spack)
    spack.run("-e", where, "uninstall", "-a", "-y", "--dependents", check=False)
    shutil.rmtree(small.parent / "tree")
    told = build(where, spack)
    assert "build cache" in told
    assert "install (" not in told, "nothing was built"


def test_what_cannot_be_adopted_is_refused(small, tmp_path):
    site = small_site(tmp_path / "prefix")
    recipe = small / "spack_repo" / "hpcdl" / "packages" / "py_tensorflow_wheels" / "package.py"
    recipe.write_text(RECIPE.format(name="PyTensorflowWheels", more="", command="true"))
    where = solve(small, "py-tensorflow-wheels", "above")
    plan = plan_adoption(site, str(where))
    assert plan.release_id.startswith("tensorflow-1.0-cpu-")
    with pytest.raises(MissingPrerequisite, match="3 of 3 packages are missing"):
        adopt_installed(plan, silent)
    spack = opened(where)
    spack.run("-e", where, "install", "--only-concrete", "works")
    with pytest.raises(MissingPrerequisite, match="not wholly installed in") as caught:
        adopt_installed(plan, silent)
    assert caught.value.details == ("above@1.0", "py-tensorflow-wheels@1.0")
    build(where, spack)
    text = (where / "spack.yaml").read_text()
    (where / "spack.yaml").write_text(text.replace(str(small.parent / "tree"), str(tmp_path / "t")))
    with pytest.raises(MissingPrerequisite, match="3 of 3 packages are missing") as caught:
        adopt_installed(plan, silent)
    assert "HPCDL_SPACK_ROOT" in caught.value.hint
    assert not (site.paths.prefix / "releases").exists()


def test_an_environment_that_another_spack_holds_is_refused_at_once(small):
    where = want(small, "works")
    lock = where / ".spack-env" / "transaction_lock"
    lock.parent.mkdir()
    lock.touch()
    assert lock_holder(lock) is None
    held = (
        f"import fcntl, sys; file = open({str(lock)!r}, 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        with pytest.raises(MissingPrerequisite, match=f"process {holder.pid}"):
            concretize(small, SMALL, silent)
        holder.stdin.close()
    require_unlocked(where)


def test_a_contradictory_pin_is_answered_with_its_cause(small):
    want(small, "works@2.0")
    with pytest.raises(CheckFailed, match="no solution") as caught:
        concretize(small, SMALL, silent)
    assert any("works" in line for line in caught.value.details)


def test_the_end_of_the_time_limit_is_an_answer(small):
    want(small, "works")
    with pytest.raises(CheckFailed, match="no answer within"):
        concretize(small, SMALL, silent, time_limit=0.2)


def test_gc_removes_the_packages_that_no_release_is_left_for(small, tmp_path):
    """Two releases share an install tree; the older one alone needs `above`."""
    site = small_site(tmp_path / "prefix")
    home = site.paths.prefix / "spack" / "small"
    shutil.copytree(small, home)
    for name, package in (("old", "above"), ("new", "works")):
        where = solve(home, package, tree="store")
        build(where, opened(where))
        made = make_release(site, name, version=f"2.{len(package)}.{ord(name[0])}")
        own = made.root / "spack"
        own.mkdir()
        shutil.copyfile(where / "spack.lock", own / "spack.lock")
        (own / "spack.yaml").write_text(f"spack: {{specs: [{package}]}}\n")
        record_release(made)
        publish(site, name, passing, say=silent)

    def in_store():
        return {path.parent.name for path in (home.parent / "store").rglob("*-1.0-*/.spack")}

    both = in_store()
    assert len(both) == 2
    assert collect(site, lambda: {"old": "job 7 names it"}, keep=1).packages == ()
    with locked(home / ".lock"):
        held = collect(site, dict, keep=1, dry_run=True)
    assert "running here" in held.note
    told = collect(site, dict, keep=1, dry_run=True)
    (package,) = told.packages
    assert package.startswith("above@1.0/")
    assert in_store() == both
    assert collect(site, dict, keep=1).packages == told.packages
    assert {name.partition("-")[0] for name in in_store()} == {"works"}
    assert names(opened(where), where) == {"works"}
    assert collect(site, dict, keep=1).packages == ()

    shutil.rmtree(home)
    assert collect(site, dict, keep=1).packages == (), "the release that is left needs it"
    make_current(site, "plain")
    (package,) = collect(site, dict, keep=1).packages
    assert package.startswith("works@1.0/")
