"""The command line, job.yaml and Python take the same job, and refuse the same, by name."""

import re

import jsonschema
import pytest

from hpcdl.cli.framework import build_parser
from hpcdl.jobs.spec import LAUNCHERS, JobSpec, job_schema
from hpcdl.system.declare import build, entries, read_file, typed
from hpcdl.system.document import parse_document
from hpcdl.system.errors import BadInput
from tests.unit.conftest import commands

ENTRIES = {entry.name: entry for entry in entries(JobSpec)}


def by_options(argv):
    parser = build_parser("hpcdl job submit", commands()["job submit"])
    return build(JobSpec, {"partition": "p", **typed(JobSpec, parser.parse_args(argv))})


def by_file(text):
    values = read_file(JobSpec, parse_document(text, "job.yaml"), version=1)
    return build(JobSpec, {"partition": "p", **values})


TAKEN = {
    "account": ["proj@gpu", "_lab", "a,b"],
    "qos": ["a,b", "high+low"],
    "name": ["a+b"],
    "signal-before": ["none", "65535"],
    "requeues": ["0"],
    "env": ["A=" + "x" * 100_000],
}


@pytest.mark.parametrize("key", TAKEN)
def test_what_sbatch_takes_is_taken(key):
    """What is refused is in tests/golden/errors.txt, other doors in test_every_field.py."""
    for text in TAKEN[key]:
        by_options([f"--{key}={text}"])


@pytest.mark.parametrize("option", ["--account=a\n#SBATCH --x", "--qos=a\n#", "--name=a\n"])
def test_a_value_of_several_lines_is_refused(option):
    with pytest.raises(BadInput, match=option.partition("=")[0]):
        by_options([option])


@pytest.mark.parametrize("key", ["data", "chdir", "job_dir"])
def test_an_empty_name_in_a_file_is_no_directory(key):
    """The command line refuses it, too: a variable that is not set would be the directory `.`."""
    with pytest.raises(BadInput) as caught:
        by_file(f'schema: 1\n{key}: ""\n')
    assert f"'{key}' is empty" in str(caught.value.in_one_line())


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


def test_a_path_may_begin_with_the_home(tmp_path, hpcdl, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    file = tmp_path / "job.yaml"
    file.write_text("schema: 1\ndata: ~/set\njob_dir: ~/runs/a\nmodules: []\n")
    lines = render(hpcdl, file)
    assert "export HPCDL_DATA=/home/me/set" in lines
    assert "export HPCDL_JOB_DIR=/home/me/runs/a" in lines
    assert "export HPCDL_DATA=/home/me/other" in render(hpcdl, file, "--data=~/other")
