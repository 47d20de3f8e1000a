"""Partitions of several GPU models on a real Slurm: drafted, checked, asked for, run."""

import pytest

from hpcdl.cluster.teardown import down
from hpcdl.site import load_site
from hpcdl.system.errors import MissingPrerequisite
from tests.integration.conftest import shell_of
from tests.make.sites import up

pytestmark = pytest.mark.cluster

# `mixed` has two models; `odd` has one that Slurm gives a type and one that it gives none.
REAL = """
schema: 1
name: models
slurm: {version: "22.05.8"}
paths: {prefix: /tmp/hpcdl-none, work: /tmp/hpcdl-none, datasets: /tmp/hpcdl-none}
gpus:
  X1: {compute: 8.9, memory_gb: 16}
partitions:
  mixed:
    nodes: 3
    hostlist: "m[1-3]"
    sockets: 2
    cores_per_socket: 8
    memory_gb: 60
    groups:
      - {nodes: 2, hostlist: "m[1-2]", gpu: {model: A100-PCIe-40GB, gres_type: a100, per_node: 4}}
      - {nodes: 1, hostlist: m3, memory_gb: 90, gpu: {model: L40S, gres_type: l40s, per_node: 8}}
  odd:
    nodes: 2
    hostlist: "o[1-2]"
    sockets: 1
    cores_per_socket: 8
    memory_gb: 30
    groups:
      - {nodes: 1, hostlist: o1, gpu: {model: T4, gres_type: t4, per_node: 2}}
      - {nodes: 1, hostlist: o2, gpu: {model: X1, typed: false, per_node: 2}}
"""


@pytest.fixture(scope="module")
def shell(cluster_home):
    home = cluster_home / "models"
    home.mkdir()
    (home / "real.yaml").write_text(REAL)
    directory = home / "cluster"
    try:
        state = up(load_site(home / "real.yaml"), directory=directory)
    except MissingPrerequisite as lack:
        pytest.skip(f"{lack.message}; {lack.hint}")
    env = {"HPCDL_CLUSTER_DIR": str(directory), "HPCDL_SITE": str(home / "site.yaml")}
    yield shell_of(state, home, HPCDL_HOME=str(home), **env)
    down(directory)


@pytest.fixture(scope="module")
def drafted(shell):
    """The site file that `site init` drafts, with the one thing that Slurm does not say."""
    path = shell.directory / "site.yaml"
    said = shell.refused(6, "site", "init", "--output", path)
    assert said == "to fill in: partitions.odd.groups.2.gpu.model: Slurm says no type\n"
    text = path.read_text().replace("model: FILL-IN", "model: X1")
    text += "gpus:\n  X1: {compute: 8.9, memory_gb: 16}\n"
    path.write_text(text.replace("$HOME/hpcdl", str(shell.directory / "files")))
    return path


def test_a_drafted_site_agrees_with_the_cluster(shell, drafted):
    shell.hpcdl("site", "check")
    groups = load_site(drafted).partition("mixed").groups
    assert [(group.hostlist, group.memory_gb) for group in groups] == [("m[1-2]", 61), ("m3", 92)]


def submit(shell, *words):
    """The nodes that a job's ranks ran on, and the GPUs that each saw."""
    program = 'echo "saw $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'
    lines = shell.run("--time", "5", *words, "--", "sh", "-c", program)["text"].splitlines()
    return {line.removeprefix("saw ") for line in lines if line.startswith("saw ")}


@pytest.mark.parametrize(
    ("asked", "ran"),
    [
        (["--gpu-model", "l40s", "--gpus", "8"], {"m3 0,1,2,3,4,5,6,7"}),
        (["--gpu-model", "A100", "--gpus", "8"], {"m1 0,1,2,3", "m2 0,1,2,3"}),
        (["--partition", "odd", "--gpu-model", "t4", "--gpus", "2"], {"o1 0,1"}),
        (["--partition", "odd", "--gpu-model", "x1", "--gpus", "2"], {"o2 0,1"}),
    ],
)
def test_a_job_runs_on_the_nodes_of_the_model_it_asks_for(shell, drafted, asked, ran):
    assert submit(shell, *asked) == ran


def test_a_job_that_any_model_can_hold_runs_on_one(shell, drafted):
    (seen,) = submit(shell, "--gpus", "4")
    assert seen.split()[0] in {"m1", "m2", "m3"}


@pytest.mark.parametrize("asked", [["--gpus", "8"], ["--gpu-model", "l40s", "--gpus", "9"]])
def test_what_no_node_can_hold_is_refused_before_slurm_is_asked(shell, drafted, asked):
    assert "help: ask for" in shell.refused(2, "job", "submit", "--no-module", *asked, "--", "true")
    assert shell("squeue", "-h").stdout == ""


def test_nodes_that_change_their_gpus_are_named(shell, drafted):
    other = shell.directory / "other.yaml"
    other.write_text(drafted.read_text().replace("gres_type: l40s", "gres_type: h100"))
    found = shell.hpcdl("site", "check", "--site", str(other), check=False)
    assert found.returncode == 1
    rows = [line.split() for line in found.stdout.splitlines()[1:]]
    assert rows == [
        ["partitions.mixed.groups.2", "1", "node", "x", "8", "h100", "none", "such"],
        ["partitions.mixed.groups", "not", "described", "1", "node", "x", "8", "l40s:", "m3"],
    ]
