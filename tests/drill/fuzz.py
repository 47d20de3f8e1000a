"""Valid commands and documents with one mutation: `python -m tests.drill.fuzz SEED FIRST LAST`.

Random bytes are refused by the first check of a reader, so that nothing behind it is ever tried.
Here every case begins as the example of a command, or as a file that a site, a user or a program
wrote, and differs from it in one place. A case is one process, forked from one that has imported
the commands; there is no Slurm on its PATH, and what changes something gets --dry-run.

A case must end with an exit code of the table, within seconds, with a message and no traceback.
"""

import json
import os
import random
import resource
import shlex
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import yaml

from hpcdl.cli import GROUPS, load_group, main
from hpcdl.cli.framework import Command
from hpcdl.system.errors import ExitCode
from hpcdl.system.resources import folder
from tests.drill.harness import Drill
from tests.make import nights
from tests.make.results import trained

_SECONDS = 30
_MEMORY = 4 << 30
# What runs for long, serves, trains, or prints what another program is to read.
_LEFT_OUT = {"train", "data", "cluster", "stage", "doctor", "clean", "completion"}
_WORDS = r"""
- -- -1 0 1e9 1e999 NaN inf 999999999999999999999 null true none 64Q p100 00000000 ~nosuch/x / . ..
/dev/full /dev/null ../../etc http://x/y file:///etc/passwd $HOME ${x:-y} `id` $(id) a=b a=b,c=d = ,
1,2 1-2 [1- n[1-999999999] { } {x} %j %% \ ' " * ? # 1:00 1-00:00:00 99:99:99 2026-13-45
&a [*a,*a] !!int <b> =1+1
"""
_LONG = ("x" * 5000, "9" * 5000, "\u2013-gpus")
_NASTY = ("", " ", "a\nb", "a\tb", "\x1b[31m", "\udcff", "ä€\U0001f600", *_LONG, *_WORDS.split())
_VALUES = (
    *(*_NASTY, None, True, False, 0, -1, 2**70, 1.5, float("nan"), float("inf")),
    *([], {}, [[]], {"": 1}, [None], {"a": {"b": {"c": 1}}}, ["x"] * 300, {1: 2}),
)
_JOB = yaml.safe_load(
    "{schema: 1, partition: p100, nodes: 2, gpus_per_node: 4, time: '2:00:00', name: x, mem: 8G, "
    "launcher: horovod, env: {A: b}, modules: [tensorflow], data: /data, account: p, chdir: /work, "
    "sbatch: [mail-type=END], program: [python, train.py, --lr, '0.1']}"
)
_REFERENCES = yaml.safe_load(
    "{schema: 1, set: embedded, references: [{check: throughput, case: mlp, partition: p100, "
    "metric: rate, value: 100.0, unit: images/s, lower: -0.1, source: a night, proof: run, "
    "date: '2026-01-01', runs: 5, spread: 0.01}]}"
)


def _sites(chance):
    names = ("pi", "embedded", "p100-v100-k80", "a100-h100")
    return (folder("templates") / "sites" / f"{chance.choice(names)}.yaml").read_text()


def _scripts(chance):
    golden = Path(__file__).resolve().parents[1] / "golden"
    return chance.choice(sorted(golden.glob("*.sh"))).read_text()


def _rows(_):
    return "".join(json.dumps(vars(row)) + "\n" for row in nights.simulated(1))


# Kinds of documents: the name of the file, a valid one, and the commands that read it.
_DOCUMENTS = {
    "x.yaml": (
        _sites,
        *("site show --site FILE", "job render --site FILE --no-module -- ./x"),
        *("job render --site FILE --gpus 2 -- ./x", "cluster status --site FILE"),
        *("stack resolve --site FILE", "stack plan --site FILE", "stack list --site FILE"),
        *("predict --site FILE --model resnet50", "check settings --site FILE"),
        *("check references show --site FILE", "cluster up --dry-run --site FILE"),
    ),
    "job.yaml": (
        lambda _: yaml.safe_dump(_JOB),
        "job render --site embedded --no-module --file FILE",
        "job submit --dry-run --site embedded --file FILE",
    ),
    "x.sh": (_scripts, "job lint FILE", "job lint --site pi --json FILE"),
    "result.json": (
        lambda _: json.dumps(trained(4, 900.0)),
        "predict --site embedded --partition p100 --model resnet50 --calibrate FILE",
    ),
    "rows.jsonl": (_rows, "check history import --site embedded FILE"),
    "verdicts.json": (
        lambda _: json.dumps(nights.verdicts(Path.cwd(), log_lines=1)),
        *("check report --site embedded FILE", "check history import --site embedded FILE"),
        "check report --site embedded --format html FILE",
    ),
    "home/embedded/prefix/references/embedded.yaml": (
        lambda _: yaml.safe_dump(_REFERENCES),
        *("check references show --site embedded", "check gate --site embedded"),
    ),
}


def main_of_worker(seed, first, last):
    """Run these cases; a line of JSON for each that is wrong."""
    with tempfile.TemporaryDirectory(prefix="hpcdl-fuzz-") as home:
        _prepare(Path(home))
        for number in range(first, last):
            chance = random.Random(f"{seed}-{number}")
            argv = _command(chance) if chance.random() < 0.4 else _document(chance, Path(home))
            if fault := _run(argv, Path(home)):
                print(json.dumps({"case": number, "argv": argv, "fault": fault}), flush=True)


def _prepare(home):
    (home / "bin").mkdir()
    work = home / "work"
    work.mkdir()
    os.chdir(work)
    for name in [name for name in os.environ if name.startswith(("HPCDL", "SLURM", "SBATCH"))]:
        del os.environ[name]
    os.environ |= {
        "HPCDL_HOME": str(home / "home"),
        "HPCDL_CACHE": str(home / "cache"),
        "NO_COLOR": "1",
        "PATH": str(home / "bin"),
        "TMPDIR": str(home),
    }
    tempfile.tempdir = None
    (work / "job.sh").write_text("#!/bin/bash\n#SBATCH --ntasks=2\nsrun hostname\n")
    for name in GROUPS:  # imported once, for all cases
        load_group(name)


def _commands():
    for name in GROUPS:
        entry = load_group(name)
        for command in [entry] if isinstance(entry, Command) else entry.commands:
            if name not in _LEFT_OUT:
                yield command


def _changed(chance, parts):
    """Words or lines with one change: one left out, twice, added, moved, or other inside."""
    place, other = chance.randrange(len(parts)), chance.randrange(len(parts))
    part, nasty = parts[place], chance.choice(_NASTY)
    at = chance.randrange(len(part) + 1)
    spliced = part[:at] + nasty[: chance.choice((9, 40, 9999))] + part[at + chance.randrange(2) :]
    now = chance.choice(
        ([], [part, parts[other]], [nasty, part], [parts[other]], [nasty], [spliced])
    )
    return [*parts[:place], *now, *parts[place + 1 :]]


def _command(chance):
    """The example of a command with one word changed."""
    command = chance.choice(list(_commands()))
    words = _changed(chance, shlex.split(command.example.split("|")[0].split(">")[0])[1:])
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], *(["--dry-run"] if command.changes else []), *words[end:]]


def _document(chance, home, *, mutated=True):
    """A command that reads a document which has one mutation."""
    name, (valid, *commands) = chance.choice(list(_DOCUMENTS.items()))
    text = valid(chance)
    if mutated:
        text = _mutated(chance, text, as_text=not name.endswith(("yaml", "json")))
    path = home / name if "/" in name else home / "work" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
    path.chmod(0o600)
    words = chance.choice(commands).split()
    return [str(path) if word == "FILE" else word for word in words]


def _mutated(chance, text, *, as_text):
    if as_text or chance.random() < 0.3:
        return "\n".join(_changed(chance, text.splitlines())) + "\n"
    tree = yaml.safe_load(text)
    _mutate(chance, tree)
    try:
        return yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)
    except (yaml.YAMLError, UnicodeError, TypeError):
        return json.dumps(tree, default=str, skipkeys=True)


def _mutate(chance, tree):
    """Change one place, at any depth."""
    places = list(_places(tree))
    holder, key = chance.choice(places)
    what = chance.randrange(4)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[str(chance.choice(_NASTY))] = holder.pop(key)
    elif what == 2 and isinstance(holder[key], str):
        holder[key] = "".join(_changed(chance, [*holder[key]] or [""]))
    else:
        holder[key] = chance.choice(_VALUES)


def _places(tree):
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def _run(argv, home):
    """What is wrong with a case; '' where nothing is."""
    out, err = home / "out", home / "err"
    child = os.fork()
    if child == 0:
        _in_child(argv, out, err)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    said = err.read_text(errors="replace")
    if code == -signal.SIGALRM:
        return f"not done in {_SECONDS} s"
    if "Traceback (most recent call last)" in said:
        return "traceback: " + " / ".join(said.strip().splitlines()[-3:])[:400]
    if code not in {*ExitCode, *range(20, 30)}:
        return f"exit code {code}: {said[-200:]}"
    if code not in {0, 1, 6, 10, *range(20, 30)} and "error: " not in said:
        return f"exit code {code} without a message: {said[-200:]}"
    return ""


def _in_child(argv, out, err):
    code = 70
    try:
        for stream, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        code = int(main(argv) or 0)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fuzzed(bench):
    """The drill: cases in one worker after another, so that it can end in time."""
    for number in bench.times():
        cases = (bench.seed, number * _CASES, (number + 1) * _CASES)
        words = [sys.executable, "-m", "tests.drill.fuzz", *cases]
        done = bench.run(words, seconds=900)
        bench.must(done.ok, f"the worker ended: {done}")
        bench.tally.count += _CASES - 1  # what is counted are cases
        for line in done.out.splitlines():
            bench.must(False, line)


_CASES = 500
WELL = "an exit code of the table, a message, no traceback, no hang"
ONE = "a valid command or file with one mutation"
DRILLS = (Drill("fuzz", "all that read, --dry-run of the rest", ONE, 40, WELL, 600, fuzzed),)


if __name__ == "__main__":
    main_of_worker(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
