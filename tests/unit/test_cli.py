"""The command line: an example first, the nearest word, numbered exit codes, no traceback."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.cli import GROUPS, load_group, main, overview
from hpcdl.cli.framework import Group, build_parser
from hpcdl.system.errors import ExitCode
from tests.unit.conftest import commands

HPCDL = [sys.executable, "-m", "hpcdl"]
COMMANDS = commands()


@pytest.fixture
def call(capsys):
    """Runs a command line in this process: its exit code, output and errors."""

    def run(line, *more):
        try:
            code = main([*shlex.split(line), *more])
        except SystemExit as left:
            code = int(left.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.parametrize("words", COMMANDS)
def test_help_shows_an_example_first_and_a_dry_run_where_something_changes(words, call):
    code, out, err = call(f"{words} --help")
    assert (code, err) == (0, "")
    assert re.match(rf"example: .*\bhpcdl {words.split()[0]}\b", out.splitlines()[0])
    assert f"usage: hpcdl {words}" in " ".join(out.split())
    assert "--json" in out
    assert ("--dry-run" in out) == COMMANDS[words].changes


@pytest.mark.parametrize("words", COMMANDS)
def test_an_example_is_a_line_that_the_command_takes(words):
    command = COMMANDS[words]
    (line,) = re.findall(r"\bhpcdl ([^|>)]*)", command.example)[:1]
    options = [word for word in shlex.split(line) if word not in words.split()]
    options = options[: options.index("--")] if "--" in options else options
    build_parser(f"hpcdl {words}", command).parse_args(options)


@pytest.mark.parametrize("words", ["", "--help", "-h", "help"])
def test_the_overview_names_every_group(words, call):
    code, out, _ = call(words)
    assert code == 0
    assert out.startswith("example: hpcdl job submit")
    assert all(f"  {name} " in out for name in GROUPS)
    assert overview() in out


def test_help_and_version_are_what_they_are_elsewhere(call):
    assert call("help site")[1].startswith("example: hpcdl site ")
    assert call("help job list")[1].startswith("example: hpcdl job list")
    assert call("version") == call("--version")
    assert call("job help") == call("job --help")
    assert call("job help list") == call("job list -?") == call("job list --help")
    assert call("-?") == call("/?") == call("--help")


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_alone_lists_its_commands(name, call):
    group = load_group(name)
    assert group.name == name
    if isinstance(group, Group):
        code, out, _ = call(name)
        assert code == 0
        assert out.startswith(f"example: hpcdl {name} ")
        assert all(f"  {command.name} " in out for command in group.commands)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("jobs", "did you mean 'job'?"),
        ("job rendr", "did you mean 'render'?"),
        ("job render --gpu 4", "did you mean '--gpus'?"),
        ("job submit python train.py", "two dashes: hpcdl job submit ... --"),
        ("xyzzy", "use one of: site"),
        ("submit my_job.sh", "did you mean hpcdl job submit?"),
        ("rollback", "did you mean hpcdl stack rollback?"),
        ("cluster start", "did you mean 'up'?"),
        ("cluster restart", "did you mean 'up'?"),
        ("stack remove x", "did you mean 'gc'?"),
        ("check run smoke", "hpcdl check run --partition smoke"),
        ("check history", "write hpcdl check history ... show|export|import FILE"),
        ("site init site.yaml", "hpcdl site init --output site.yaml"),
        ("doctor login", "--role login"),
        ("stack resolve p100", "--partition p100"),
        ("job render --gpus p100:4", "write --gpus 4; --partition, or --gpu-model p100, says"),
        ("data make digit x", "did you mean 'digits'?"),
        ("data make cifar10 x", "`hpcdl train --dataset package.module:function`"),
        ("completion ksh", "use one of: bash, zsh, fish"),
        ("clean all --site embedded", "leave it out to clean all"),
        ("site check site.yaml", "behind its option: --site site.yaml"),
        ("job render job.yaml", "a job file: --file job.yaml"),
        ("run train.py", "did you mean hpcdl job submit, "),
        ("job submit -N2 -- true", "use --nodes"),
        ("job submit --sbatch --mail-type=END -- true", "--sbatch mail-type=END"),
        ("job render R -- --batch 64", "did you mean '--batch-per-rank'?"),
        ("stack build tensorflow==2.15", "the site file has the versions"),
        ("job submit -nodes 2 -- true", "did you mean '--nodes'?"),
        ("job submit -H", "write --sbatch hold"),
        ("job submit --cpus 8", "use --cpus-per-task"),
        ("job submit --queue gpu", "use --partition"),
        ("job submit --interactive", "a batch job has no terminal"),
        ("job submit --conda tf", "ENV/bin/python"),
        ("job submit help", "did you mean '--help'?"),
        ("job lint --fix x.sh", "it changes nothing: each finding says"),
        ("job lint --disable RULE x.sh", "--json has the rule of each finding"),
        ("job lint --explain", "write hpcdl job lint ... --explain RULE"),
        ("predict --compare", "write hpcdl predict ... --compare PARTITIONS"),
        ("predict --model resnet50 --nodes 4", "did you mean '--gpus'?"),
        ("predict --gpu p100", "by --partition or --gpu-model"),
        ("predict plot", "did you mean '--plot'?"),
        ("study list --site pi", "it reads no site file: leave --site out"),
        ("site schema --output x", "it prints to standard output: > FILE"),
        ("site show --format json", "did you mean '--json'?"),
        ("site new", "did you mean 'init'?"),
        ("data show DIR", "did you mean 'inspect'?"),
        ("stack resolve --gpu k80", "did you mean '--partition'?"),
        ("doctor --fix", "what is missing has its command beside it"),
        ("job.lint x.sh", "did you mean hpcdl job lint?"),
        ("job-lint x.sh", "did you mean hpcdl job lint?"),
        ("job submit -V", "for the command line of sbatch"),
        ("job submit -oout.log", "use --job-dir: log and results lie there"),
        ("job render -o job.sh", "> FILE"),
        ("job submit --export=ALL", "use --env; or `hpcdl train` takes it: write it after --"),
        ("stack resolve -p p100", "did you mean '--partition'?"),
        ("site init -x", "`hpcdl site init --help`"),
        ("site init -S", "`hpcdl site init --help`"),
        ("job submit --model mlp", "`hpcdl train` takes it: write it after --"),
        ("job render R -- --partition cpu", "`hpcdl job` takes it: write it before --"),
        ("job submit --dry-run R -- --model mlp --dry-run", "write it before --"),
        ("job render R -- --batch-size 8", "did you mean '--batch-per-rank'?"),
        ("job render --gres=gpu:4", "use --gpus-per-node N, or --gpus N for all nodes"),
        ("job render --dependency 5", "write --sbatch dependency=VALUE"),
        ("job render --exclusive", "--nodes N asks for whole ones"),
        ("job submit --output x", "use --job-dir"),
        ("job render --image x", "did you mean '--container'?"),
        ("job render R --partition p100,v100", "name one: a job runs on one partition"),
        ("job delete 3", "did you mean 'cancel'?"),
        ("job stop 3", "did you mean 'cancel'?"),
        ("job logs 3", "did you mean 'log'?"),
        ("job show 3", "did you mean 'report'?"),
        ("predict p100 resnet50", "hpcdl predict --partition p100"),
        ("tour 3", "hpcdl tour --from 3"),
        ("check --no-color", "error: 'hpcdl check' needs a command"),
        ("stack resolve --site embedded --partition gpu", "use one of: p100, v100, k80, cpu"),
    ],
)
def test_an_unknown_word_is_answered_with_the_nearest(line, hint, call):
    code, out, err = call(line.replace("R ", "--site embedded --no-module "))
    assert (code, out) == (2, "")
    what = "unknown|argument|nothing|the following|.* needs a command|.* has no (command|partition)"
    assert re.match(f"error: ({what})", err)
    assert hint in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "--model resnet50",
            "'cpu', the default, has no GPUs\nhelp: give --partition, such as k20",
        ),
        ("--partition p100 --model resnet50,vgg16", "name one: a forecast is of one network"),
        ("--model resnet50 --compare ,", "--compare names no partition"),
    ],
)
def test_a_forecast_that_lacks_something_says_what(line, said, call):
    code, _, err = call(f"predict --site pi {line}")
    assert code == 2
    assert said in err


def test_partitions_are_compared_however_they_are_listed(call):
    asked = "predict --site pi --model resnet50 --gpus 1 --compare"
    assert call(f"{asked} k80 p100") == call(f"{asked} k80,,p100") == call(f"{asked} k80,p100")


RENDER = ("job", "render", "--site", "embedded", "--no-module")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("job report", "`hpcdl job list` lists your jobs"),
        ("site show extra", "unknown argument 'extra'"),
        (f"R --gpus {'9' * 5000}", "error: "),
        ("R --partition x\x1b[31m", r"'x\u001b[31m'"),
        ("R --partition \u202e", r"\u202e"),
        ("R --partition=", "argument --partition: the value is empty"),
        ("R --env A=b --env ''", "is a variable of the shell not set?"),
        ("job cancel 5 ''", "argument JOB: the value is empty"),
        ("R \u2013partition p100", "typographic dash\nhelp: type --partition"),
        ("R -- \u2013model mlp", "typographic dash\nhelp: type --model"),
        ("R \u2014 true", "help: type --\n"),
        ("R --mem-per-cpu '2 Q'", "--mem-per-cpu is '2 Q', which is no size"),
        ("job submit --site embedded --no-module --chain 101", "give a number from 1 to 100"),
        ("job sweep --site embedded --running 0", "not a whole number from 1 to 1000000"),
        ("job sweep --site embedded --name ../x --over n=1", "name is '../x'"),
        ("R --env =x", "is no valid name"),
        ("R -- 'python train.py'", "leave the quotes out: -- python train.py"),
        ("R -- 'cd x && python t.py'", "let one run it: -- bash -c 'cd x && python t.py'"),
        ("R -- module load foo", "for modules --module NAME"),
        ("R -- conda activate tf", "or name the environment's own python"),
        ("R -- A=1 python t.py", "by --env A=1"),
        ("R -- sbatch t.sh", "would queue another job from every rank"),
        ("R -- bash", "a job has no terminal"),
        ("R -- mlp", "'mlp' is no program\nhelp: options of `hpcdl train` follow the dashes"),
        ("R -- python x.ipynb", "x.ipynb is a notebook"),
        ("R -- python 'x.py --lr 1'", "leave the quotes out: x.py --lr 1"),
        ("R -- python -m torch.distributed.run x.py", "--launcher torchrun -- PROGRAM"),
        ("R --job-dir '$NOWHERE/x'", "the variable $NOWHERE was not expanded"),
        ("R --sbatch '--mail-type END'", "write --sbatch mail-type=END"),
        ("R --sbatch=-t1", "not '-t1'\nhelp: use --time"),
        ("R --sbatch=-dafterok:1", "help: write --sbatch dependency=VALUE"),
        ("R --env=-- -- true", "argument --env: expected one argument"),
        ("R --file=-- -- true", "argument --file: expected one argument"),
        ("job sweep --over=-- -- true", "argument --over: expected one argument"),
        ("R --sbatch 'begin =now'", "has no option 'begin '"),
        ("R --file ~/no.yaml", "~ was not expanded to your home directory"),
        ("R --file /nowhere/no.yaml", "there is no directory /nowhere"),
        ("R --gpus 9999999", "give a number from 1 to 1,000,000"),
        ("job lint --site embedded --strict t.sh", "--advice prints advice, too"),
        ("site diff", "did you mean 'check'?"),
        ("cluster up --slurm-version 22.05", "use --slurm V"),
        ("job list -n 5", "use --last N"),
        ("job lint --gpus 4 x.sh", "the #SBATCH lines of the script say that"),
        ("check run --all", "leave --tag and --name out"),
        ("job cancel --user me", "`scancel --me` ends all of yours"),
        ("stack build --tensorflow 2.15", "the site file has the versions"),
        ("stack resolve --tensorflow 2.15", "--why-not NAME@VERSION"),
        ("stack mirror", "write hpcdl stack mirror ... --directory DIR"),
        ("clean --older-than 7d", "use --days COUNT"),
        ("tour --step 3", "write --from N --to N"),
        ("doctor --laptop", "write --role laptop"),
        ("study show", "`hpcdl study list` lists the studies"),
        ("data make photos", "write hpcdl data make ... DIR"),
        ("stage . '$NOWHERE/x'", "$NOWHERE has no value here"),
        ("R partition=p100", "did you mean '--partition=p100'?"),
        ("job sweep --grid lr=1,2", "did you mean '--over'?"),
        ("job lint --site embedded https://x.org/t.sh", "fetch it first"),
        ("R --name '$(id)'", "--name is '$(id)'"),
        ("R --job-dir 'a\nb'", "Slurm cannot write a log below"),
        ("R -- --model-parallel=2", "docs/training.md#other-ways-to-go-parallel"),
        ("job watch --site embedded ²", "there is no job ² submitted by hpcdl"),
        ("check history import --dry-run no.jsonl --site embedded", "cannot read no.jsonl"),
    ],
)
def test_whatever_is_typed_the_answer_is_a_line_and_a_code(line, said, call):
    """More of them: tests/golden/errors.txt."""
    code, out, err = call(re.sub("^R ", f"{' '.join(RENDER)} ", line))
    assert (code, out) == (2, ""), err
    assert said in err
    assert "\x1b" not in err


@pytest.mark.parametrize("answer", ["echo nonsense", "exit 1", "printf '\\377\\000'", "true"])
def test_a_slurm_that_answers_nonsense_is_told_so(answer, monkeypatch, tmp_path, call):
    for name in ("scontrol", "sinfo", "srun", "sbatch", "squeue", "sacct"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found, _, err = call(f"job submit --site embedded --no-module --job-dir {tmp_path}/j")
    assert found == ExitCode.MISSING_PREREQUISITE
    assert err.startswith("error: Slurm did not confirm the submission")
    record = json.loads((tmp_path / "j" / "job.json").read_text())
    assert record["tokens"], "it is found again if Slurm took it"
    assert record.get("job_id") is None


def hpcdl(*words, **options):
    return subprocess.run([*HPCDL, *words], capture_output=True, timeout=60, check=False, **options)


def bash(line, **options):
    return subprocess.run(["bash", "-c", line], capture_output=True, check=False, **options)


def test_render_prints_the_script_and_nothing_else():
    done = hpcdl(*RENDER, "--", "python", "--lr", "0.1", "--", "-x")
    assert done.stderr == b""
    assert done.stdout.startswith(b"#!/bin/bash\n")
    assert b"rank python --lr 0.1 -- -x &\n" in done.stdout


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_bytes_of_an_argument_survive_any_locale(locale):
    done = hpcdl(*RENDER, "--", "echo", b"a\xff\xc3\xa9", env={**os.environ, "LC_ALL": locale})
    assert done.returncode == 0
    assert rb"$'a\xff" + b"\xc3\xa9'" in done.stdout


def test_a_reader_that_leaves_is_no_error():
    done = bash(f"{shlex.join([*HPCDL, 'site', 'schema'])} | head -1; exit ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == (b"{\n", b"")
    assert done.returncode in {0, 141}


def test_a_full_disk_is_told():
    done = bash(f"{shlex.join([*HPCDL, *RENDER])} > /dev/full")
    assert done.returncode == ExitCode.MISSING_PREREQUISITE
    assert done.stderr.startswith(b"error: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_errors_that_can_go_nowhere_change_no_exit_code(unbuffered):
    for asked, code in ((RENDER, 0), (["job", "lint", "/none"], 2), (["nonsense"], 2)):
        for where in ("2> /dev/full", "2> >(exec true)"):
            done = bash(f"PYTHONUNBUFFERED={unbuffered} {shlex.join([*HPCDL, *asked])} {where}")
            assert done.returncode == code
    done = bash(f"PYTHONUNBUFFERED={unbuffered} {shlex.join([*HPCDL, *RENDER])} > /dev/full 2>&1")
    assert done.returncode == ExitCode.MISSING_PREREQUISITE


def test_what_was_said_before_an_error_is_not_lost():
    program = (
        "from hpcdl import __main__ as m, cli\n"
        "from hpcdl.system.errors import BadInput\n"
        "def fails(_):\n    print('half a report'); raise BadInput('no more')\n"
        "cli._dispatch = fails; m.run()"
    )
    done = bash(f"unset PYTHONUNBUFFERED; {shlex.join([sys.executable, '-c', program])}")
    assert (done.returncode, done.stdout) == (2, b"half a report\n")
    assert done.stderr == b"error: no more\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_a_closed_stream_does_no_harm(closed):
    done = bash(f"{shlex.join([*HPCDL, *RENDER])} {closed}")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_folder_that_vanished_is_told(tmp_path):
    (tmp_path / "gone").mkdir()
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    line = f"rmdir $PWD; exec {shlex.join([*HPCDL, *RENDER, '--job-dir', 'x'])}"
    done = bash(line, cwd=tmp_path / "gone", env=env)
    assert done.returncode == ExitCode.MISSING_PREREQUISITE
    assert b"Traceback" not in done.stderr


def test_json_is_json_and_names_what_text_names(call):
    code, out, _ = call("job render --site embedded --no-module --json --gpus 8")
    data = json.loads(out)
    assert (code, data["layout"]["nodes"]) == (0, 2)
    assert data["script"].startswith("#!/bin/bash\n")
    lines = json.loads(call("job explain --site embedded --no-module --json")[1])
    assert {"text", "reason", "rule"} <= lines[0].keys()
    assert any(line["rule"] for line in lines)


def test_no_color_is_an_option_and_a_variable(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["site", "schema", "--no-color"]) == 0
    assert os.environ.pop("NO_COLOR") == "1"
    main([*RENDER, "--", "python", "--no-color"])
    assert "NO_COLOR" not in os.environ


def test_an_existing_site_file_is_replaced_only_when_forced(tmp_path, call):
    (tmp_path / "site.yaml").write_text("kept")
    code, _, err = call(f"site init --output {tmp_path}/site.yaml")
    assert (code, "--force" in err) == (2, True)
    assert (tmp_path / "site.yaml").read_text() == "kept"


def test_the_command_line_starts_without_an_http_client():
    """Modules of Python's own library cost as much as ours: this one half of the start."""
    program = "import sys, hpcdl.cli; sys.exit('urllib.request' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_link_to_itself_is_one_clear_line(tmp_path, capsys):
    """Anybody may leave one in a shared directory; to resolve it is an error of its own."""
    (tmp_path / "loop").symlink_to("loop")
    assert main(["job", "report", str(tmp_path / "loop"), "--site", "embedded"]) in {2, 3}
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    "words",
    [
        ("--site", "pi", "site", "show", "--json"),
        ("site", "--site=pi", "--json", "show"),
        ("--json", "site", "show", "--site", "pi"),
        ("--site", "pi", "site", "--json", "show"),
    ],
)
def test_what_every_command_takes_may_stand_anywhere(words, capsys):
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "pi"


def test_a_blank_argument_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["stack", "gc", " ", "--dry-run"])
    assert "unknown argument ' '" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
    ids=["terminal", "NO_COLOR", "dumb"],
)
def test_colours_are_for_terminals_that_may_have_them(env, coloured, tmp_path):
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --ntaks=4\nsrun hostname\n")
    words = shlex.join([*HPCDL, "job", "lint", "--site", "embedded", "job.sh"])
    line = f"script -qec {shlex.quote(words)} /dev/null"
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    assert (b"\x1b[" in bash(line, cwd=tmp_path, env={**plain, **env}).stdout) == coloured


def test_links_of_pages_lead_somewhere():
    root = Path(__file__).resolve().parents[2]
    for page in [*root.glob("*.md"), *root.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page} links to {target}"
