"""What a job asks Slurm for as the site wants it asked; chains; what is cancelled."""

import json
import re
from pathlib import Path

import pytest

from hpcdl.site import find_site_file
from tests.integration.conftest import Shell
from tests.integration.test_launchers import HPCDL, SUBMIT, ends
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def overdue(cluster_env, tmp_path_factory) -> Path:
    """The directory of a chain whose first job outlasts its minute, beside the other tests."""
    folder = tmp_path_factory.mktemp("overdue") / "job"
    program = (
        "echo ran >>runs; (( $(wc -l <runs) < 2 )) || exit 0; trap : USR2; sleep 300; sleep 300"
    )
    submit = (*SUBMIT, "--partition", "k80", "--gpus", "1", "--chain", "3", "--time", "1")
    Shell(cluster_env, folder.parent)(*submit, "--job-dir", folder, "--", "bash", "-c", program)
    return folder


@pytest.mark.parametrize(
    ("policy", "words", "shown"),
    [
        ("node", ["--mem", "10G"], r"MinMemoryNode=10G"),
        ("cpu", ["--mem", "8000"], r"MinMemoryCPU=1000M"),
        ("gpu", ["--mem-per-gpu", "3G"], r"MemPerTres=gres:gpu:3072"),
        ("none", [], r"MinMemoryCPU=7.50G"),
    ],
)
def test_memory_is_asked_for_as_the_site_wants_it(slurm, tmp_path, policy, words, shown):
    text = Path(find_site_file("embedded")).read_text()
    keys = f"memory: {policy}\n  exclusive: false\n  requeue: false\n  "
    (tmp_path / "site.yaml").write_text(
        text.replace("accounting: false", f"{keys}accounting: false")
    )
    submit = (*SUBMIT, "--site", tmp_path / "site.yaml", "--gpus", "2", *words)
    answer = json.loads(slurm(*submit, "--", "true").stdout)
    job = slurm("scontrol", "show", "job", str(answer["job_id"])).stdout
    assert re.search(shown, job), job
    script = Path(answer["script"]).read_text()
    assert not re.search("^#SBATCH --(exclusive|requeue)", script, re.MULTILINE)
    assert ends(slurm, answer["job_id"])["state"] == "COMPLETED"


def test_a_chain_ends_with_a_job_that_failed(slurm, tmp_path):
    program = "echo ran >>runs; (( $(wc -l <runs) < 2 )) && exit 75; exit 3"
    submit = (*SUBMIT, "--partition", "cpu", "--chain", "4", "--job-dir", tmp_path / "job")
    # Every job of the chain has its turn after 75 only where requeues are spent: none here.
    site = Path(find_site_file("embedded")).read_text()
    (tmp_path / "site.yaml").write_text(
        site.replace("accounting: false", "requeue: false\n  accounting: false")
    )
    answer = json.loads(slurm(*submit, "--site", tmp_path / "site.yaml", "--",
                              "bash", "-c", program).stdout)  # fmt: skip
    ended = ends(slurm, answer["job_id"])
    assert (ended["state"], ended["exit_code"]) == ("FAILED", 3)
    assert (tmp_path / "job/runs").read_text().count("ran") == 2
    assert str(ended["text"]).count("the job before ended with 3: the chain ends") == 2


def test_a_reservation_is_run_in(slurm, tmp_path):
    name = f"r{tmp_path.name[-6:]}".replace("_", "")
    slurm("scontrol", "create", "reservation", f"reservationname={name}", "starttime=now",
          "duration=10", "users=root", "nodes=cpu-01", "flags=ignore_jobs")  # fmt: skip
    try:
        submit = (*SUBMIT, "--partition", "cpu", "--reservation", name, "--", "hostname")
        ended = ends(slurm, json.loads(slurm(*submit).stdout)["job_id"])
        assert "cpu-01" in str(ended["text"])
        refused = slurm(*submit[:-4], "--reservation", "nosuch", "--", "true", check=False)
        assert refused.returncode == 2
        assert "reservation" in refused.stderr.lower()
    finally:
        slurm("scontrol", "delete", f"reservationname={name}")


def test_cancelling_tells_what_had_ended(slurm):
    submit = (*SUBMIT, "--partition", "cpu", "--", "true")
    job = str(json.loads(slurm(*submit).stdout)["job_id"])
    ends(slurm, job)
    wait_for(lambda: slurm("squeue", "--noheader", f"--jobs={job}", check=False).stdout == "")
    told = json.loads(slurm(HPCDL, "job", "cancel", "--json", job).stdout)
    assert told == {"cancelled": [], "ended": [int(job)]}


def test_programs_of_a_node_find_slurm_without_its_variables(slurm, tmp_path):
    """As clients do whose jobs get an environment of their own: /etc/slurm is the cluster's."""
    if not Path("/etc/slurm").is_dir():
        pytest.skip("there is no /etc/slurm on this machine to show another one at")
    clean = "env -i PATH=$PATH sh -c 'scontrol show config; sbatch --version; squeue --noheader'"
    submit = (*SUBMIT, "--partition", "cpu", "--launcher", "single", "--", "sh", "-c", clean)
    text = str(ends(slurm, json.loads(slurm(*submit).stdout)["job_id"])["text"])
    own = slurm("scontrol", "show", "config").stdout
    (name,) = re.findall(r"^ClusterName *= (.*)", own, re.MULTILINE)
    assert re.search(rf"^ClusterName *= {name}$", text, re.MULTILINE), text
    assert re.search(r"^ +\d+ +cpu +train", text, re.MULTILINE), text


def test_a_log_is_followed_across_requeues_to_the_job_s_end(slurm, tmp_path):
    program = (
        'echo "run ${SLURM_RESTART_COUNT:-0}"; (( ${SLURM_RESTART_COUNT:-0} )) || exit 75; '
        "for i in $(seq 5); do echo line $i; sleep 0.5; done; printf last; exit 3"
    )
    submit = (*SUBMIT, "--partition", "cpu", "--job-dir", tmp_path / "job", "--")
    job = str(json.loads(slurm(*submit, "bash", "-c", program).stdout)["job_id"])
    followed = slurm(HPCDL, "job", "log", "-f", job, timeout=250, check=False)
    assert followed.returncode == 1
    said = re.findall(r"^(?:run|line) \d", followed.stdout, re.MULTILINE)
    assert said == ["run 0", "run 1", *(f"line {number}" for number in range(1, 6))]
    assert followed.stdout == (tmp_path / "job/job.log").read_text()
    assert f"--- job {job}: it failed with exit code 3" in followed.stderr
    shown = slurm(HPCDL, "job", "log", "-n", "1", job).stdout
    assert shown.splitlines() == (tmp_path / "job/job.log").read_text().splitlines()[-1:]


def test_a_chain_goes_on_after_a_time_out(slurm, overdue):
    """The first job's time is up although it was told; the next one ends the run."""
    ended = ends(slurm, overdue)
    assert ended["state"] == "COMPLETED", ended["text"]
    assert (overdue / "runs").read_text().count("ran") == 2
