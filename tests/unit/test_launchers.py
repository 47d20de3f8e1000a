"""Launchers: ranks, roles, ports and hosts are worked out, nobody edits a hosts file."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.jobs import JobSpec, Module, render_script
from hpcdl.jobs.launch import worker_port
from hpcdl.site import Site, load_site
from hpcdl.system.resources import folder


@pytest.fixture(scope="module")
def site() -> Site:
    return load_site(folder("templates") / "sites" / "embedded.yaml")


def script(site: Site, launcher: str, *program: str) -> str:
    spec = JobSpec("p100", nodes=2, gpus_per_node=2, launcher=launcher, program=program)
    return render_script(site, spec, Module(())).text


def test_horovod_starts_under_srun_with_the_site_s_mpi(site: Site) -> None:
    assert "\nsrun --mpi=pmix --cpus-per-task=4 --kill-on-bad-exit=1 \\\n" in script(
        site, "horovod"
    )


def test_mpirun_takes_the_form_that_was_fastest(site: Site) -> None:
    line = "mpirun -np 4 --bind-to none --map-by socket -mca pml ob1 -mca btl '^openib' \\"
    assert line in script(site, "horovod-mpirun").splitlines()


def test_every_worker_of_tf_distribute_gets_its_own_address(site: Site, tmp_path: Path) -> None:
    """The script's own lines run in a real bash, with Slurm's commands standing in."""
    show = 'import os; print(os.environ["TF_CONFIG"])'
    text = script(site, "multiworker", "python3", "-c", show)
    start, end = (
        text.index("worker_port=$(("),
        text.index("srun --mpi=none --cpus-per-task=4 --kill-on-bad-exit=1 \\\n  bash"),
    )
    launch = text[end : text.index(" &\n", end)]
    stand_in = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'
    (tmp_path / "srun").write_text(stand_in)
    (tmp_path / "scontrol").write_text("#!/bin/bash\nprintf 'p100-01\\np100-02\\n'\n")
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_PROCID": "3",
           "SLURM_JOB_ID": "1369", "SLURM_JOB_NODELIST": "p100-[01-02]"}  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", text[start:end] + launch],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    config = json.loads(done.stdout)
    assert config["task"] == {"type": "worker", "index": 3}
    assert config["cluster"]["worker"] == [
        "p100-01:13136", "p100-01:13137", "p100-02:13136", "p100-02:13137",
    ]  # fmt: skip


def test_the_preflight_comes_before_the_program_and_can_be_left_out(site: Site) -> None:
    spec = JobSpec("p100", nodes=2, gpus_per_node=2)
    text = render_script(site, spec, Module(("tensorflow/2.21",), None, "tf-1")).text
    assert text.index("hpcdl preflight judge --world=4") < text.index("hpcdl train")
    assert "--release=tf-1" in text
    without = JobSpec("p100", nodes=2, gpus_per_node=2, preflight=False)
    assert "preflight" not in render_script(site, without, Module(())).text


@pytest.mark.parametrize(("missed", "asked"), [(0, 1), (1, 2), (2, 2)])
def test_a_node_that_misses_its_first_step_is_asked_once_more(
    site: Site, tmp_path: Path, missed: int, asked: int
) -> None:
    text = render_script(site, JobSpec("p100", nodes=2, gpus_per_node=2), Module(())).text
    look = text[text.index("  look() {") : text.index("  hpcdl preflight judge")]
    stand_ins = {
        "srun": f'echo x >>asked; (( $(wc -l <asked) > {missed} )) || exit 1; echo "{{}}"',
        "sleep": ":",
    }
    for name, body in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", look], cwd=tmp_path, env=env, check=False)
    assert (tmp_path / "asked").read_text().count("x") == asked
    assert bool((tmp_path / "preflight.jsonl").read_text()) == (missed < 2)


@pytest.mark.parametrize("runtime", ["apptainer", "pyxis"])
@pytest.mark.parametrize("stage", [False, True])
def test_a_container_sees_the_data_and_works_in_the_job_s_directory(
    site: Site, tmp_path: Path, runtime: str, stage: bool
) -> None:
    """The launch line runs in a real bash: the words are those that the runtime gets."""
    spec = JobSpec("p100", gpus=1, program=("true",), container="/image.sif", data="/elsewhere/set",
                   stage=stage, job_dir=tmp_path / "my job", preflight=False)  # fmt: skip
    text = render_script(replace(site, container=runtime), spec, Module(())).text
    launch = text[text.index("\nsrun --mpi=pmix") : text.index(" &\n\n# srun runs")]
    (tmp_path / "srun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HPCDL_DATA": "/tmp/hpcdl 7",
           "HPCDL_JOB_DIR": str(tmp_path / "my job")}  # fmt: skip
    done = subprocess.run(["bash", "-c", launch], env=env, capture_output=True, text=True)
    words = done.stdout.splitlines()
    seen = ["/elsewhere/set", str(tmp_path / "my job"), *(["/tmp/hpcdl 7"] if stage else [])]
    if runtime == "apptainer":
        assert {f"--bind={path}" for path in seen} <= set(words)
    else:
        (mounts,) = (word.partition("=")[2] for word in words if "-mounts=" in word)
        assert {f"{path}:{path}" for path in seen} <= set(mounts.split(","))
        assert f"--container-workdir={tmp_path}/my job" in words


@pytest.mark.parametrize("tasks", [1, 4, 16, 24, 128])
def test_jobs_on_one_node_listen_on_ports_of_their_own(tasks: int) -> None:
    first, _, rest = worker_port(tasks).partition(" + SLURM_JOB_ID % ")
    turns, _, stride = rest.partition(" * ")
    starts = [int(first) + job % int(turns) * int(stride) for job in range(4711, 4811)]
    ports = [port for start in starts for port in range(start, start + tasks)]
    assert len(set(ports)) == len(ports)
    assert min(ports) >= 12000
    assert max(ports) < 32768
