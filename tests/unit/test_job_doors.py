"""The command line, job.yaml and Python take the same job, and refuse the same, by name."""

import re

import jsonschema
import pytest
import yaml

from hpcdl.cli.framework import build_parser
from hpcdl.jobs.launchers import LAUNCHERS
from hpcdl.jobs.spec import JobSpec, check_spec, job_schema, load_request
from hpcdl.system.declare import build, check, entries, read_file, typed
from hpcdl.system.document import parse_document
from hpcdl.system.errors import BadInput
from tests.unit.conftest import commands

ENTRIES = {entry.name: entry for entry in entries(JobSpec)}


def by_options(argv, program=()):
    parser = build_parser("hpcdl job submit", commands()["job submit"])
    values = typed(JobSpec, parser.parse_args(argv))
    return build(JobSpec, {"partition": "p", **({"program": program} if program else {}), **values})


def by_file(text):
    values = read_file(JobSpec, parse_document(text, "job.yaml"), version=1)
    return build(JobSpec, {"partition": "p", **values})


TAKEN = {
    "account": ["proj@gpu", "_lab", "a,b"],
    "qos": ["a,b", "high+low"],
    "name": ["a+b"],
    "mem": ["64G", "1000", "2t", "1025K"],
    "time": ["5", "1:00:00", "1-12", "1-", "2:99"],
    "signal_before": ["none", "65535"],
    "requeues": ["0"],
}
REFUSED = {
    "account": ["a b", "$(id)", "-x", "é", "a\n#SBATCH --x"],
    "qos": ["a b", "$(id)", "-x", "é", "a\n#SBATCH --x"],
    "name": [" ", "a b", "-x", "../x", "a/b", "a\nb", "$(id)", "a;b", "x" * 64, "é", "a\n"],
    "mem": ["8Q", "0", "-1G", "64b"],
    "signal_before": ["0", "65536"],
    "time": ["1h", "unlimited", "0"],
    **{key: ["0", "-1", "many", "1000001", "1.5"] for key in ("gpus", "nodes", "cpus_per_task")},
    "launcher": ["mpirun"],
    "requeues": ["-1", "10001", "~"],
    "container": ["a,b"],
    "data": [" "],
    "chdir": [" "],
    "job_dir": [" "],
}
DOORS = [
    (key, text, taken)
    for taken, rows in ((True, TAKEN), (False, REFUSED))
    for key, texts in rows.items()
    for text in texts
]


@pytest.mark.parametrize(("key", "text", "taken"), DOORS)
def test_a_value_is_taken_or_refused_alike_in_every_door(key, text, taken):
    entry = next(entry for entry in ENTRIES.values() if entry.key == key)
    number = int(text) if entry.kind == "integer" and text.lstrip("-").isdigit() else text
    doors = {
        str(entry.flag): lambda: by_options([f"{entry.flag}={text}"]),
        f"'{key}'": lambda: by_file(yaml.safe_dump({"schema": 1, key: number})),
        entry.name: lambda: check(JobSpec("p", **{entry.name: number})),
    }
    answers = []
    for called, door in doors.items():
        try:
            answers.append(getattr(door(), entry.name))
        except BadInput as fault:
            told = fault.in_one_line()
            assert called in told
            answers.append(told.split(called, 1)[1].split(";")[0])
    assert len({str(answer) for answer in answers}) == 1, answers
    refused = isinstance(answers[0], str) and answers[0].startswith((" is", " must"))
    assert refused != taken


@pytest.mark.parametrize("size", [1_200, 100_000, 100_001])
def test_a_long_value_of_a_variable_is_taken_or_refused_alike(size):
    value = "x" * size
    file = yaml.safe_dump({"schema": 1, "env": {"A": value}})
    for door in (
        lambda: by_options([f"--env=A={value}"]),
        lambda: by_file(file),
        lambda: check(JobSpec("p", environment={"A": value})),
    ):
        if size <= 100_000:
            assert door().environment["A"] == value
        else:
            with pytest.raises(BadInput, match=r"too long|has \d fault"):
                door()


@pytest.mark.parametrize("key", ["data", "chdir", "job_dir"])
def test_an_empty_name_in_a_file_is_no_directory(key):
    """The command line refuses it, too: a variable that is not set would be the directory `.`."""
    with pytest.raises(BadInput) as caught:
        by_file(f'schema: 1\n{key}: ""\n')
    assert f"'{key}' is empty" in str(caught.value.in_one_line())


def test_a_data_set_is_named_once():
    with pytest.raises(BadInput, match="exclude each other"):
        check_spec(JobSpec("p", data="/d", environment={"HPCDL_DATA": "/e"}))


def test_the_forms_of_memory_exclude_each_other():
    with pytest.raises(BadInput, match="exclude each other"):
        check_spec(JobSpec("p", mem=1, mem_per_gpu=1))


SWEPT = {
    "partition": "v100,k80",
    "gpus": "1,2",
    "nodes": "1,2",
    "gpus-per-node": "1,2",
    "tasks": "1,2",
    "tasks-per-node": "1,2",
    "cpus-per-task": "1,2",
    "time": "5,6",
    "launcher": "single,torchrun",
    "mem": "8G,16G",
    "account": "a,b",
    "qos": "a,b",
    "requeues": "0,1",
    "nice": "1,2",
    "signal-before": "60,none",
    "gpu-model": "V100-SXM2",
}


@pytest.mark.parametrize(
    "key",
    dict.fromkeys(
        word.lstrip("-").replace("_", "-")
        for one in ENTRIES.values()
        for word in (one.flag or one.key, one.key, *one.constants)
    ),
)
def test_a_sweep_varies_every_key_of_a_job_or_refuses_it_by_name(key, hpcdl, tmp_path):
    values = SWEPT.get(key, "true,false")
    site, on = ("embedded", "cpu") if key.startswith("tasks") else ("p100-v100-k80", "v100")
    base = ["job", "sweep", "--site", site, "--no-module", "--partition", on]
    line = [*base, "--name", "x", "--dry-run", "--over", f"{key}={values}", "--", "true"]
    if key == "stage-data":
        line[-2:-2] = ["--data", str(tmp_path)]
    varies = key in SWEPT or key == "stage-data"
    done = hpcdl(*line, code=0 if varies else 2)
    if varies:
        scripts = done.out.split("# would submit an array of 1:")[1:]
        texts = {re.sub(r"array-\d+|\n# x: \d+ points.*", "", text) for text in scripts}
        assert len(texts) == len(values.split(","))
    else:
        assert f"--over {key}: all points of a sweep have the same" in done.err


# job.yaml: the options of `job submit` as a file; options on the command line go before it.

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
        (["--", "echo", "b"], '  sh -c "$HPCDL_RANK" rank echo b & hpcdl_step=$!'),
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
