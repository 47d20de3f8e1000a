"""Launchers: ranks, roles, ports and hosts are worked out, nobody edits a hosts file."""

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.jobs import JobSpec, Module, render_script
from hpcdl.jobs.spec import LAUNCHERS
from hpcdl.slurm.unwrap import rank_starter
from hpcdl.system.errors import BadInput
from tests.make.sites import shipped


@pytest.fixture(scope="module")
def site():
    return shipped("embedded")


def test_the_users_page_has_every_launcher():
    page = (Path(__file__).parents[2] / "docs/users.md").read_text()
    assert [name for name in LAUNCHERS if f"\n| `{name}` " not in page] == []


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
    end = text.index(" & hpcdl_step=")
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
    lines = 'hpcdl_leave() { exit "$1"; }\n' + text[start:end]
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
    with pytest.raises(BadInput, match="has no password") as caught:
        render_script(wary, WORKERS, Module(()))
    assert "trusted_network: true" in caught.value.hint
    text = render_script(wary, replace(WORKERS, trusted_network=True), Module(())).text
    assert "\n#SBATCH --exclusive\n" in text


@pytest.mark.parametrize(("missed", "asked"), [(0, 1), (1, 2), (2, 2)])
def test_a_node_that_misses_its_first_step_is_asked_once_more(site, tmp_path, missed, asked):
    text = render_script(site, JobSpec("p100", nodes=2, gpus_per_node=2), Module(())).text
    look = text[text.index("! command -v hpcdl") : text.index("\n# Ranks end")]
    srun = f"echo x >>asked; (( $(wc -l <asked) > {missed} )) || exit 1\n"
    srun += 'while [[ $1 == --* ]]; do shift; done; "$@"'
    for name, body in {"srun": srun, "sleep": ":"}.items():
        stand_in(tmp_path, name, body)
    stand_in(tmp_path, "hpcdl", f'exec {sys.executable} -c "{_IMPATIENT}" "$@"')
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", look], cwd=tmp_path, env=env, check=False)
    assert (tmp_path / "asked").read_text().count("x") == asked
    assert bool((tmp_path / "preflight.jsonl").read_text()) == (missed < 2)


_IMPATIENT = (
    "import sys; from hpcdl.cli import main, preflight; preflight._PAUSE_SECONDS = 0; "
    "sys.exit(main(sys.argv[1:]))"
)


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
    launch = text[text.index("\nsrun --mpi=pmix") : text.index(" & hpcdl_step=")]
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


@pytest.mark.parametrize(
    "words", [("bash", "-c", "echo 'torchrun x'; python x.py"), ("python", "x.py", "torchrun")]
)
def test_what_only_names_a_starter_of_ranks_is_a_program_of_every_rank(site, words):
    """What starts ranks itself is refused: tests/golden/errors.txt."""
    assert rank_starter(words) == ""
    render_script(site, JobSpec("p100", gpus=2, program=words), Module(()))
    alone = JobSpec("p100", gpus=2, program=("torchrun", "x.py"), launcher="single")
    render_script(site, alone, Module(()))


@pytest.mark.parametrize("launcher", ["horovod", "mpi"])
def test_several_ranks_of_mpi_need_a_pmi_of_srun(site, launcher):
    bare = replace(site, slurm=replace(site.slurm, mpi="none"))
    render_script(bare, JobSpec("p100", gpus=1, launcher=launcher), Module(()))
    with pytest.raises(BadInput, match="2 ranks cannot find each other by MPI") as caught:
        render_script(bare, JobSpec("p100", gpus=2, launcher=launcher), Module(()))
    better = re.findall(r"--launcher (\S+);", caught.value.hint)[0]
    render_script(bare, JobSpec("p100", gpus=2, launcher=better), Module(()))


def test_ranks_do_not_work_together_on_slices_of_a_gpu(site):
    p100 = site.partition("p100")
    sliced = replace(p100, gpu=p100.gpu._replace(gres_type="a100_1g.5gb"))
    sliced = replace(site, partitions={"p100": sliced})
    render_script(sliced, JobSpec("p100", gpus=1), Module(()))
    render_script(sliced, JobSpec("p100", tasks=2, launcher="plain"), Module(()))
    with pytest.raises(BadInput, match="slices of GPUs"):
        render_script(sliced, JobSpec("p100", gpus=2), Module(()))


def test_lines_of_setup_and_what_is_not_wanted_are_as_asked(site):
    asked = {"program": ("x",), "minutes": 20, "setup": ("ulimit -n 4096", "source v/bin/activate")}
    lines = render_script(site, JobSpec("p100", gpus=1, **asked), Module(())).text.splitlines()
    at = lines.index("ulimit -n 4096")
    assert lines[at + 1] == "source v/bin/activate"
    assert lines[at + 3].startswith("srun ")
    bare = JobSpec("p100", gpus=1, requeues=0, signal_before=0, ask_partition=False, **asked)
    text = render_script(site, bare, Module(())).text
    assert "\n#SBATCH --no-requeue\n" in text
    assert not re.search("#SBATCH --(partition|signal|requeue)|scontrol requeue|USR2;", text)
    with pytest.raises(BadInput, match="in the first half of its time") as caught:
        render_script(site, replace(bare, signal_before=900), Module(()))
    assert "--signal-before 540" in caught.value.hint


@pytest.mark.parametrize(
    "lines",
    [("echo \\",), ("cat <<EOF",), ("export A='",), ("if true; then",), ("}",), ("x=(", "echo $(")],
)
def test_setup_that_would_take_in_the_program_is_refused(site, lines):
    """The job would end with 0, and its program would never have run."""
    with pytest.raises(BadInput, match="--setup has a line"):
        render_script(site, JobSpec("p100", gpus=1, setup=lines), Module(()))


def test_setup_may_be_of_several_lines_and_use_what_bash_has(site):
    lines = ("# why", "if [ -e v ]; then", "source v/bin/activate", "fi", "shopt -s extglob")
    lines += ("ls !(a) <(ls) <<<x", "cat <<EOF", "x", "EOF", "f() { echo '}'; }")
    text = render_script(site, JobSpec("p100", gpus=1, setup=lines), Module(())).text
    assert "\n".join(lines) in text


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_no_launcher_binds_threads_and_only_those_of_mpi_get_its_variables(launcher):
    a100 = shipped("a100-h100")
    row = LAUNCHERS[launcher]
    nodes = 1 if row.one_process else 2
    spec = JobSpec("a100", nodes=nodes, launcher=launcher, program=("x",), trusted_network=True)
    text = render_script(a100, spec, Module(())).text
    assert "OMP_PLACES" not in text
    assert ("OMPI_MCA" in text) == row.mpi
    assert ("OMP_NUM_THREADS" in text) == row.openmp
