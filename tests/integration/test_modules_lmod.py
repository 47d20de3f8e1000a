"""The modulefiles under the real Lmod: what loads, what is set, and that nothing stays."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.site import StackRequest
from hpcdl.stack.publish import publish
from hpcdl.stack.tree import add_startup
from tests.integration.conftest import needs_lmod
from tests.make.releases import LMOD, make_current, passing, silent
from tests.make.sites import mixed_site, small_site

pytestmark = needs_lmod


def lmod(modulepath, script, **env):
    """Run a script in a shell that has Lmod and nothing else."""
    base = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "MODULEPATH": str(modulepath), **env}
    argv = ["bash", "--noprofile", "--norc", "-c", f". {LMOD}\n{script}"]
    return subprocess.run(argv, env=base, capture_output=True, text=True, check=False, timeout=120)


def told(done):
    """What Lmod says, whose lines it breaks."""
    return " ".join(done.stderr.split())


def switching(site, script):
    """What a script prints that may publish a release by the link alone: `swap NAME`."""
    prefix = site.paths.prefix
    swap = 'swap() { ln -s "releases/$1" "$P/new" && mv -T "$P/new" "$P/current"; }; '
    return lmod(prefix / "current/modules", swap + script, P=str(prefix)).stdout.splitlines()


@pytest.fixture
def site(tmp_path):
    return small_site(tmp_path / "a prefix", lmod=True)


@pytest.fixture
def published(site):
    return make_current(site, "tensorflow-2.21.0-cpu-00000001")


@pytest.fixture
def modules(site, published):
    return site.paths.prefix / "current" / "modules"


def test_loading_gives_the_stack_s_python(modules, published):
    done = lmod(modules, "module load tensorflow; command -v python; echo $HPCDL_RELEASE")
    assert done.stdout.split("\n")[:2] == [str(published.python), published.id]
    assert done.stderr == ""


def test_unloading_restores_every_variable(modules):
    show = "env | grep -vE '^(_|__?LMOD|_?ModuleTable|LMOD|_LMFILES_|LOADEDMODULES)' | sort"
    script = f"{show}; echo ==; module load tensorflow; module unload tensorflow; {show}"
    before, after = lmod(modules, script, PYTHONPATH="/mine", HPCDL_SITE="x").stdout.split("==\n")
    assert before == after
    assert "PYTHONPATH=/mine" in before


def test_pythonhome_of_another_python_meets_a_clear_word(modules):
    done = lmod(modules, "module load tensorflow && echo loaded", PYTHONHOME="/opt/python/3.9")
    assert done.stdout == "loaded\n"
    said = told(done)
    assert "warning: tensorflow/2.21.0-cpu" in said
    assert "PYTHONHOME is /opt/python/3.9" in said
    assert "`unset PYTHONHOME`" in said
    inside = lmod(
        modules,
        "module load tensorflow && echo loaded",
        PYTHONHOME="/opt/python/3.9",
        SLURMD_NODENAME="node1",
    )
    assert inside.stdout == ""
    assert "PYTHONHOME" in inside.stderr


def test_avail_spider_and_help_name_it(modules):
    assert "tensorflow/2.21.0-cpu" in lmod(modules, "module --terse avail").stderr
    assert "TensorFlow 2.21.0, Horovod 0.28.1" in lmod(modules, "module spider tensorflow").stderr
    assert "python -m venv --system-site-packages" in lmod(modules, "module help tensorflow").stderr


def test_a_build_for_gpus_says_so_in_its_version_and_its_words(site):
    versions = {
        "tensorflow": "2.18.1",
        "horovod": "0.28.1",
        "cuda": "12.9.1",
        "python": "3.11.7",
        "cudnn": "9.10.2.21",
        "mpi": "Open MPI 5.0.10",
    }
    name = "tensorflow/2.18.1-cuda12.9-sm60"
    site = dataclasses.replace(site, agreements={"cuda": "Ada", "cudnn": "Ada"})
    release = make_current(site, "gpu", module=name, versions=versions)
    done = lmod(release.modules, f"module load {name} && module --terse list; module whatis {name}")
    assert name in done.stderr
    assert "TensorFlow 2.18.1, Horovod 0.28.1, CUDA 12.9.1, cuDNN 9.10.2.21" in done.stderr


@pytest.fixture
def hidden(site, tmp_path):
    """A release that was built upon an Open MPI in a folder that users do not have."""
    folder = tmp_path / "site modules"
    for version in (".4.1.5", "5.0"):
        file = folder / "openmpi" / f"{version}.lua"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'setenv("MPI_HOME", "/apps/openmpi/{version}")\n')
    needs = {"modules": [{"name": "openmpi/.4.1.5", "directory": str(folder)}]}
    return make_current(site, "upon-mpi", needs=needs), folder


def test_what_it_was_built_upon_comes_and_goes_with_it(hidden):
    release, _ = hidden
    shows = "echo $MPI_HOME; module unload tensorflow; echo [$MPI_HOME] $MODULEPATH"
    done = lmod(release.modules, f"module load tensorflow; {shows}")
    assert done.stdout.splitlines() == ["/apps/openmpi/.4.1.5", f"[] {release.modules}"]
    assert done.stderr == ""
    assert "openmpi" not in lmod(release.modules, "module --terse avail").stderr, "users see none"


def test_a_user_s_own_load_of_it_and_its_folder_stay(hidden):
    release, folder = hidden
    script = "module load openmpi/.4.1.5 tensorflow; module unload tensorflow; "
    script += 'echo "$MPI_HOME $MODULEPATH"'
    path = f"{release.modules}:{folder}"
    assert lmod(Path(path), script).stdout == f"/apps/openmpi/.4.1.5 {path}\n"


def test_a_job_of_it_loads_what_it_was_built_upon(hidden):
    release, _ = hidden
    script = f"module --force purge; module use '{release.modules}'; module load {release.module}"
    done = lmod(Path("/nonexistent"), f"{script}; echo $MPI_HOME", SLURMD_NODENAME="gpu01")
    assert (done.stdout, done.stderr) == ("/apps/openmpi/.4.1.5\n", "")


def test_the_loaded_module_that_brings_the_mpi_is_found(tmp_path):
    program = tmp_path / "apps" / "openmpi" / "bin" / "mpirun"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    folder = tmp_path / "modules"
    for name, place in (("openmpi/4.1.5", program.parent), ("git/2.40", Path("/apps/git/bin"))):
        (folder / name).parent.mkdir(parents=True)
        (folder / f"{name}.lua").write_text(f'prepend_path("PATH", "{place}")\n')
    ask = "from hpcdl.stack.horovod import modules_behind; print(modules_behind('mpirun'))"
    script = f'module load git openmpi; {sys.executable} -c "{ask}"'
    done = lmod(folder, script, PYTHONPATH=str(Path(__file__).resolve().parents[2]))
    assert done.stdout == f"[{{'name': 'openmpi/4.1.5', 'directory': '{folder}'}}]\n"


def test_unloading_takes_the_loaded_release_s_folders_away_after_a_rebuild(site, published):
    """The file of that name has another release by then; both put folders into a variable."""
    for name in ("one", "two"):
        own = site.paths.prefix / "releases" / name / "stack" / "lib"
        environment = {"LD_LIBRARY_PATH": [str(own), "/shared/lib"], "MARK": "x"}
        make_current(site, name, version="2.22.0", environment=environment)
    said = switching(
        site,
        "swap one; module load tensorflow; echo $LD_LIBRARY_PATH; "
        "swap two; module unload tensorflow; echo [$LD_LIBRARY_PATH] [$MARK]",
    )
    assert said == [f"{site.paths.prefix}/releases/one/stack/lib:/shared/lib", "[] []"]


def test_flags_are_added_to_the_user_s_own_which_come_back(tmp_path):
    site = small_site(tmp_path / "flags", lmod=True)
    environment = {"XLA_FLAGS": "--ours=1", "MARK": "x"}
    release = make_current(site, "flags", environment=environment)
    script = (
        'module load tensorflow; echo "$XLA_FLAGS:$MARK"; module load tensorflow; '
        'echo "$XLA_FLAGS"; module unload tensorflow; echo "${XLA_FLAGS-none}:${MARK-none}"'
    )
    told = lmod(release.modules, script, XLA_FLAGS="--mine=2", MARK="y").stdout.split()
    assert told == ["--mine=2", "--ours=1:x", "--mine=2", "--ours=1", "--mine=2:y"]
    told = lmod(release.modules, script).stdout.split()
    assert told == ["--ours=1:x", "--ours=1", "none:none"]


def test_one_tensorflow_at_a_time(site, modules, tmp_path):
    """Another module of the family is swapped, as users expect of versions."""
    other = tmp_path / "others" / "tensorflow" / "1.0.lua"
    other.parent.mkdir(parents=True)
    other.write_text('family("tensorflow")\nsetenv("OTHER", "1")\n')
    script = (
        f"module use -a {tmp_path}/others; module load tensorflow/1.0; "
        "module load tensorflow/2.21.0-cpu; echo [$OTHER] $HPCDL_RELEASE"
    )
    assert lmod(modules, script).stdout == "[] tensorflow-2.21.0-cpu-00000001\n"


def test_a_job_s_modulepath_survives_the_next_publish(site, published):
    make_current(site, "tensorflow-2.20.0-cpu-00000002", version="2.20.0")
    done = lmod(published.modules, f"module load {published.module}; echo $HPCDL_RELEASE")
    assert done.stdout.strip() == published.id


@pytest.mark.parametrize("version", ["2.20.0", "2.21.0"])
def test_a_shell_that_loaded_the_old_one_can_still_unload_it(site, published, version):
    """Between a user's load and unload the admin publishes: another version, or a rebuild."""
    second = make_current(site, "tensorflow-second", version=version)
    for name in (published.id, second.id):
        publish(site, name, passing, say=silent)
    said = switching(
        site,
        f"swap {published.id}; module load tensorflow; echo $HPCDL_RELEASE; "
        f"swap {second.id}; module unload tensorflow; echo [$HPCDL_RELEASE] [$PYTHONPATH] $PATH",
    )
    assert said == [published.id, "[] [] /usr/bin:/bin"]


def loaded_in(modules, **env):
    script = "module load tensorflow; module --terse list"
    return lmod(modules, script, **env).stderr.split("tensorflow/")[1].strip()


@pytest.fixture
def two_stacks(tmp_path):
    """k80 has a stack of its own; the default partition is p100."""
    site = small_site(tmp_path / "prefix", lmod=True)
    k80 = dataclasses.replace(site.partitions["k80"], stack="kepler")
    kepler = StackRequest("kepler", "wheels", ("k80",), {}, variant="cpu")
    both = {"partitions": {**site.partitions, "k80": k80}, "stacks": {"kepler": kepler}}
    site = dataclasses.replace(site, **both)
    make_current(site, "new", version="2.21.0")
    make_current(site, "old", version="2.14.1", stack="kepler", partitions=("k80",))
    return site


def test_the_job_s_partition_decides_what_a_plain_load_gives(two_stacks):
    modules = two_stacks.paths.prefix / "current" / "modules"
    assert loaded_in(modules) == "2.21.0-cpu"
    assert loaded_in(modules, SLURM_JOB_PARTITION="k80") == "2.14.1-cpu"
    assert loaded_in(modules, SLURM_JOB_PARTITION="p100") == "2.21.0-cpu"
    assert loaded_in(modules, SLURM_JOB_PARTITION="new-and-unknown") == "2.21.0-cpu"


def on_machine(file, proc, driver="", gpu="", flags="fpu avx", bus="85:00"):
    """Let a modulefile see another /proc, as the kernel and NVIDIA's driver write it."""
    card = proc / f"driver/nvidia/gpus/0000:{bus}.0"
    card.mkdir(parents=True, exist_ok=True)
    (proc / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n")
    if driver:
        kind = "Open Kernel Module for x86_64" if driver > "560" else "x86_64 Kernel Module"
        text = f"NVRM version: NVIDIA UNIX {kind}  {driver}  Wed Nov  8 2023\n"
        (proc / "driver/nvidia/version").write_text(text)
    if gpu:
        (card / "information").write_text(f"Model: \t\t {gpu}\nIRQ:   \t\t 42\n")
    file.write_text(file.read_text().replace('"/proc"', f'"{proc}"'))


def test_without_a_job_the_gpu_that_is_found_decides(two_stacks, tmp_path):
    """As on an interactive node with a K80: the driver's files say what it is."""
    modules = two_stacks.paths.prefix / "current" / "modules"
    on_machine(modules / "tensorflow/.modulerc.lua", tmp_path / "proc", **FITS)
    assert loaded_in(modules) == "2.14.1-cpu"
    assert loaded_in(modules, SLURM_JOB_PARTITION="p100") == "2.21.0-cpu"


@pytest.mark.parametrize(
    ("gpu", "version"),
    [
        ("NVIDIA L40S", "ada"),
        ("NVIDIA A100-PCIE-40GB", "ampere"),
        ("NVIDIA L4", "ada"),
        ("NVIDIA L40", "ada"),
        ("", "ada"),
    ],
)
def test_in_a_partition_of_several_models_the_gpu_that_is_found_decides(tmp_path, gpu, version):
    site = mixed_site(tmp_path / "prefix")
    for name, models in (("ampere", ["A100"]), ("ada", ["L40S", "L4"])):
        make_current(
            site,
            name,
            stack="mixed",
            partitions=("typed",),
            needs={"gpus": models},
            module=f"tensorflow/{name}",
        )
    modules = site.paths.prefix / "current" / "modules"
    driver = "570.1.2" if gpu else ""
    on_machine(modules / "tensorflow/.modulerc.lua", tmp_path / "proc", driver, gpu)
    done = lmod(modules, "module load tensorflow; echo $HPCDL_RELEASE", SLURM_JOB_PARTITION="typed")
    assert done.stdout.strip() == version


@pytest.mark.parametrize(
    ("gpu", "fits"),
    [
        ("NVIDIA L4", True),
        ("NVIDIA L40S", False),
        ("Tesla P4", False),
        ("Tesla P40", True),
        ("NVIDIA GB200", False),
        ("NVIDIA B200", True),
        ("NVIDIA RTX 5000 Ada Generation", True),
    ],
)
def test_the_guard_takes_a_model_for_no_other(site, tmp_path, gpu, fits):
    models = ["L4", "P40", "B200", "RTX 5000 Ada"]
    release = make_current(site, "guarded", needs={"gpus": models})
    on_machine(release.modules / f"{release.module}.lua", tmp_path / "proc", "570.1.2", gpu)
    done = lmod(release.modules, "module load tensorflow && echo loaded", SLURMD_NODENAME="n1")
    assert (done.stdout == "loaded\n") is fits


NEEDS = {"cpu_flags": ["avx"], "driver": {"from": "450.80.02", "branch": 470}, "gpus": ["K80"]}
FITS = {"driver": "470.223.02", "gpu": "Tesla K80"}
FAULTS = [
    ({"flags": "fpu sse4_2 avx2"}, "the CPU has no avx"),
    ({"driver": "440.33.01"}, "driver is 440.33.01, but the release needs 450.80.02 or newer"),
    ({"driver": "580.65.06"}, "branch 470 is the last one that supports this GPU"),
    ({"gpu": "Tesla V100-SXM2-16GB", "bus": "00:04"}, "the GPU is a Tesla V100-SXM2-16GB"),
    ({"driver": "535.104.05"}, "branch 470 is the last one that supports this GPU"),
    ({"gpu": "Tesla P100-PCIE-16GB"}, "the release has device code for K80"),
    ({"driver": "", "gpu": ""}, "this node has no NVIDIA driver"),
]


@pytest.fixture
def guarded(tmp_path):
    """Loads a release for K80 nodes on a machine that fits but for `wrong`."""
    site = small_site(tmp_path / "prefix", lmod=True)
    release = make_current(site, "kepler", version="2.14.1", needs=NEEDS)

    def load(wrong, **env):
        file = release.modules / f"{release.module}.lua"
        on_machine(file, tmp_path / "proc", **{**FITS, **wrong})
        return lmod(release.modules, "module load tensorflow && echo $HPCDL_RELEASE", **env)

    return load


@pytest.mark.parametrize(("wrong", "reason"), FAULTS)
def test_a_machine_that_does_not_fit_is_an_error_in_a_job_else_a_warning(guarded, wrong, reason):
    done = guarded(wrong, SLURMD_NODENAME="gpu01")
    assert (done.stdout, told(done).count(reason)) == ("", 1)
    shell_of_salloc = {"SLURM_JOB_ID": "1", "SLURM_JOB_PARTITION": "k80"}
    for env in ({}, shell_of_salloc) if wrong.get("gpu") != "" else ():
        done = guarded(wrong, **env)
        assert done.stdout == "kepler\n"
        assert reason in told(done)


@pytest.mark.parametrize(
    ("wrong", "env"), [({}, {}), ({"driver": "", "gpu": ""}, {}), ({}, {"SLURMD_NODENAME": "g1"})]
)
def test_a_node_that_fits_and_a_login_node_without_gpu_are_silent(guarded, wrong, env):
    done = guarded(wrong, **env)
    assert (done.stdout, done.stderr) == ("kepler\n", "")


def test_avail_shows_what_is_published_now(site, published):
    setup = '. "$P/etc/profile.sh"; module --terse avail'
    listed = [lmod(Path("/nonexistent"), setup, P=str(site.paths.prefix)).stderr]
    assert "tensorflow/2.21.0-cpu" in listed[0]
    make_current(site, "tensorflow-2.22.0-cpu-00000002", version="2.22.0")
    listed.append(lmod(Path("/nonexistent"), setup, P=str(site.paths.prefix)).stderr)
    assert "tensorflow/2.22.0-cpu" in listed[1]
    assert "tensorflow/2.22.0-cpu" not in listed[0]


def test_the_profile_can_be_sourced_again(site, published):
    script = '. "$P/etc/profile.sh"; . "$P/etc/profile.sh"; echo "$MODULEPATH"'
    printed = lmod(Path("/opt/m"), script, P=str(site.paths.prefix)).stdout
    assert printed == f"/opt/m:{site.paths.prefix}/current/modules\n"


@pytest.mark.parametrize(
    "name", ["python2", "python2.7", "python3", *(f"python3.{minor}" for minor in range(6, 15))]
)
def test_pythons_of_other_versions_start_as_ever(modules, name):
    """The folder on PYTHONPATH must do no harm to any tool, down to Python 2."""
    ask = [name, "-c", "import sys; print(sys.executable)"]
    try:
        python = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this Python is not here")
    script = f"{python} -c 'import sys; print(sys.path)'"
    plain = lmod(modules, script)
    loaded = lmod(modules, f"module load tensorflow; {script}")
    assert loaded.stderr == ""
    folder = next(part for part in loaded.stdout.split("'") if part.endswith("hpcdl/python"))
    assert loaded.stdout.replace(f"'{folder}', ", "") == plain.stdout


def test_packages_of_another_module_come_after_the_stack_s_and_are_named(
    modules, published, tmp_path
):
    """A numpy in PYTHONPATH once was TensorFlow's; a user's own program stays in front."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for place in (published.prefix / "lib" / version / "site-packages", tmp_path / "foreign"):
        (place / "numpy").mkdir(parents=True)
        (place / "numpy" / "__init__.py").touch()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").touch()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", published.prefix], check=True)
    add_startup(published.prefix)
    script = "module load tensorflow; python -c 'import numpy, mine; print(numpy.__file__)'"
    done = lmod(modules, script, PYTHONPATH=f"{tmp_path}/foreign:{tmp_path}/own")
    assert done.stdout.startswith(f"{published.prefix}/lib/"), done.stderr
    assert f"{tmp_path}/foreign/numpy/__init__.py is of another module" in told(done)


def test_libraries_of_another_module_are_named(site, modules, tmp_path):
    """Such as a site's cuDNN 9.11, which has no code for a P100."""
    site = dataclasses.replace(site, agreements={"cuda": "Ada", "cudnn": "Ada"})
    make_current(site, "gpu", module="tensorflow/2.21.0-cuda12.9-sm60", needs={"gpus": ["P100"]})
    (tmp_path / "cudnn").mkdir()
    (tmp_path / "cudnn" / "libcudnn.so.9").touch()
    path = str(tmp_path / "cudnn")
    done = lmod(modules, "module load tensorflow && echo loaded", LD_LIBRARY_PATH=path)
    assert done.stdout == "loaded\n"
    assert f"warning: {path}/libcudnn.so.9 is of another module" in told(done)
    assert lmod(modules, "module load tensorflow/2.21.0-cpu", LD_LIBRARY_PATH=path).stderr == ""


def test_a_sitecustomize_of_the_user_still_runs(modules, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine ran')\n")
    script = "module load tensorflow; /usr/bin/python3 -c 'print(1)'"
    assert lmod(modules, script, PYTHONPATH=str(tmp_path)).stdout == "mine ran\n1\n"
