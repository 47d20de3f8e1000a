"""The command line: an example first, numbered exit codes, no traceback; see golden/errors.txt."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl import facts
from hpcdl.cli import GROUPS, load_group, main, overview
from hpcdl.cli.framework import Group, build_parser
from hpcdl.system.errors import ExitCode
from tests.unit.conftest import commands

HPCDL = [sys.executable, "-m", "hpcdl"]
COMMANDS = commands()
SHARED = {"--site", "--json", "--no-color", "--dry-run"}


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
    own = set(re.findall(r"(?m)^  (-\S+)", out)) - {"-h,", "-v,"} - SHARED
    assert len(own) <= 15, "the first screen"


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
    machinery = {"preflight", "stage", "schema"}
    assert all((f"  {name} " in out) == (name not in machinery) for name in GROUPS)
    assert overview() in out
    assert len(re.findall(r"(?m)^  [a-z]+ ", out)) <= 12


OTHERS = {"--directory", "--help", "--help-all", "--me", "--autopush", "--unsigned", "--format"}
"""Options of other tools, in hints; and those of all parsers."""


def test_hints_name_commands_and_options_that_there_are():
    """`--classes` stood in a hint after it was gone."""
    options = {
        words: {*build_parser(f"hpcdl {words}", command)._option_string_actions}
        for words, command in COMMANDS.items()
    }
    known = set().union(*options.values(), OTHERS)
    hints, sbatch = facts.load("command_hints"), facts.load("slurm_options")
    rows = [*hints["gone"].values(), *hints["any"].values(), *sbatch["own"], *sbatch["foreign"]]
    rows += [row for rows in hints["of"].values() for row in rows.values()]
    rows += hints["alike"].values()
    text = "\n".join(map(str, rows))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - known == set()
    for group, command in re.findall(r"`hpcdl ([a-z]+) ([a-z]+)", text):
        assert {group, f"{group} {command}"} & options.keys(), (group, command)
    assert hints["of"].keys() - options.keys() - {"predict", "schema", "stage"} == set()


def test_help_and_version_are_what_they_are_elsewhere(call):
    assert "--gpus COUNTS" in call("predict --help")[1], "a group of one command has its help"
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


def test_partitions_are_compared_however_they_are_listed(call):
    asked = "predict --site pi --model resnet50 --gpus 1 --compare"
    assert call(f"{asked} k80 p100") == call(f"{asked} k80,,p100") == call(f"{asked} k80,p100")


RENDER = ("job", "render", "--site", "embedded", "--no-module")


@pytest.mark.parametrize(
    "words", ["--gpus " + "9" * 5000, "--partition x\x1b[31m", "--job-dir 'a\nb'"]
)
def test_what_no_line_of_golden_errors_holds_is_one_clear_error(words, call):
    code, out, err = call(f"{' '.join(RENDER)} {words}")
    assert (code, out, err[:7], "\x1b" in err) == (2, "", "error: ", False)


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
    done = hpcdl(*RENDER, "--", "prog", "--lr", "0.1", "--", "-x")
    assert done.stderr == b""
    assert done.stdout.startswith(b"#!/bin/bash\n")
    assert b"rank prog --lr 0.1 -- -x & hpcdl_step=$!\n" in done.stdout


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_bytes_of_an_argument_survive_any_locale(locale):
    done = hpcdl(*RENDER, "--", "echo", b"a\xff\xc3\xa9", env={**os.environ, "LC_ALL": locale})
    assert done.returncode == 0
    assert rb"$'a\xff" + b"\xc3\xa9'" in done.stdout


def test_a_reader_that_leaves_is_no_error():
    done = bash(f"{shlex.join([*HPCDL, 'schema', 'site'])} | head -1; exit ${{PIPESTATUS[0]}}")
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
    assert main(["schema", "site", "--no-color"]) == 0
    assert os.environ.pop("NO_COLOR") == "1"
    main([*RENDER, "--", "python", "--no-color"])
    assert "NO_COLOR" not in os.environ


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
    for page in [*root.glob("*.md"), *root.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page} links to {target}"
