"""What another user of the machine can plant, and why it does nothing.

`nobody` is the attacker, a real user; root, or whoever runs the tests, is the victim. The victim
works in a directory where everybody may write. Each planted file leaves a mark when it is used.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.jobs.script import render_script
from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.site import find_site_file, load_site
from hpcdl.stack.release import current_release, release_for
from hpcdl.stack.spack_backend.environment import open_spack
from hpcdl.stack.verify import in_module, verify_here
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.resources import scratch_directory
from hpcdl.system.run import module_argv
from tests.drill.jobs import CHECK, STANDINS
from tests.integration.conftest import HPCDL, Shell, clean_environment, needs_lmod
from tests.integration.spack_fixture import why_not
from tests.make.releases import LMOD, make_current
from tests.make.sites import embedded_file, small_site
from tests.make.specs import QUICK
from tests.strangers import as_root, stranger
from tests.waiting import wait_for


class Evil:
    """Plants files where the victim works; what is used of them writes `mark`."""

    def __init__(self, place):
        self.place, self.mark = place, place / "owned"
        self.python = f"import pathlib; pathlib.Path({str(self.mark)!r}).touch()\n"
        self.program = f"#!/bin/sh\ntouch {self.mark}\n"

    def plant(self, text, *names):
        """The attacker leaves files, readable by all and executable."""
        (self.place / ".text").write_text(text)
        (self.place / ".text").chmod(0o644)
        for name in names:
            command = f"mkdir -p $(dirname {name}) && cp .text {name} && chmod 755 {name}"
            stranger(command, self.place)
        (self.place / ".text").unlink()


@pytest.fixture
def evil(shared):
    """At the end of a test nothing that he planted has been used."""
    attacker = Evil(shared)
    yield attacker
    assert not attacker.mark.exists()


def hpcdl(place, *words, **env):
    own = {"HPCDL_HOME": str(place / ".victim"), **env}
    return subprocess.run(
        [HPCDL, *words],
        cwd=place,
        env=clean_environment() | own,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def published(shared, *, lmod=False):
    """The victim's site with one small release, in a directory of the victim's."""
    home = shared / ".victim"
    home.mkdir(mode=0o755, exist_ok=True)
    site = small_site(home / "prefix", lmod=lmod)
    make_current(site, "a")
    return site


PACKAGES = "hpcdl hpcdl/train hpcdl/train/data yaml json runpy pip platform reframe"
MODULES = "yaml json runpy pip platform colorsys settings .reframe/settings rfm sitecustomize"
PROGRAMS = (
    "sbatch squeue scontrol sinfo sacct nvidia-smi mpirun git ip uv gcc ssh python3 env.sh .bashrc "
    ".profile spack/bin/spack bin/spack share/spack/setup-env.sh .git/hooks/post-checkout"
)
TEXTS = {
    "schema: 99\n": "site.yaml .hpcdl/site.yaml hpcdl.yaml small.yaml ../site.yaml",
    "spack: {specs: [evil]}\n": "spack.yaml",
    "config: {build_stage: /evil}\n": ".spack/config.yaml .spack/linux/config.yaml",
    "[global]\nindex-url = https://evil\n": "pip.conf .pip/pip.conf setup.cfg uv.toml",
    "SlurmctldHost=evil\n": "slurm.conf .slurm/defaults etc/slurm.conf",
}
WORDS = (
    *("doctor", "site show", "site check", "site gpus", "cluster status", "stack list", "job list"),
    *("stack plan", "stack adopt .", "stack build --backend spack", "stack gc --dry-run"),
    *("stack verify a", "stack sbom", "job render -- ./x", "job submit --dry-run -- ./x"),
    *("job lint --live .", "check list", "check settings", "check gate", "check references show"),
    *("predict --model resnet50", "data make digits digits", "data inspect digits", "clean"),
    *("train --model mlp", "study list", "completion bash"),
)


@as_root
def test_nothing_that_others_left_around_is_imported_run_or_read(shared, evil):
    """Modules, .pth, programs, settings: all of them, in the directory that each command runs in.

    `python -m` would take them, and a release's Python is started in the same directory.
    """
    published(shared)
    (shared / "in").mkdir()
    (shared / "in").chmod(0o1777)
    here = Evil(shared / "in")
    evil.mark, here.mark = here.mark, here.mark
    file = embedded_file(
        shared / ".victim", ("$HPCDL_HOME/embedded/prefix", shared / ".victim/prefix")
    )
    here.plant(here.python, *(f"{name}/__init__.py" for name in PACKAGES.split()))
    here.plant(here.python, *(f"{name}.py" for name in MODULES.split()), "hpcdl/__main__.py")
    tail = ".local/lib/python3.11/site-packages"
    here.plant(here.python.replace("\n", "") + "\n", "evil.pth", f"{tail}/evil.pth")
    here.plant(here.program, *PROGRAMS.split())
    lua = f'os.execute("touch {here.mark}")\n'
    here.plant(lua, ".lmodrc.lua", "modules/tensorflow/99.lua", "modules/.modulerc.lua")
    for text, names in TEXTS.items():
        here.plant(text, *names.split())
    used = []
    for words in WORDS:
        argv = words.replace(" -- ", f" --site {file} -- ").split()
        done = hpcdl(here.place, *argv, *([] if "--" in argv else ["--site", str(file)]))
        absent = re.search("No module named '?hpcdl", done.stderr)  # in a release of nothing
        fault = "Traceback" in done.stderr and not absent
        if here.mark.exists() or fault or "evil" in done.stdout:
            used.append((words, done.stdout[-300:], done.stderr[-300:]))
            here.mark.unlink(missing_ok=True)
    assert used == []
    done = hpcdl(here.place, "site", "show")
    assert (done.returncode, "no site file is named" in done.stderr) == (2, True)
    inside = [*module_argv(sys.executable, "hpcdl"), "site", "show", "--site", "embedded"]
    told = subprocess.run(
        inside, cwd=here.place, env=clean_environment(), check=True, capture_output=True, text=True
    )
    assert "embedded" in told.stdout


@as_root
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_spack_s_settings_of_others_are_not_read(shared, evil, monkeypatch, tmp_path):
    """An environment or settings in the current directory, or an active one of the shell."""
    evil.plant(f"spack: {{include: [{shared}/evil], specs: [evil]}}\n", "spack.yaml")
    places = ("evil", ".spack", "etc/spack")
    evil.plant(f"config: {{build_stage: {shared}}}\n", *(f"{one}/config.yaml" for one in places))
    evil.plant(f"repos: {{evil: {shared}/evil}}\n", *(f"{one}/repos.yaml" for one in places))
    evil.plant("repo: {namespace: evil}\n", "evil/repo.yaml")
    evil.plant(evil.python, "evil/packages/evil/package.py")
    monkeypatch.setenv("SPACK_ENV", str(shared))
    monkeypatch.chdir(shared)
    spack = open_spack(tmp_path, tmp_path / "scope")
    told = spack.run("config", "blame", "config").stdout + spack.run("repo", "list").stdout
    assert str(shared) not in told
    assert spack.run("info", "evil", check=False).exit_code != 0


@as_root
@pytest.mark.cluster
def test_reframe_s_settings_of_others_are_not_read(shared, evil, slurm, tmp_path):
    """In the current directory, the work directory, and by variables of a shell."""
    pytest.importorskip("reframe", reason="ReFrame is not installed")
    (shared / "work").mkdir(mode=0o1777)
    (shared / "work").chmod(0o1777)
    for place in (".", "work"):
        names = (
            "settings .reframe/settings reframe reframe/__init__ hpcdl/__init__ sitecustomize rfm"
        )
        evil.plant(evil.python, *(f"{place}/{name}.py" for name in names.split()))
        evil.plant("systems: [{name: evil}]\n", f"{place}/settings.yaml")
    site = embedded_file(tmp_path, ("$HPCDL_HOME/embedded/", f"{shared}/"))
    (tmp_path / "check.py").write_text(CHECK)
    env = {
        "RFM_CONFIG_FILES": f"{shared}/settings.py",
        "RFM_CONFIG_PATH": str(shared),
        "RFM_CHECK_SEARCH_PATH": str(shared),
        "RFM_SYSTEM": "evil",
    }
    check = (sys.executable, tmp_path / "check.py", site, STANDINS, "run")
    Shell({**slurm.env, **env}, shared)(*check)
    locks = [*(shared / "work/checks").rglob(".db.lock")]
    assert {path.stat().st_mode & 0o077 for path in locks} == {0}, "ReFrame waits for its readers"
    (verdicts,) = (shared / "work/checks/runs").glob("*/verdicts.json")
    assert json.loads(verdicts.read_text())["verdicts"][0]["check"] == "honest"


@as_root
@pytest.mark.cluster
def test_a_job_takes_nothing_from_the_directory_that_it_was_submitted_in(evil, slurm, tmp_path):
    """Programs, modules of Python and libraries that lie in /tmp, where the user happens to be."""
    evil.plant(evil.program, "python3", "srun", "bash", "scontrol", "id")
    names = "yaml json sitecustomize usercustomize hpcdl/__init__"
    evil.plant(evil.python, *(f"{name}.py" for name in names.split()))
    places = ".bashrc .profile .bash_profile libc.so.6 .sbatchrc"
    evil.plant(f"touch {evil.mark}\n", *places.split())
    site = embedded_file(tmp_path, ("$HPCDL_HOME/embedded/", f"{tmp_path}/"))
    program = "import json, os; print('at', os.getcwd())"
    words = ("job", "submit", "--site", site, "--no-module", "--watch", "--json", "--partition=cpu")
    there = Shell(slurm.env, evil.place)
    answer = json.loads(there.hpcdl(*words, "--", "python3", "-c", program, timeout=120).stdout)
    text = Path(answer["log"]).read_text()
    assert answer["state"] == "COMPLETED", text
    assert f"at {answer['directory']}" in text


@as_root
@pytest.mark.cluster
@pytest.mark.parametrize(
    "prepared",
    [
        "mkdir -m 777 {job}",
        "ln -s {victim} {job}",
        "touch {job}",
        "mv {jobs} away && mkdir -m 777 {jobs}",
        "mv {jobs} away && ln -s {victim} {jobs}",
    ],
)
def test_a_job_does_not_run_in_a_directory_that_another_prepared(shared, slurm, tmp_path, prepared):
    """That of a rendered script has the job's number in its name: anybody knows the next one."""
    site = embedded_file(tmp_path, ("$HPCDL_HOME/embedded/", f"{shared}/"))
    render = ["job", "render", "--site", str(site), "--name", "j", "--no-module"]
    done = hpcdl(tmp_path, *render, "--file", QUICK, "--partition", "cpu", "--", "touch", "ran")
    (tmp_path / "job.sh").write_text(done.stdout)
    jobs, victim = shared / "work/jobs", shared / "victim"
    victim.mkdir()
    stranger(f"mkdir -p {jobs} && chmod 1777 {jobs.parent} {jobs}", shared)
    if "jobs" not in prepared:
        os.chown(jobs, 0, 0)

    words = ("sbatch", "--parsable", "--hold", "-o", "log", "job.sh")  # the number is known so
    held = int(slurm(*words).stdout.split(";")[0])
    (name,) = re.findall(r"ClusterName += (\S+)", slurm("scontrol", "show", "config").stdout, re.I)
    job = jobs / f"j-{name}-{held}"
    stranger(prepared.format(job=job, jobs=jobs, victim=victim), shared)
    slurm("scontrol", "release", str(held))
    wait_for(lambda: not slurm("squeue", "-h", "-j", str(held), check=False).stdout)
    (said,) = (tmp_path / "log").read_text().splitlines()
    wanted = f"hpcdl: another user can change {job if str(job) in said else jobs}"
    assert said.startswith(wanted) or said.endswith(": File exists")
    assert not list(shared.rglob("ran"))


@as_root
@needs_lmod
def test_the_gate_heeds_no_variable_of_the_shell_that_starts_it(shared, evil, monkeypatch):
    """PYTHONPATH, PATH, LD_PRELOAD, BASH_ENV and LMOD_* of an admin's shell would pass anything."""
    evil.plant(evil.python, "bad/tensorflow/__init__.py", "bad/sitecustomize.py")
    evil.plant(evil.program, "bad/python", "bad/env.sh")
    site = published(shared, lmod=True)
    for name in ("PYTHONPATH", "PYTHONSTARTUP", "LMOD_SITE_PACKAGE_PATH"):
        monkeypatch.setenv(name, str(shared / "bad"))
    monkeypatch.setenv("PATH", f"{shared}/bad:{os.environ['PATH']}")
    monkeypatch.setenv("BASH_ENV", str(shared / "bad/env.sh"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(shared / "bad"))
    # ld.so names it where it is heeded.
    monkeypatch.setenv("LD_PRELOAD", str(shared / "bad/none.so"))
    monkeypatch.chdir(shared / "bad")
    release = current_release(site)
    told = in_module(site, release, ["env"])
    assert told.ok
    monkeypatch.delenv("LD_PRELOAD")
    assert str(shared / "bad") not in told.stdout
    # `env`, which empties the environment, is the one program that ld.so could not spare.
    assert told.stderr.count("none.so") == 1, told.stderr
    evil.mark.unlink(missing_ok=True)  # BASH_ENV is bash's own, of the admin's shell, if at all
    verify_here(site, release)


@as_root
@needs_lmod
def test_modules_and_modulerc_of_others_do_not_reach_a_job(shared, evil):
    """A job names its release by directory: others' modules of the same name come behind it."""
    site = published(shared, lmod=True)
    lua = f'os.execute("touch {evil.mark}")\n'
    evil.plant(lua, *(f"modules/tensorflow/{one}.lua" for one in ("2.21.0-cpu", "99.0")))
    evil.plant('module_version("99.0", "default")\n', "modules/tensorflow/.modulerc.lua")
    release = release_for(site, "p100")
    module = Module((release.module,), release.modules, release.id)
    spec = JobSpec(
        partition="p100", gpus=1, name="x", program=("true",), job_dir=shared / ".victim" / "job"
    )
    script = render_script(site, spec, module).text
    lines = [line for line in script.splitlines() if line.startswith("module ")]
    assert any("load" in line for line in lines)
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "MODULEPATH": f"{shared}/modules"}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", "\n".join([f". {LMOD}", *lines, "env"])],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"HPCDL_RELEASE={release.id}" in done.stdout


@pytest.mark.parametrize("nodes", ["g[01-02];id", "$(id)", "../g1", "g1\\nNodeName=x", "-[1-2]"])
def test_node_names_are_names(tmp_path, nodes):
    """They become lines of slurm.conf, options of sbatch, and file names."""
    text = find_site_file("embedded").read_text()
    file = tmp_path / "site.yaml"
    file.write_text(text.replace("    nodes: 2\n", f'    nodes: 2\n    hostlist: "{nodes}"\n', 1))
    with pytest.raises(BadInput) as caught:
        load_site(file)
    assert f'hostlist: "{nodes}"' in caught.value.render()


@as_root
def test_nothing_is_compiled_in_the_temporary_directory_of_another_user(shared, monkeypatch):
    """`sudo -E` keeps TMPDIR: its owner renames what lies in it, and puts his own there."""
    stranger("mkdir -m 0777 his", shared)
    monkeypatch.setattr("tempfile.tempdir", str(shared / "his"))
    said = "his cannot be trusted: it belongs to nobody"
    with pytest.raises(MissingPrerequisite, match=said), scratch_directory():
        pass
    assert list((shared / "his").iterdir()) == []
