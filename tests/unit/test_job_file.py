"""job.yaml: the options of `job submit` as a file; options on the command line go before it."""

import jsonschema
import pytest

from hpcdl.jobs.launchers import LAUNCHERS
from hpcdl.jobs.spec import job_schema, load_request
from hpcdl.system.errors import BadInput

JOB_FILE = """\
schema: 1
partition: v100
gpus: 16
time: 2:00:00
name: mine
modules: []
env: {LR: "0.1", KEEP: it}
preflight: false
program: [python, -c, pass, --lr, 0.1, "a b"]
"""


@pytest.fixture
def job_file(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(JOB_FILE)
    return file


def render(hpcdl, file, *words):
    line = ["job", "render", "--site", "p100-v100-k80", "--file", str(file), *words]
    return hpcdl(*line).out.splitlines()


def test_the_schema_is_valid_json_schema_and_knows_every_launcher():
    jsonschema.Draft202012Validator.check_schema(job_schema())
    assert job_schema()["properties"]["launcher"]["enum"] == list(LAUNCHERS)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--gpus", "8"], "#SBATCH --nodes=1"),
        (["--nodes", "3", "--gpus-per-node", "2"], "#SBATCH --gpus-per-node=v100:2"),
        (["--partition", "p100"], "#SBATCH --nodes=4"),
        (["--time", "5"], "#SBATCH --time=00:05:00"),
        (["--name", "other"], "#SBATCH --job-name=other"),
        (["--env", "MORE=9"], "for hpcdl_name in LR KEEP MORE; do"),
        (["--module", "cuda/12"], "module load cuda/12 || hpcdl_leave 20"),
        (["--", "echo", "b"], '  sh -c "$HPCDL_RANK" rank echo b &'),
    ],
)
def test_options_go_before_the_file(job_file, hpcdl, words, line):
    assert line in render(hpcdl, job_file, *words)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema: 1\n", "", "the file lacks the key 'schema'"),
        ("name: mine", "launcher: mpirun", "did you mean 'mpi-mpirun'?"),
        ("env: {", "env: {'A B': x, ", "'A B' is no valid name"),
        ('program: [python, -c, pass, --lr, 0.1, "a b"]', "program: []", "needs at least 1"),
    ],
)
def test_faults_are_shown_with_their_place(job_file, old, new, said):
    assert old in JOB_FILE
    job_file.write_text(JOB_FILE.replace(old, new))
    with pytest.raises(BadInput) as caught:
        load_request(job_file)
    assert said in caught.value.render()


def test_a_path_may_begin_with_the_home(tmp_path, hpcdl, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    file = tmp_path / "job.yaml"
    file.write_text("schema: 1\ndata: ~/set\njob_dir: ~/runs/a\nmodules: []\n")
    lines = render(hpcdl, file)
    assert "export HPCDL_DATA=/home/me/set" in lines
    assert "export HPCDL_JOB_DIR=/home/me/runs/a" in lines
    assert "export HPCDL_DATA=/home/me/other" in render(hpcdl, file, "--data=~/other")
