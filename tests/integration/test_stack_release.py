"""The real thing: TensorFlow and Horovod through the published module, as users load it."""

import json
import re
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from hpcdl.cli import main
from hpcdl.stack.build import build
from hpcdl.stack.horovod import build_horovod
from hpcdl.stack.release import read_release
from hpcdl.stack.tree import check_integrity
from hpcdl.stack.verify import in_module
from hpcdl.system.errors import ExitCode
from hpcdl.system.run import CommandFailed
from hpcdl.workflows.site_plan import plan
from tests.integration.stack_fixture import bill
from tests.make.releases import plan_build, silent
from tests.make.sites import small_site

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]


def test_building_it_again_gives_the_same_within_seconds(stack_site, release):
    start = time.monotonic()
    assert build(plan_build(stack_site), silent) == release
    assert time.monotonic() - start < 3


def test_a_partition_without_a_build_keeps_no_other_from_its_own(release, tmp_path, capsys):
    """No wheels fit GPUs beside aarch64 CPUs; `release` has left what it needs in the cache."""
    node = "nodes: 1, sockets: 1, cores_per_socket: 8, memory_gb: 64"
    file = tmp_path / "site.yaml"
    file.write_text(
        f'schema: 1\nname: two\nslurm: {{version: "23.11.4"}}\ndefault_partition: cpu\n'
        f"paths: {{prefix: {tmp_path}/prefix, work: /work, datasets: /data}}\npartitions:\n"
        f"  cpu: {{{node}}}\n  gh: {{{node}, gpu: {{model: GH200, per_node: 1}}}}\n"
        "stacks:\n  own: {backend: wheels}\n"
    )
    assert main(["stack", "build", "--json", "--site", str(file)]) == ExitCode.PARTLY
    told = capsys.readouterr()
    made = json.loads(told.out)
    assert (made["built"], made["partitions"]) == (True, ["cpu"])
    assert (tmp_path / "prefix" / "releases" / made["id"] / "release.json").is_file()
    assert "error: partitions without a build: gh\n  gh: no wheels fit" in told.err
    shutil.rmtree(tmp_path / "prefix")


def test_its_hpcdl_reads_what_a_script_runs(stack_site, release, tmp_path):
    """Beyond the directives, which needs the grammar of bash."""
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --ntasks=4\nsrun train --rank $SLURM_PROCID\n")
    told = in_module(stack_site, release, ["hpcdl", "job", "lint", "--json", script])
    rules = {one["rule"] for one in json.loads(told.stdout)["files"][0]["findings"]}
    assert "rank-of-batch-shell" in rules


def test_the_plan_after_a_publish_is_nothing_to_do(stack_site, release):
    found = plan(stack_site)
    if found["stacks"][0]["after"]["id"] != release.id:
        pytest.skip("somebody edited hpcdl's sources after the build")
    assert not found["changes"]
    assert (found["stacks"][0]["steps"], found["references"]) == ([], [])


def test_a_killed_build_is_no_release_and_the_next_one_completes(stack_site, release, tmp_path):
    site = small_site(tmp_path / "prefix")
    program = (
        "import sys; from pathlib import Path; "
        "from tests.make.releases import plan_build, silent;"
        "from tests.make.sites import small_site; from hpcdl.stack.build import build;"
        "build(plan_build(small_site(Path(sys.argv[1]))), silent)"
    )
    for seconds in (0.4, 0.9, 1.5):
        work = subprocess.Popen([sys.executable, "-c", program, str(site.paths.prefix)])
        time.sleep(seconds)
        work.kill()
        work.wait()
    built = build(plan_build(site), silent)
    assert read_release(site, built.id).lock == release.lock
    assert built.python.exists()
    shutil.rmtree(site.paths.prefix)


def test_a_failed_compile_shows_its_first_error(stack_site, release, tmp_path, monkeypatch):
    monkeypatch.setenv("HPCDL_CACHE", str(tmp_path))
    planned = plan_build(stack_site)
    guard = "#ifndef HOROVOD_COMMON_H\n"
    fault = {"name": "fault", "file": "horovod/common/common.h", "find": guard}
    fault["replace"] = f"{guard}int i = missing;\n"
    horovod = planned.recipe.horovod
    broken = {**horovod, "edits": [*horovod["edits"], fault]}
    with pytest.raises(CommandFailed) as caught:
        build_horovod(
            replace(planned.recipe, horovod=broken),
            planned.python,
            tmp_path / "wheels" / "horovod",
            release.prefix,
            planned.toolchain(),
            silent,
        )
    first = r"first error: /\S+/horovod/common/common\.h:\d+:9: error: .missing. was not declared"
    assert re.match(first, caught.value.hint)
    assert caught.value.exit_code == ExitCode.COMMAND_FAILED
    assert list((tmp_path / "wheels").glob("horovod*")) == []


def test_no_file_is_shared_with_another_release_or_the_cache(release):
    """A chown of one of them would reach the others."""
    files = (path.lstat() for path in release.prefix.rglob("*"))
    assert [one.st_ino for one in files if stat.S_ISREG(one.st_mode) and one.st_nlink > 1] == []


def test_every_module_has_its_bytecode_and_the_gate_wrote_none(release):
    tag = sys.implementation.cache_tag
    packages = next(release.prefix.glob("lib/python3*/site-packages"))
    made = {
        path: path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc"
        for path in packages.rglob("*.py")
    }
    assert [path for path, bytecode in made.items() if not bytecode.exists()] == []
    assert check_integrity(release).ok


def test_hpcdl_in_the_module_knows_its_site(stack_site, release):
    done = in_module(stack_site, release, ["hpcdl", "site", "show", "--json"])
    assert done.ok, done.stderr
    assert json.loads(done.stdout)["name"] == "embedded"


def test_hpcdl_packs_itself_where_it_is_installed(stack_site, release):
    """An installed wheel and a checkout have the same files, and so the same digest."""
    program = (
        "from hpcdl.stack.recipe import own_digest, own_files, is_checkout;"
        "assert not is_checkout(); print(own_digest())"
    )
    done = in_module(stack_site, release, ["python", "-c", program])
    assert done.ok, done.stderr
    assert release.hpcdl.endswith(f"+{done.stdout.strip()}")


def test_a_plain_environment_sees_tensorflow_and_its_own_win(stack_site, release, tmp_path):
    own = tmp_path / "env/lib" / f"python{release.versions['python'].rpartition('.')[0]}"
    make = ["python", "-m", "venv", "--system-site-packages", tmp_path / "env"]
    assert in_module(stack_site, release, make).ok
    (own / "site-packages" / "termcolor").mkdir()
    (own / "site-packages" / "termcolor" / "__init__.py").write_text("mine = True\n")
    program = (
        "import importlib.util as u, json, sys, termcolor, tensorflow;"
        "print(json.dumps({n: u.find_spec(n).origin for n in ('tensorflow', 'horovod', 'numpy')}"
        " | {'mine': termcolor.mine, 'prefix': sys.prefix}))"
    )
    done = in_module(stack_site, release, [tmp_path / "env/bin/python", "-c", program])
    assert done.ok, done.stderr
    seen = json.loads(done.stdout)
    assert seen["mine"] is True
    assert seen["prefix"] == str(tmp_path / "env")
    assert all(
        seen[name].startswith(str(release.prefix)) for name in ("tensorflow", "horovod", "numpy")
    )


def test_pip_in_such_an_environment_knows_what_the_stack_has(stack_site, release, tmp_path):
    env = tmp_path / "env"
    assert in_module(stack_site, release, ["python", "-m", "venv", env]).ok
    done = in_module(
        stack_site,
        release,
        [
            env / "bin/python",
            "-m",
            "pip",
            "install",
            "--no-index",
            "--disable-pip-version-check",
            "numpy",
        ],
    )
    assert done.ok, done.stderr
    assert "already satisfied" in done.stdout


def test_its_bill_of_materials_is_valid_and_names_every_licence_but_a_few(release):
    components = bill(release)
    assert len(components) == len(release.lock) + 3, "hpcdl, Python and the MPI beside the wheels"
    assert {"hpcdl", "python"} <= {one["name"].lower() for one in components}
    named = [
        one["name"]
        for one in components
        if not one.get("licenses") or "name" in str(one["licenses"][0])
    ]
    assert len(named) < 6
    assert "tensorflow-cpu" not in named
