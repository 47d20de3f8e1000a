"""`job shell` and `job jupyter` on the real Slurm, with a real terminal and the real JupyterLab."""

import json
import os
import pty
import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from hpcdl.system.resources import cache
from tests.browser import chromium
from tests.integration.conftest import HPCDL
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
SHELL = ("job", "shell", "--no-module", "--partition", "cpu")


def test_a_program_runs_on_the_node_and_gives_its_exit_status(slurm):
    done = slurm.hpcdl(*SHELL, "--", "sh", "-c", "echo $SLURMD_NODENAME $PWD; exit 7", check=False)
    assert done.returncode == 7, done.stderr
    assert re.fullmatch(rf"cpu-\d\d {slurm.directory}\n", done.stdout)
    assert not [*Path(slurm.env["HPCDL_HOME"]).glob("*/work/jobs/shell-*")], (
        "the files of a shell go with it"
    )


def test_steps_start_at_once_in_a_shell(slurm):
    program = "timeout 20 srun --nodes=2 --ntasks=2 sh -c 'echo $SLURM_PROCID'"
    done = slurm.hpcdl(*SHELL, "--nodes", "2", "--", "sh", "-c", program)
    assert sorted(done.stdout.split()) == ["0", "1"]


def test_a_person_gets_a_prompt_with_variables_of_the_job(slurm):
    child, ours = pty.fork()
    if child == 0:
        os.chdir(slurm.directory)
        os.execve(HPCDL, [HPCDL, *SHELL, "--env", "GREETING=hello world"], dict(slurm.env))
    seen = ""

    def shows(text):
        nonlocal seen
        seen += os.read(ours, 65536).decode(errors="replace")
        return text in seen

    wait_for(lambda: shows(f" {slurm.directory.name}]"), 60)
    os.write(ours, b'echo "<$GREETING>"; tty >/dev/null && echo a-$((40 + 2)); exit 3\n')
    wait_for(lambda: shows("a-42"), 30)
    assert "<hello world>" in seen
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0, "the last command's status is no failure"
    os.close(ours)


@pytest.mark.parametrize("program", ["sleep 60", "trap 'exit 0' TERM; sleep 60 & wait"])
def test_a_job_that_ends_under_an_open_shell_is_named(slurm, program):
    program = f"scancel $SLURM_JOB_ID; {program}"
    said = slurm.refused(5, *SHELL, "--", "sh", "-c", program)
    assert "ended while the shell was open: CANCELLED" in said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["job", "shell", "--no-module"], 2, "there is no terminal"),
        ([*SHELL, "--nodes", "9", "--", "true"], 2, "nodes"),
        (
            [*SHELL, "--sbatch", "reservation=none-such", "--", "true"],
            3,
            "Slurm gave no allocation",
        ),
        (["job", "jupyter", "--job", "99999"], 2, "there is no job 99999"),
    ],
)
def test_what_cannot_start_is_refused(slurm, words, code, said):
    assert said in slurm.refused(code, *words)


# ---- JupyterLab ----


@pytest.fixture(scope="module")
def jupyterlab():
    """A directory of programs with jupyter-lab in it, made once and kept."""
    place = cache() / "tests" / "jupyterlab"
    if not (place / "bin" / "jupyter-lab").exists():
        uv = HPCDL.with_name("uv")
        subprocess.run([uv, "venv", "--quiet", "--clear", place], check=True)
        packages = [uv, "pip", "install", "--quiet", "--python", place, "jupyterlab"]
        done = subprocess.run(packages, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"JupyterLab cannot be installed: {done.stderr[-200:]}")
    return place / "bin"


def _status(url, token=None):
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code


def test_jupyterlab_is_reached_with_its_token_only_and_ends_with_its_job(slurm, jupyterlab):
    slurm.env = {**slurm.env, "PATH": f"{slurm.env['PATH']}:{jupyterlab}"}
    words = ("job", "jupyter", "--no-module", "--partition", "cpu")
    first = slurm.hpcdl(*words, "--json", "--", "--allow-root", timeout=240)
    started = json.loads(first.stdout)
    file = Path(started["token_file"])
    token = json.loads(file.read_text())["token"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert token not in first.stdout + first.stderr
    host, port = re.search(r"-L 8888:(\S+):(\d+) ", started["tunnel"]).groups()
    place = f"http://{host}:{port}/api/contents"
    assert (_status(place, token), _status(place, "guessed")) == (200, 403)
    with chromium() as page:
        page.open(f"http://{host}:{port}/lab?token={token}")
        wait_for(lambda: page.do("document.querySelector('.jp-Launcher') !== null"), 60)
    command_lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [line for line in command_lines if token.encode() in line]
    again = slurm.json("job", "jupyter", "--job", str(started["job_id"]))
    assert again == started
    slurm.hpcdl("job", "cancel", started["job_id"])
    wait_for(lambda: _gone(place, token), 60)
    said = slurm.refused(1, "job", "jupyter", "--job", started["job_id"])
    assert "ended before JupyterLab listened" in said


def _gone(place, token):
    try:
        return _status(place, token) != 200
    except OSError:
        return True


def test_a_job_without_jupyterlab_says_what_to_do(slurm):
    slurm.env = {**slurm.env, "PATH": "/usr/bin:/bin"}
    said = slurm.refused(1, "job", "jupyter", "--no-module", "--partition", "cpu", timeout=120)
    log = Path(re.search(r"its log says why: (\S+)", said)[1]).read_text()
    assert "there is no jupyter-lab on PATH" in log


def test_gpus_that_a_job_holds_are_not_free(slurm):
    def free():
        return {row["partition"]: row for row in slurm.json("site", "gpus", "--gpus", "8")["gpus"]}

    before = free()
    assert (before["v100"]["free"], before["v100"]["model"]) == (16, "V100-SXM2")
    program = f"{HPCDL} site gpus --json"
    words = ("--partition", "v100", "--gpus", "3", "--", "sh", "-c", program)
    held = json.loads(slurm.hpcdl("job", "shell", "--no-module", *words).stdout)
    (row,) = (row for row in held["gpus"] if row["partition"] == "v100")
    assert (row["free"], row["used"], row["largest"]) == (13, 3, 8)
    assert re.match(r"\d{4}-\d\d-\d\dT", before["v100"]["starts"])
    assert "Node count" in before["k80"]["starts"], "8 GPUs are more than its one node has"
