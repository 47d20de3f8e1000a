"""Launchers: ranks, roles, ports and hosts are worked out, nobody edits a hosts file."""

import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.jobs import JobSpec, Module, render_script
from hpcdl.system.errors import BadInput
from tests.unit.conftest import shipped


@pytest.fixture(scope="module")
def site():
    return shipped("embedded")


WORKERS = JobSpec("p100", nodes=2, gpus_per_node=2, launcher="multiworker")
SHOW = 'import os; print(os.environ["TF_CONFIG"])'


def stand_in(folder, name, body):
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)


def run_workers(site, folder, sharing="NO"):
    """The script's own lines run in a real bash, with Slurm's commands standing in."""
    job = replace(WORKERS, program=("python3", "-c", SHOW))
    text = render_script(site, job, Module(())).text
    start = text.index("[[ $(scontrol show job")
    launch = text.index("srun --mpi=none --cpus-per-task=4 --kill-on-bad-exit=1 \\\n  sh -c")
    program = text[launch : text.index(" &\n", launch)]
    stand_in(folder, "srun", 'while [[ $1 == --* ]]; do shift; done\nexec "$@"')
    said = f"echo 'JobId=1369 OverSubscribe={sharing} Comment=x'"
    names = "printf 'p100-01\\np100-02\\n'"
    stand_in(folder, "scontrol", f"[[ $2 == job ]] && {said} || {names}")
    env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HPCDL_JOB_DIR": str(folder),
        "SLURM_PROCID": "3",
        "SLURM_JOB_ID": "1369",
        "SLURM_JOB_NODELIST": "p100-[01-02]",
    }
    together = text[text.index("\nhpcdl_together() {") : text.index("\n# The launcher is")]
    lines = 'hpcdl_leave() { exit "$1"; }\n' + together + text[start:launch] + program
    words = ["bash", "-c", lines]
    return subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True).stdout


def test_ports_that_somebody_has_are_drawn_anew(site, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        once = f"(( $(wc -l <{tmp_path}/drawn) == 1 )) && echo {port} || echo 12003"
        stand_in(tmp_path, "shuf", f"echo x >>{tmp_path}/drawn\n{once}")
        out = run_workers(site, tmp_path)
    assert "ports of attempt 1 are taken" in out
    config = json.loads(out.splitlines()[-1])
    assert config["cluster"]["worker"] == ["p100-01:12003", "p100-02:12003"]


@pytest.mark.parametrize("sharing", ["OK", "YES", "USER"])
def test_tensorflow_s_server_does_not_start_where_others_may_run(site, tmp_path, sharing):
    assert run_workers(site, tmp_path, sharing) == ""


def test_tensorflow_s_server_is_refused_where_nobody_trusts_the_network(site):
    wary = replace(site, trusted_network=False)
    with pytest.raises(BadInput, match="asks nobody for a password") as caught:
        render_script(wary, WORKERS, Module(()))
    assert "--trusted-network" in caught.value.hint
    text = render_script(wary, replace(WORKERS, trusted_network=True), Module(())).text
    assert "\n#SBATCH --exclusive\n" in text


@pytest.mark.parametrize(("missed", "asked"), [(0, 1), (1, 2), (2, 2)])
def test_a_node_that_misses_its_first_step_is_asked_once_more(site, tmp_path, missed, asked):
    text = render_script(site, JobSpec("p100", nodes=2, gpus_per_node=2), Module(())).text
    look = text[text.index("\nhpcdl_preflight() {") : text.index("\n# Ranks end")]
    look += text[text.index("hpcdl_look() {") : text.index("\nexport HPCDL_RESULT")]
    srun = f'echo x >>asked; (( $(wc -l <asked) > {missed} )) || exit 1; echo "{{}}"'
    for name, body in {"hpcdl": ":", "srun": srun, "sleep": ":"}.items():
        stand_in(tmp_path, name, body)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", look], cwd=tmp_path, env=env, check=False)
    assert (tmp_path / "asked").read_text().count("x") == asked
    assert bool((tmp_path / "preflight.jsonl").read_text()) == (missed < 2)


@pytest.mark.parametrize("runtime", ["apptainer", "charliecloud", "pyxis"])
@pytest.mark.parametrize("stage", [False, True])
def test_a_container_sees_the_data_and_works_in_the_job_s_directory(site, tmp_path, runtime, stage):
    """The launch line runs in a real bash: the words are those that the runtime gets."""
    spec = JobSpec(
        "p100",
        gpus=1,
        program=("true",),
        container="/image.sif",
        data="/elsewhere/set",
        stage=stage,
        job_dir=tmp_path / "my job",
        files=(Path("/srv/program"),),
        preflight=False,
    )
    text = render_script(replace(site, container=runtime), spec, Module(())).text
    launch = text[text.index("\nsrun --mpi=pmix") : text.index(" &\nhpcdl_follow")]
    stand_in(tmp_path, "srun", 'printf "%s\\n" "$@"')
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HPCDL_DATA": "/tmp/hpcdl 7",
        "HPCDL_JOB_DIR": str(tmp_path / "my job"),
    }
    done = subprocess.run(["bash", "-c", launch], env=env, capture_output=True, text=True)
    words = done.stdout.splitlines()
    seen = ["/elsewhere/set", str(tmp_path / "my job"), "/tmp", "/srv/program"]
    if runtime != "pyxis":
        assert {f"--bind={path}" for path in seen} <= set(words)
        assert {f"--pwd={tmp_path}/my job", f"--cd={tmp_path}/my job"} & set(words)
    else:
        (mounts,) = (word.partition("=")[2] for word in words if "-mounts=" in word)
        assert {f"{path}:{path}" for path in seen} <= set(mounts.split(","))
        assert f"--container-workdir={tmp_path}/my job" in words
