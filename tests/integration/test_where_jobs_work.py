"""Programs from where the user stands, and in a container: every form finds its own files."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.images import busybox_image

pytestmark = pytest.mark.cluster
CPU = ("--partition", "cpu", "--nodes", "2")
SAYS = "import os, sys; print('ran', os.path.basename(os.getcwd()), *sys.argv[1:])"


@pytest.fixture
def here(slurm):
    (slurm.directory / "pkg").mkdir()
    for name in ("x.py", "pkg/__init__.py"):
        (slurm.directory / name).write_text("")
    for name in ("x.py", "pkg/__main__.py"):
        (slurm.directory / name).write_text(SAYS)
    (slurm.directory / "prog").write_text("#!/bin/sh\necho ran $(basename $PWD) $(cat $1)\n")
    (slurm.directory / "prog").chmod(0o755)
    (slurm.directory / "data.txt").write_text("content")
    return slurm.directory


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "python3", "x.py", "1"], "ran job 1"),
        (["--", "python3", "-m", "pkg", "1"], "ran job 1"),
        (["--chdir", ".", "--", "python3", "-m", "pkg"], "ran HERE"),
        (["--chdir", ".", "--", "./prog", "data.txt"], "ran HERE content"),
        (["--", "env", "A=b", "python3", "x.py"], "ran job"),
    ],
)
def test_a_program_finds_its_files(slurm, here, words, said):
    ended = slurm.run(*CPU, "--job-dir", here / "job", *words)
    assert ended["state"] == "COMPLETED", ended["text"]
    lines = re.findall("ran.*", ended["text"])
    assert lines == [said.replace("HERE", here.name)] * 2, ended["text"]


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """A directory that is an image of a few programs: Debian's static busybox."""
    if shutil.which("ch-run") is None:
        pytest.skip("Charliecloud is not installed (apt-get install charliecloud)")
    root = busybox_image(tmp_path_factory.mktemp("image") / "root")
    done = subprocess.run(
        ["ch-run", root, "--", "/bin/true"],
        env={**os.environ, "USER": "root"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "ch-run" in done.stderr and "user namespace" in done.stderr:
        pytest.skip(f"Charliecloud cannot run here: {done.stderr}")
    return root


@pytest.fixture
def charliecloud(slurm):
    """What this container runtime wants to find."""
    slurm.env = {name: value for name, value in slurm.env.items() if name != "USER"}
    Path(slurm.env["HPCDL_HOME"], "embedded/datasets").mkdir(parents=True, exist_ok=True)


def test_a_container_sees_the_directories_of_program_data_and_job(slurm, here, image, charliecloud):
    (here / "data").mkdir()
    (here / "data/shard").write_text("shard")
    (here / "run.sh").write_text(
        'echo "ran in $(basename $PWD): $(cat $HPCDL_DATA/shard) $(cat $(dirname $0)/data.txt)"\n'
        "echo kept >kept; ls /usr 2>&1 | head -1\n"
    )
    (here / "image").symlink_to(image)
    places = ("--data", here / "data", "--job-dir", here / "job")
    words = ("--nodes=2", "--gpus-per-node=1", "--container=image", *places, "--", "sh", "run.sh")
    ended = slurm.run(*words)
    text = ended["text"]
    assert ended["state"] == "COMPLETED", text
    assert text.count("ran in job: shard content") == 2, text
    assert "No such file" in text, "the host's /usr is not in the image"
    assert (here / "job/kept").read_text() == "kept\n"


ALLREDUCE = """
import ctypes
mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
world, double, add = (
    ctypes.byref(ctypes.c_char.in_dll(mpi, name))
    for name in ("ompi_mpi_comm_world", "ompi_mpi_double", "ompi_mpi_op_sum")
)
count = 1 << 20
given, total = (ctypes.c_double * count)(*[1.0] * count), (ctypes.c_double * count)()
mpi.MPI_Allreduce(given, total, count, double, add, world)
mpi.MPI_Finalize()
print("sum", total[0], total[count - 1])
"""


def test_ranks_exchange_long_messages_from_container_to_container(slurm, here, image, charliecloud):
    """Open MPI copies them from the other's memory, which no user namespace lets it do."""
    for name in ("usr", "lib", "lib64"):
        (image / name).mkdir(exist_ok=True)
    (here / "sum.py").write_text(ALLREDUCE)
    run = f"{shutil.which('ch-run')} --bind=/usr --bind=/lib --bind=/lib64"
    (here / "ch-run").write_text(f'#!/bin/sh\nexec {run} "$@"\n')
    (here / "ch-run").chmod(0o755)
    path = f"PATH={here}:/usr/bin:/bin"
    words = ("--nodes=2", "--gpus-per-node=2", "--launcher=mpi", "--time=2", "--container", image)
    words += ("--env", path, "--job-dir", here / "job", "--", "python3", "sum.py")
    ended = slurm.run(*words)
    assert ended["state"] == "COMPLETED", ended["text"]
    assert ended["text"].count("sum 4.0 4.0") == 4, ended["text"]


def test_an_image_that_is_not_there_is_refused(slurm, charliecloud):
    words = ("job", "submit", "--no-module", "--container", "/no/image", "--", "true")
    assert slurm.refused(2, *words).startswith("error: there is no image /no/image\nhelp: ")
