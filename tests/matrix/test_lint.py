"""Consequences that lie in files and in the cluster: where logs go, and what Slurm says it has."""

import json

import pytest

from hpcdl.jobs.lint import lint
from tests.integration.test_lint_gate import disagreements, mutated, public_scripts
from tests.matrix.machines import HPCDL, Job
from tests.waiting import wait_for

UNKNOWN = """\
#!/bin/bash
#SBATCH --partition=cpus --gres=gpu:v100:2 --constraint=haswell --image=x
true
"""


def rules_of(text, machine):
    return {one.rule.id for one in lint(text, name="job.sh", version=machine.release)}


def queue(machine, name, text):
    """A job that says itself where its log goes."""
    path = machine.folder / f"{name}.sh"
    path.write_text(text)
    done = machine("sbatch", "--parsable", path)
    assert done.returncode == 0, done.stderr
    return Job(machine, int(done.stdout), machine.folder / "none", "")


@pytest.fixture(scope="session")
def logged(machines):
    """The jobs of all releases, queued before any is waited for."""
    jobs = {}
    for machine in machines.values():
        if not isinstance(machine, str):
            head = "#!/bin/bash\n#SBATCH --partition=cpu --time=5\n#SBATCH "
            one = f"{head}--output=one.log --array=1-2%1\necho task $SLURM_ARRAY_TASK_ID\n"
            jobs[machine.name] = one, queue(machine, "one", one)
    return jobs


def test_a_task_of_an_array_empties_the_log_of_those_before_it(machine, logged):
    text, job = logged[machine.name]
    wait_for(lambda: str(job.number) not in machine("squeue", "--noheader", "-o%F").stdout, 180)
    assert (machine.folder / "one.log").read_text() == "task 2\n"
    assert "array-one-log" in rules_of(text, machine)


def test_what_a_live_slurm_has_not_is_refused_by_it_and_found(machine):
    path = machine.folder / "unknown.sh"
    wanted = {"partition-unknown", "option-misspelt", "sbatch-refuses"}
    for partition, rules in (("cpus", wanted), ("p100", wanted - {"partition-unknown"})):
        path.write_text(UNKNOWN.replace("cpus", partition))
        done = machine(HPCDL, "job", "lint", "--live", "--json", path)
        assert done.returncode == 1, done.stderr
        found = {one["rule"] for one in json.loads(done.stdout)["files"][0]["findings"]}
        assert rules <= found
        assert ("partition-limit" in found) == (partition == "p100")
    for option, said in (("--constraint=haswell", "feature"), ("--partition=cpus", "partition")):
        assert f"nvalid {said}" in machine("sbatch", option, "--wrap=true").stderr


def asked_by(machine):
    """Calls commands of a release, as the gate of tests/integration does."""
    return lambda *argv, check=False: machine(*argv, timeout=120)


@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.long)])
def test_mutated_directives_have_an_error_where_this_sbatch_refuses_them(machine, count):
    # Whether a job that another depends on exists is no matter of syntax.
    texts = ((n, one) for n, one in enumerate(mutated(count, seed=7)) if ":7" not in one)
    found, asked = disagreements(asked_by(machine), machine.folder, texts)
    assert asked > count / 2
    assert len(found) <= 1 + count / 1000, found


@pytest.mark.long
def test_public_scripts_have_an_error_where_this_sbatch_refuses_them(machine):
    found, asked = disagreements(asked_by(machine), machine.folder, public_scripts())
    assert asked >= 300
    assert len(found) <= asked / 100, found
