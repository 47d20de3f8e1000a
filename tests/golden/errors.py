"""What `hpcdl` says when something is wrong: the exit code and the first line, command by command.

`errors.txt` holds them: a command behind `$` and, behind `#`, what is wrong with it; below, its
exit status, its first line on standard error and what to do; where the line only counts faults of
a file, the first of them. Each runs in this process, in a directory of files made below, with no
program on PATH and no TensorFlow: no Slurm, root or GPU is needed, and nothing of a person's is
read.
In commands and lines {tmp} is that directory, {site} its site file and {python} this Python. A
command may begin with variables, as in a shell.
"""

import contextlib
import io
import json
import os
import re
import shlex
import sqlite3
import sys
import traceback
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest

from hpcdl.cli import main
from hpcdl.system.resources import folder

TRACEBACK = "Traceback (most recent call last)"
KEPT = Path(__file__).parent / "errors.txt"
_SITE = (folder("templates") / "sites" / "embedded.yaml").read_text()
_JOB = "schema: 1\npartition: p100\n"
_STUDY = (folder("examples") / "studies" / "sjtu_inception.py").read_text()
_REFERENCE = """\
- {check: c, case: x, partition: p100, metric: m, value: 1, unit: it/s, lower: -0.1,
   source: run, proof: run, date: "2026-01-01"}
"""
_REFERENCES = f"schema: 1\nset: embedded\nreferences:\n{_REFERENCE}{_REFERENCE}"
_RESULT = {
    "schema": 2,
    "model": "resnet50",
    "batch_per_rank": 64,
    "precision": "fp32",
    "layout": {"ranks": 1, "gpu": "P100-PCIe"},
    "job": {"partition": "p100"},
    "summary": {"images_per_second": 200.0},
}
_DEEP = "[" * 100_000
_VERDICT = {
    "check": "c",
    "case": "x",
    "status": "PASS",
    "reason": "",
    "partition": None,
    "ok": True,
    "waived": False,
    "seconds": 1,
    "metrics": [],
}
_EXCHANGE = {**_RESULT, "kind": "allreduce"}

_WAIVERS = """waivers:
  CVE-1: {because: short, owner: " ", until: soon, kind: not-reachable}
  CVE-2: {owner: Ada, until: 2026-02-31, why: me}
  CVE-3: {because: this site runs no elastic jobs, owner: Ada, until: 2099-01-01}
  CVE-4: {because: "this site runs\\nno elastic jobs", owner: Ada, until: 2026-12-31}
"""

_SITES = [
    ("later", "schema: 1", "schema: 99"),
    ("negative", "nodes: 2", "nodes: -2"),
    ("default", "default_partition: p100", "default_partition: gpu"),
    ("stack", "stack: tensorflow", "stack: pytorch"),
    ("gpu", "model: K80", "model: K8O"),
    ("amd", "model: K80", "model: MI250"),
    ("time", 'max_time: "24:00:00"', "max_time: a day"),
    ("type", "memory_gb: 120", "memory_gb: 120 GB"),
    ("tab", "  p100:", "\tp100:"),
    ("anchor", "name: embedded", "name: &n embedded"),
    ("cluster", "name: embedded", "name: broken"),
    ("agreement", "schema: 1", "schema: 1\nagreements: {cudn: Ada}"),
    ("package", "backend: wheels", "backend: wheels\n    packages: [tensorflow]"),
]
"""Sites that differ from {site} in one thing, which they are named for."""

# What lies in {tmp}: text by name.
FILES = {
    "site.yaml": _SITE,
    **{f"site-{name}.yaml": _SITE.replace(old, new, 1) for name, old, new in _SITES},
    "site-unknown-key.yaml": _SITE + "partition: {}\n",
    "site-duplicate.yaml": _SITE + "name: twice\n",
    "site-waivers.yaml": _SITE + _WAIVERS,
    "site-new-gpu.yaml": _SITE + "gpus: {X1: {compute: 8.4}}\n",
    "site-two.yaml": _SITE + "---\nname: second\n",
    **{
        f"site-{name}.yaml": _SITE.replace("/embedded/", f"/{name}/")
        for name in ("broken", "torn", "deep")
    },
    "site-text.yaml": "hello\n",
    "site.json": '{"schema": 1, "name": "x"}\n',
    "empty.yaml": "",
    "job-unknown-key.yaml": _JOB + "gpu: 4\n",
    "job-later.yaml": "schema: 99\n",
    "job-type.yaml": _JOB + "gpus: four\n",
    "job-program.yaml": _JOB + "program: python train.py\n",
    "job-no-schema.yaml": "partition: p100\n",
    "job-launcher.yaml": _JOB + "launcher: mpirun\n",
    "job-variable.yaml": _JOB + "env: {'A B': x}\n",
    "job-nothing.yaml": _JOB + "program: []\n",
    "job-memory.yaml": _JOB + "mem: 1G\nmem_per_gpu: 1G\n",
    "job.json": json.dumps({"schema": 1, "gpus": "4"}),
    "study-word.py": _STUDY.replace("minutes=60", "minuets=60"),
    "study-text.py": _STUDY.replace("efficiency(4) >= 0.95", "efficiency(4 >= 0.95"),
    "study-where.py": _STUDY.replace("gpus=(1, 2)", "gpus=(1, 3)"),
    "study-jobs.py": _STUDY.replace("gpus=1,2,4", "gpus=one"),
    "study-none.py": "x = 1\n",
    "broken/prefix/references/embedded.yaml": _REFERENCES,
    "script.sh": "#!/bin/bash\n#SBATCH --gpus=x\nsrun hostname\n",
    "result/later.json": json.dumps({**_RESULT, "schema": 3}),
    "result/cut.json": json.dumps(_RESULT)[:60],
    "result/no-layout.json": json.dumps({**_RESULT, "layout": {}}),
    "result/no-rate.json": json.dumps({**_RESULT, "summary": {"images_per_second": 0}}),
    "result/precision.json": json.dumps({**_RESULT, "precision": "fp128"}),
    "result/v100.json": json.dumps({**_RESULT, "layout": {"ranks": 1, "gpu": "V100-SXM2"}}),
    "result/partition.json": json.dumps({**_RESULT, "job": {"partition": "k80"}}),
    "result/good.json": json.dumps(_RESULT),
    "result/deep.json": _DEEP,
    "result/allreduce.json": json.dumps(_EXCHANGE),
    "run/verdicts.json": json.dumps({"verdicts": [{**_VERDICT, "ok": "yes"}]}),
    "run-cut/verdicts.json": '{"verdicts": [',
    "run-word/verdicts.json": json.dumps({"verdicts": [{**_VERDICT, "status": "GREAT"}]}),
    "history-text.sqlite": "this is no data base, though it is longer than a header of one\n" * 20,
    "nights/head.csv": "date,value\n",
    "stage.yaml": "schema: 1\nstage_data: true\n",
    "results/no.jsonl": '{"check": "c"\n',
    "results/list.jsonl": "[1, 2]\n",
    "results/lacks.jsonl": '{"schema": 1, "check": "c"}\n',
    "results/head.csv": "check,case\na,b\n",
    "data-none/x": "",
    "data-binary/x.tfrecord": "",
    "images/a.txt": "",
    "job-there/job.json": "{}",
    "job-there/job.sh": "",
    "job-script/job.sh": "",
    "job-good/job.json": json.dumps({"job_id": 4711}),
    "train.py": "",
    "embedded/work/sweeps/broken/sweep.json": "{",
    "home/cluster/broken/cluster.json": "{}",
    "broken/prefix/releases/tensorflow-1/release.json": "{",
    "nonsense/scontrol": "#!/bin/sh\necho nonsense\n",
    **dict.fromkeys(("nonsense/sinfo", "nonsense/srun"), "#!/bin/sh\nexit 1\n"),
    "embedded/work/jobs/by-id/4712/job.json": json.dumps({"job_id": 4712}),
    "idle/squeue": "#!/bin/sh\necho JOBID\n",
    "preflight.jsonl": "hello\n",
    "torn/prefix/history.json": '{"schema": 1, "events": [{"act',
    "deep/prefix/releases/tensorflow-1/release.json": _DEEP,
    "home-deep/cluster/embedded/cluster.json": _DEEP,
    "results/deep.jsonl": _DEEP,
}


def make(tmp):
    """Make the files that commands name."""
    for name, text in FILES.items():
        path = tmp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("$HPCDL_HOME/", f"{tmp}/"))
    (tmp / "secret.yaml").write_text("")
    (tmp / "secret.yaml").chmod(0)
    (tmp / "binary").write_bytes(bytes(range(256)))
    (tmp / "large").open("wb").truncate(100_000_000)
    for tool in (*(tmp / "nonsense").iterdir(), tmp / "idle/squeue"):
        tool.chmod(0o755)
    with contextlib.closing(sqlite3.connect(tmp / "later.sqlite")) as later:
        later.execute("PRAGMA user_version = 99")


def cases():
    """What is kept, in its order: name, command and what it says."""
    parts = [part.rstrip("\n").partition("\n") for part in KEPT.read_text().split("\n$ ")[1:]]
    heads = [(head.rpartition("  # "), text) for head, _, text in parts]
    return [(name, command, text) for (command, _, name), text in heads]


def said(command, tmp):
    """Run a command of `errors.txt`: its status, first line and, of a faulty file, first fault."""
    words = shlex.split(command.replace("{site}", "{tmp}/site.yaml").replace("{tmp}", str(tmp)))
    first = next(at for at, word in enumerate(words) if "=" not in word)
    variables = dict(word.split("=", 1) for word in words[:first])
    call, words = main, words[first + 1 :]
    if words[0] == "-m":
        call, words = import_module(f"{words[1]}.__main__").main, words[2:]
    if "secret.yaml" in command:
        _run(call, words, tmp, variables)  # imports what may be closed to the user below
        with _nobody():
            status, text = _run(call, words, tmp, variables)
    else:
        status, text = _run(call, words, tmp, variables)
    lines = [line for line in _with_places(text, tmp).splitlines() if line.strip()] or [""]
    found = f"{status} {lines[0]}"
    if re.search(r" has (\d+ )?faults?$| (wrong with this job|cannot be used)$", lines[0]):
        found += f"\n  {lines[1].strip()}"
    else:
        steps = [line for line in lines if line.startswith("help: ")]
        found += f"\n  {steps[0] if steps else '(no next step)'}"
    if TRACEBACK in text:
        found = f"{status} {TRACEBACK}: {lines[-1].partition(':')[0]}"
    return found


def _run(call, words, tmp, variables):
    """Exit code and standard error; a traceback is printed there, as Python would."""
    env = {
        "HPCDL_SITE": str(tmp / "site.yaml"),
        "HPCDL_HOME": str(tmp / "home"),
        "HPCDL_CACHE": str(tmp / "cache"),
        "HOME": str(tmp / "home"),
        "PATH": str(tmp / "home"),
        "NO_COLOR": "1",
    } | variables
    with (
        pytest.MonkeyPatch.context() as patch,
        mock.patch.dict(os.environ, env, clear=True),
        contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())),
        contextlib.redirect_stderr(io.StringIO()) as error,
    ):
        patch.chdir(tmp)
        patch.setitem(sys.modules, "tensorflow", None)
        try:
            status = call(words)
        except SystemExit as left:
            status = int(left.code or 0)
        except Exception:
            traceback.print_exc()
            status = 1
    return status, error.getvalue()


@contextlib.contextmanager
def _nobody():
    """No longer root, who may read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def _with_places(text, tmp):
    """Without what differs by machine, and by release of Python: argparse's quotes."""
    for path, place in ((tmp / "site.yaml", "site"), (tmp, "tmp"), (sys.executable, "python")):
        text = text.replace(str(path), f"{{{place}}}")
    return re.sub(r"\(choose from .*\)", lambda choices: choices[0].replace("'", ""), text)


def write(tmp):
    """Write every line anew, in the order that is kept, and give their number."""
    make(tmp)
    head = "# What `hpcdl` says when something is wrong: errors.py. `make golden` writes it.\n"
    rows = [f"$ {command}  # {name}\n{said(command, tmp)}\n" for name, command, _ in cases()]
    KEPT.write_text(head + "".join(rows))
    return len(rows)
