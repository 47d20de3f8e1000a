"""What a job asks Slurm for as the site wants it asked; chains; what is cancelled."""

import json
import re
from pathlib import Path

import pytest

from tests.integration.conftest import Shell
from tests.make.sites import embedded_file
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
CPU = ("--partition", "cpu")


@pytest.fixture(scope="module", autouse=True)
def overdue(cluster_env, tmp_path_factory):
    """The directory of a chain whose first job outlasts its minute, beside the other tests."""
    folder = tmp_path_factory.mktemp("overdue") / "job"
    program = "echo x >>runs; (( $(wc -l <runs) < 2 )) || exit 0; trap : USR2; sleep 300; sleep 300"
    words = ("--partition", "k80", "--gpus", "1", "--chain", "3", "--time", "1", "--job-dir")
    Shell(cluster_env, folder.parent).submit(*words, folder, "--", "bash", "-c", program)
    return folder


@pytest.mark.parametrize(
    ("policy", "words", "shown"),
    [
        ("node", ["--mem", "10G"], r"MinMemoryNode=10G"),
        ("cpu", ["--mem", "8000"], r"MinMemoryCPU=1000M"),
        ("gpu", ["--mem", "6G"], r"MemPerTres=gres:gpu:3072"),
        ("none", [], r"MinMemoryCPU=7.50G"),
    ],
)
def test_memory_is_asked_for_as_the_site_wants_it(slurm, tmp_path, policy, words, shown):
    keys = f"memory: {policy}\n  exclusive: false\n  requeue: false\n  accounting: false"
    site = embedded_file(tmp_path, ("accounting: false", keys))
    answer = slurm.submit("--site", site, "--gpus", "2", *words, "--", "true")
    job = slurm("scontrol", "show", "job", str(answer["job_id"])).stdout
    assert re.search(shown, job), job
    script = Path(answer["script"]).read_text()
    assert not re.search("^#SBATCH --(exclusive|requeue)", script, re.MULTILINE)
    assert slurm.ended(answer["job_id"])["state"] == "COMPLETED"


def test_a_chain_ends_with_a_job_that_failed(slurm, tmp_path):
    # Every job of the chain has its turn after 75 only where requeues are spent: none here.
    site = embedded_file(tmp_path, ("accounting: false", "requeue: false\n  accounting: false"))
    words = ("--site", site, *CPU, "--chain", "4", "--job-dir", tmp_path / "job", "--")
    program = "echo ran >>runs; (( $(wc -l <runs) < 2 )) && exit 75; exit 3"
    ended = slurm.run(*words, "bash", "-c", program)
    assert (ended["state"], ended["exit_code"]) == ("FAILED", 3)
    assert (tmp_path / "job/runs").read_text().count("ran") == 2
    assert ended["text"].count("the job before ended with 3: the chain ends") == 2


def test_a_reservation_is_run_in(slurm, tmp_path):
    name = f"r{tmp_path.name[-6:]}".replace("_", "")
    asked = f"reservationname={name} starttime=now duration=10 users=root nodes=cpu-01"
    slurm("scontrol", "create", "reservation", *asked.split(), "flags=ignore_jobs")
    try:
        assert (
            "cpu-01" in slurm.run(*CPU, "--sbatch", f"reservation={name}", "--", "hostname")["text"]
        )
        words = ("job", "submit", "--no-module", *CPU, "--sbatch", "reservation=nosuch")
        assert "reservation" in slurm.refused(2, *words, "--", "true").lower()
    finally:
        slurm("scontrol", "delete", f"reservationname={name}")


def test_cancelling_tells_what_had_ended(slurm):
    job = str(slurm.run(*CPU, "--", "true")["job_id"])
    wait_for(lambda: slurm("squeue", "--noheader", f"--jobs={job}", check=False).stdout == "")
    told = json.loads(slurm.hpcdl("job", "cancel", "--json", job).stdout)
    assert told == {"cancelled": [], "ended": [int(job)]}


def test_programs_of_a_node_find_slurm_without_its_variables(slurm):
    """As clients do whose jobs get an environment of their own: /etc/slurm is the cluster's."""
    if not Path("/etc/slurm").is_dir():
        pytest.skip("there is no /etc/slurm on this machine to show another one at")
    clean = "env -i PATH=$PATH sh -c 'scontrol show config; sbatch --version; squeue --noheader'"
    text = slurm.run(*CPU, "--launcher", "single", "--", "sh", "-c", clean)["text"]
    own = slurm("scontrol", "show", "config").stdout
    (name,) = re.findall(r"^ClusterName *= (.*)", own, re.MULTILINE)
    assert re.search(rf"^ClusterName *= {name}$", text, re.MULTILINE), text
    assert re.search(r"^ +\d+ +cpu +train", text, re.MULTILINE), text


def test_a_log_is_followed_across_requeues_to_the_job_s_end(slurm, tmp_path):
    program = (
        'echo "run ${SLURM_RESTART_COUNT:-0}"; (( ${SLURM_RESTART_COUNT:-0} )) || exit 75; '
        "for i in $(seq 5); do echo line $i; sleep 0.5; done; printf last; exit 3"
    )
    words = (*CPU, "--job-dir", tmp_path / "job", "--", "bash", "-c", program)
    job = str(slurm.submit(*words)["job_id"])
    followed = slurm.hpcdl("job", "log", "-f", job, timeout=250, check=False)
    assert followed.returncode == 1
    said = re.findall(r"^(?:run|line) \d", followed.stdout, re.MULTILINE)
    assert said == ["run 0", "run 1", *(f"line {number}" for number in range(1, 6))]
    assert followed.stdout == (tmp_path / "job/job.log").read_text()
    assert f"--- job {job}: it failed with exit code 3" in followed.stderr
    assert slurm.hpcdl("job", "log", job).stdout.splitlines() == followed.stdout.splitlines()


def test_a_chain_goes_on_after_a_time_out(slurm, overdue):
    """The first job's time is up although it was told; the next one ends the run."""
    ended = slurm.ended(overdue)
    assert ended["state"] == "COMPLETED", ended["text"]
    assert (overdue / "runs").read_text().count("x") == 2
