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
from hpcdl.cli.framework import Command, Group
from hpcdl.system.errors import MEANINGS, ExitCode

HPCDL = [sys.executable, "-m", "hpcdl"]


def groups() -> list[tuple[str, Group | Command]]:
    return [(name, load_group(name)) for name in GROUPS]


def commands() -> list[tuple[str, Command]]:
    """Every command with the words that call it."""
    found = []
    for name, group in groups():
        if isinstance(group, Command):
            found.append((name, group))
        else:
            found += [(f"{name} {command.name}", command) for command in group.commands]
    return found


COMMANDS = commands()


def call(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        code = main(words)
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("name", GROUPS)
def test_every_group_loads_and_has_the_name_it_is_found_by(name: str) -> None:
    group = load_group(name)
    assert group.name == name
    assert group.summary[0].islower() or isinstance(group, Command)


@pytest.mark.parametrize("words", [w for w, _ in COMMANDS], ids=[w for w, _ in COMMANDS])
def test_help_shows_an_example_first(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(*words.split(), "--help", capsys=capsys)
    assert (code, err) == (0, "")
    assert re.match(rf"example: .*\bhpcdl {words.split()[0]}\b", out.splitlines()[0])
    assert f"usage: hpcdl {words}" in " ".join(out.split())
    assert "--json" in out


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[w for w, _ in COMMANDS])
def test_an_example_is_a_line_that_the_command_takes(words: str, command: Command) -> None:
    from hpcdl.cli.framework import build_parser

    line = re.search(r"\bhpcdl ([^|>)]*)", command.example)
    assert line is not None
    options = [word for word in shlex.split(line.group(1)) if word not in words.split()]
    options = options[: options.index("--")] if "--" in options else options
    build_parser(f"hpcdl {words}", command).parse_args(options)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_names_every_group(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(*words, capsys=capsys)
    assert code == 0
    assert out.startswith("example: hpcdl job submit")
    assert all(f"  {name} " in out for name in GROUPS)
    assert overview() in out


def test_help_and_version_are_what_they_are_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("help", "site", capsys=capsys)[1].startswith("example: hpcdl site ")
    assert call("help", "job", "list", capsys=capsys)[1].startswith("example: hpcdl job list")
    assert call("version", capsys=capsys) == call("--version", capsys=capsys)


@pytest.mark.parametrize(("name", "group"), groups(), ids=[n for n, _ in groups()])
def test_a_group_alone_lists_its_commands(
    name: str, group: Group | Command, capsys: pytest.CaptureFixture[str]
) -> None:
    if isinstance(group, Command):
        return
    code, out, _ = call(name, capsys=capsys)
    assert code == 0
    assert out.startswith(f"example: hpcdl {name} ")
    assert all(f"  {command.name} " in out for command in group.commands)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("jobs", "did you mean 'job'?"),
        ("sitte show", "did you mean 'site'?"),
        ("job rendr", "did you mean 'render'?"),
        ("site show --jsn", "did you mean '--json'?"),
        ("job render --gpu 4", "did you mean '--gpus'?"),
        ("job submit python train.py", "two dashes: hpcdl job submit ... --"),
        ("xyzzy", "use one of: site"),
        ("submit my_job.sh", "did you mean hpcdl job submit?"),
        ("rollback", "did you mean hpcdl stack rollback?"),
        ("cluster start", "did you mean 'up'?"),
        ("job ls", "did you mean 'list'?"),
        ("site check site.yaml", "behind its option: --site site.yaml"),
        ("site show embedded", "behind its option: --site embedded"),
        ("run train.py", "did you mean hpcdl job submit, "),
        ("job status 17", "did you mean 'watch'?"),
        ("stack install tensorflow", "did you mean 'build'?"),
        ("predict validate rows.csv", "behind its option: hpcdl predict validate --data rows.csv"),
        ("predict validate --rows rows.csv", "--help` shows an example"),
        ("job submit -p cpu -- true", "did you mean '--partition'?"),
        ("job submit -N2 -- true", "did you mean '--nodes'?"),
        ("site init -o site.yaml", "did you mean '--output'?"),
        ("site init -x", "`hpcdl site init --help`"),
        ("cluster up --nodes 4", "did you mean '--max-nodes-per-partition'?"),
        ("predict resnet50", "hpcdl predict --model resnet50"),
        ("train mlp", "hpcdl train --model mlp"),
        ("check run throughput", "hpcdl check run --name throughput"),
        ("tour 3", "hpcdl tour --from 3"),
        ("check --no-color", "error: there is no command of 'hpcdl check'"),
        ("stack resolve --site embedded --partition gpu", "use one of: p100, v100, k80, cpu"),
    ],
)
def test_an_unknown_word_is_answered_with_the_nearest(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(*line.split(), capsys=capsys)
    assert (code, out) == (2, "")
    assert re.match("error: (unknown|there is no command|.* has no (command|partition))", err)
    assert hint in err


RENDER = ("job", "render", "--site", "embedded", "--no-module")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("site", "show", "--site", "/nosuch"), 2, "there is no site file /nosuch"),
        (("site", "show", "--site", "/"), 2, "/ is a directory"),
        (("site", "show", "--site", ""), 2, "no site file is named"),
        (("site", "show", "--", "x"), 2, "takes nothing after '--'"),
        (("site", "show", "extra"), 2, "unknown argument 'extra'"),
        (("job", "report"), 2, "`hpcdl job list` lists your jobs"),
        ((*RENDER, "--gpus", "x"), 2, "invalid int value: 'x'"),
        ((*RENDER, "--gpus", "0"), 2, "--gpus 0 is not possible"),
        ((*RENDER, "--gpus", "9" * 5000), 2, "error: "),
        ((*RENDER, "--gpus"), 2, "expected one argument"),
        ((*RENDER, "--partition", "x\x1b[31m"), 2, r"'x\u001b[31m'"),
        ((*RENDER, "--partition", "\u202e"), 2, r"\u202e"),
        ((*RENDER, "--time", "soon"), 2, "is not a time limit"),
        ((*RENDER, "--time", "0"), 2, "is not a time limit"),
        ((*RENDER, "--mem", "lots"), 2, "--mem 'lots' is no size"),
        ((*RENDER, "--mem-per-cpu", "2 Q"), 2, "--mem-per-cpu '2 Q' is no size"),
        (
            ("job", "submit", "--site", "embedded", "--no-module", "--chain", "101"),
            2,
            "queue at most 100 jobs",
        ),
        (("job", "sweep", "--site", "embedded", "--over", "n"), 2, "--over 'n' has no '='"),
        (
            ("job", "sweep", "--site", "embedded", "--running", "0"),
            2,
            "not a whole number from 1 to 1000000",
        ),
        (
            ("job", "sweep", "--site", "embedded", "--name", "../x", "--over", "n=1"),
            2,
            "'../x' is not possible",
        ),
        ((*RENDER, "--env", "A"), 2, "'A' has no value here"),
        ((*RENDER, "--env", "=x"), 2, "is no name of a variable"),
        ((*RENDER, "--name", "$(id)"), 2, "the job name '$(id)' is not possible"),
        ((*RENDER, "--job-dir", "a\nb"), 2, "Slurm cannot write a log below"),
        ((*RENDER, "--account", "a b"), 2, "--account 'a b' is not possible"),
        ((*RENDER, "--launcher", "x"), 2, "unknown launcher 'x'"),
        ((*RENDER, "--slurm-version", "x"), 2, "is no Slurm release"),
        ((*RENDER, "--", "--model-parallel=2"), 2, "cannot be had with the launcher 'horovod'"),
        (("job", "render", "--site", "embedded", "--module=-x"), 2, "is not a module name"),
        (("job", "watch", "--site", "embedded", "²"), 2, "there is no job ² submitted by hpcdl"),
        (("job", "watch", "--site", "embedded", "nosuch"), 2, "there is no job in nosuch"),
        (("job", "cancel", "--site", "embedded", "99"), 2, "there is no job 99"),
        (("job", "watch", "--site", "embedded", "/etc"), 2, "there is no job in /etc"),
    ],
)
def test_whatever_is_typed_the_answer_is_a_line_and_a_code(
    words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out, err = call(*words, capsys=capsys)
    assert found == code, err
    assert said in err
    assert out == ""
    assert "\x1b" not in err


def test_without_slurm_the_answer_is_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = call("site", "check", "--site", "embedded", capsys=capsys)
    assert code == ExitCode.MISSING_PREREQUISITE
    assert "is not on PATH" in err
    assert "hpcdl cluster up" in err


@pytest.mark.parametrize("answer", ["echo nonsense", "exit 1", "printf '\\377\\000'", "true"])
def test_a_slurm_that_answers_nonsense_is_told_so(
    answer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in ("scontrol", "sinfo", "srun", "sbatch", "squeue", "sacct"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    submit = (
        "job",
        "submit",
        "--site",
        "embedded",
        "--no-module",
        "--job-dir",
        str(tmp_path / "j"),
    )
    found, _, err = call(*submit, capsys=capsys)
    assert found == ExitCode.MISSING_PREREQUISITE
    assert err.startswith("error: Slurm did not tell whether it took the job")
    record = json.loads((tmp_path / "j" / "job.json").read_text())
    assert record["tokens"], "it is found again if Slurm took it"
    assert record.get("job_id") is None


def hpcdl(*words: str, **options: object) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([*HPCDL, *words], capture_output=True, timeout=60, check=False, **options)  # type: ignore[call-overload, no-any-return]


def test_render_prints_the_script_and_nothing_else() -> None:
    done = hpcdl(*RENDER, "--", "python", "--lr", "0.1", "--", "-x")
    assert done.stderr == b""
    assert done.stdout.startswith(b"#!/bin/bash\n")
    assert b"  python --lr 0.1 -- -x &\n" in done.stdout


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_bytes_of_an_argument_survive_any_locale(locale: str) -> None:
    done = hpcdl(*RENDER, "--", "echo", b"a\xff\xc3\xa9", env={**os.environ, "LC_ALL": locale})  # type: ignore[arg-type]
    assert done.returncode == 0
    assert rb"$'a\xff" + b"\xc3\xa9'" in done.stdout


def test_a_reader_that_leaves_is_no_error() -> None:
    line = f"{shlex.join([*HPCDL, 'site', 'schema'])} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.stdout == "{\n"
    assert done.stderr == ""
    assert done.returncode in {0, 141}


def test_a_full_disk_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*HPCDL, *RENDER], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == ExitCode.MISSING_PREREQUISITE
    assert done.stderr.startswith(b"error: No space left on device\n")


def test_what_was_said_before_an_error_is_not_lost() -> None:
    program = (
        "from hpcdl import __main__ as m, cli\n"
        "from hpcdl.system.errors import BadInput\n"
        "def fails(_):\n    print('half a report'); raise BadInput('no more')\n"
        "cli._dispatch = fails; m.run()"
    )
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "half a report\n", "error: no more\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_a_closed_stream_does_no_harm(closed: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join([*HPCDL, *RENDER])} {closed}"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == b""


def test_a_folder_that_vanished_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"rmdir {gone}; exec {shlex.join([*HPCDL, *RENDER, '--job-dir', 'x'])}"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(["bash", "-c", line], cwd=gone, env=env, capture_output=True, check=False)
    assert done.returncode == ExitCode.MISSING_PREREQUISITE
    assert b"Traceback" not in done.stderr


def test_json_is_json_and_names_what_text_names(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(*RENDER, "--json", "--gpus", "8", capsys=capsys)
    data = json.loads(out)
    assert code == 0
    assert data["layout"]["nodes"] == 2
    assert data["script"].startswith("#!/bin/bash\n")
    code, out, _ = call("job", "explain", *RENDER[2:], "--json", capsys=capsys)
    lines = json.loads(out)
    assert {"text", "reason", "rule"} <= lines[0].keys()
    assert any(line["rule"] for line in lines)


def test_no_color_is_an_option_and_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["site", "schema", "--no-color"]) == 0
    assert os.environ.pop("NO_COLOR") == "1"


def test_an_option_of_the_program_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    main([*RENDER, "--", "python", "--no-color"])
    assert "NO_COLOR" not in os.environ


@pytest.mark.parametrize("words", ["--site embedded no.jsonl", "no.jsonl --site embedded"])
def test_files_may_stand_before_and_behind_options(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = call("check", "history", "import", "--dry-run", *words.split(), capsys=capsys)
    assert code == ExitCode.USAGE
    assert "cannot read no.jsonl" in said


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)


def test_a_dry_run_is_offered_where_something_changes(capsys: pytest.CaptureFixture[str]) -> None:
    for words, command in COMMANDS:
        _, out, _ = call(*words.split(), "--help", capsys=capsys)
        assert ("--dry-run" in out) == command.changes, words


def test_an_existing_site_file_is_replaced_only_when_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.yaml").write_text("kept")
    code, _, err = call("site", "init", "--output", str(tmp_path / "site.yaml"), capsys=capsys)
    assert code == 2
    assert "--force" in err
    assert (tmp_path / "site.yaml").read_text() == "kept"


def test_the_command_line_starts_without_an_http_client() -> None:
    """Modules of Python's own library cost as much as ours: this one half of the start."""
    program = "import sys, hpcdl.cli; sys.exit('urllib.request' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_link_to_itself_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody may leave one in a shared directory; to resolve it is an error of its own."""
    (tmp_path / "loop").symlink_to("loop")
    assert main(["job", "report", str(tmp_path / "loop"), "--site", "embedded"]) in {2, 3}
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("words", [
    ("--site", "pi", "site", "show", "--json"), ("site", "--site=pi", "--json", "show"),
    ("--json", "site", "show", "--site", "pi"), ("--site", "pi", "site", "--json", "show"),
])  # fmt: skip
def test_what_every_command_takes_may_stand_anywhere(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "pi"


def test_a_line_of_options_alone_says_that_a_command_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--site", "pi"]) == 2
    assert "no command" in capsys.readouterr().err
