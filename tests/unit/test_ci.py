"""Rendered pipelines run what they say.

What is in them is run here in real shells, with an hpcdl that writes down how it was called;
tests/integration/test_ci.py holds the files against their schemas.
"""

import os
import pwd
import re
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import yaml

from hpcdl.cli import main
from hpcdl.regress import ci
from hpcdl.regress.answer import Finding, GateAnswer
from hpcdl.regress.ci import KINDS, Request, explained, render, run_night, site_file, unit_user
from hpcdl.regress.identity import Series
from hpcdl.regress.run_directory import last_page
from hpcdl.system.errors import BadInput, MissingPrerequisite


@pytest.fixture
def recorder(tmp_path):
    """An hpcdl that writes its words down, and fails where a file beside it says so."""
    program = tmp_path / "bin" / "hpcdl"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nhere=${0%/*}\n{ printf "%s\\0" "$@"; printf "\\1"; } >> "$here/calls"\n'
        '[ ! -e "$here/fails-$2" ]\n'
    )
    program.chmod(0o755)
    return program


def calls(recorder):
    made = (recorder.parent / "calls").read_text().split("\1")[:-1]
    return [call.split("\0")[:-1] for call in made]


def lines_of(kind, files):
    """The shell's lines of a pipeline, read back as the program that runs it would read them."""
    if kind == "scrontab":
        rows = [line for line in files["scrontab"].splitlines() if line and line[0] != "#"]
        return [row.split(" ", 5)[5] for row in rows]
    if kind == "systemd":
        texts = [text for name, text in files.items() if name.endswith(".service")]
        return [line for text in texts for line in re.findall(r"^ExecStart=(.*)$", text, re.M)]
    document = yaml.safe_load(next(iter(files.values())))
    if kind == "gitlab":
        jobs = [job for job in document.values() if isinstance(job, dict)]
        return [
            *chain.from_iterable(
                job.get(key, ()) for job in jobs for key in ("script", "after_script")
            )
        ]
    steps = [step for job in document["jobs"].values() for step in job["steps"]]
    return [step["run"] for step in steps if "run" in step]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_runs_what_it_says(kind, three_generations, recorder, tmp_path):
    site = replace(three_generations, paths=replace(three_generations.paths, work=tmp_path / "w"))
    (site.paths.work / "checks" / "reports").mkdir(parents=True)
    request = Request("site.yaml", str(recorder), user="hpc")
    env = {"PATH": "/usr/bin:/bin", "GITHUB_STEP_SUMMARY": "summary"}
    for line in lines_of(kind, render(kind, site, request)):
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=env, capture_output=True)
        assert done.returncode == 0, (line, done.stderr)
    made = calls(recorder)
    assert all(words[words.index("--site") + 1] == "site.yaml" for words in made)
    called = {tuple(words[:2]) for words in made} - {("stack", "build")}
    assert sum("--weekly" in words for words in made) == 1
    by_kind = {"gitlab": {"run", "gate"}, "github": {"run", "gate", "report"}}.get(kind, set())
    assert called == {("check", word) for word in {"night", *by_kind}}
    assert not (tmp_path / "history").exists(), "a merge request is no night"


@pytest.mark.parametrize("fails", ["", "run", "gate"])
def test_a_night_that_fails_is_reported_too(fails, three_generations, recorder, monkeypatch):
    (recorder.parent / f"fails-{fails}").touch()
    monkeypatch.setattr(ci, "module_argv", lambda *_: [str(recorder)])
    findings = (
        [Finding(Series("bw", "", "p100", "rate"), "drop", "-9 %")] if fails == "gate" else []
    )
    monkeypatch.setattr(ci, "answer_now", lambda _: GateAnswer(1, tuple(findings), 1))
    place = recorder.parent / "reports"
    place.mkdir()
    hears = place / "hears.yaml"
    listener = f"cat > {place}/heard"
    targets = [{"kind": "command", "run": ["sh", "-c", listener]}]
    hears.write_text(yaml.safe_dump({"schema": 1, "when": "always", "targets": targets}))
    hears.chmod(0o600)
    site = replace(three_generations, paths=replace(three_generations.paths, work=place))
    assert run_night(site, weekly=False, notify=hears) is not bool(fails)
    each = ["run", "report", "report"]
    assert [words[1] for words in calls(recorder)] == [*each, *each]
    assert ("drop" in (place / "heard").read_text()) is (fails == "gate")
    assert last_page(site) is None
    (place / "checks" / "reports" / "nightly.html").touch()
    assert last_page(site).name == "nightly.html"


def test_each_step_of_a_night_is_tried_and_one_that_fails_is_told(
    three_generations, recorder, monkeypatch, capfd
):
    """At a full disk the first page ended the night: no further checks, no gate, nobody told."""
    monkeypatch.setattr(ci, "module_argv", lambda *_: [str(recorder)])
    place = recorder.parent / "work"
    hears = recorder.parent / "hears.yaml"
    targets = [{"kind": "command", "run": ["sh", "-c", f"cat > {recorder.parent}/heard"]}]
    hears.write_text(yaml.safe_dump({"schema": 1, "when": "always", "targets": targets}))
    hears.chmod(0o600)
    place.write_text("in the way, as a full disk is")
    site = replace(three_generations, paths=replace(three_generations.paths, work=place))
    assert run_night(site, weekly=False, notify=hears) is False
    assert [words[1] for words in calls(recorder)] == ["run", "run"]
    assert "no page of the nodes run" in capfd.readouterr().err
    assert "Gate closed: there is no history" in (recorder.parent / "heard").read_text()

    def fails(_):
        raise MissingPrerequisite("the history is away")

    place.unlink()
    monkeypatch.setattr(ci, "answer_now", fails)
    assert run_night(site, weekly=False, notify=hears) is False
    assert "no answer of the gate" in (recorder.parent / "heard").read_text()
    assert len(calls(recorder)) == 2 + 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_cluster_without_stacks_has_nothing_to_build(kind, three_generations):
    files = render(kind, replace(three_generations, stacks={}), Request("site.yaml"))
    assert "stack build" not in "".join(files.values())
    assert not any("cache" in name for name in files)


def test_a_time_is_the_same_in_every_form(three_generations):
    request = Request("s", at="2:05")
    crontab = render("scrontab", three_generations, request)["scrontab"]
    times = [line.split(" ", 5)[:5] for line in crontab.splitlines() if line and line[0] != "#"]
    assert [" ".join(one) for one in times] == ["5 22 * * *", "5 2 * * *", "5 8 * * 0"]
    units = render("systemd", three_generations, request)
    assert "OnCalendar=*-*-* 02:05:00\n" in units["hpcdl-nightly.timer"]
    assert "OnCalendar=Sun *-*-* 08:05:00\n" in units["hpcdl-weekly.timer"]
    document = yaml.safe_load(render("github", three_generations, request)["hpcdl.yml"])
    crons = [entry["cron"] for entry in document[True]["schedule"]]  # YAML 1.1 reads `on` so
    assert crons == ["5 2 * * *", "5 8 * * 0"]
    assert document["jobs"]["nightly"]["if"].endswith("== '5 2 * * *'")


def test_a_weekly_run_that_waits_is_dropped_by_no_night(three_generations):
    text = render("github", three_generations, Request("s", at="2:05"))["hpcdl.yml"]
    group = yaml.safe_load(text)["concurrency"]["group"]

    def named(ref, schedule, event):
        """The group of a run: of `${{ a || b }}` the first that is not empty."""
        said = {"github.ref": ref, "github.event.schedule": schedule, "github.event_name": event}
        words = (inner.split(" || ") for inner in re.findall(r"\$\{\{ (.*?) \}\}", group))
        return tuple(
            next(said[word] for word in alternatives if said[word]) for alternatives in words
        )

    runs = [
        ("main", "5 2 * * *", "schedule"),
        ("main", "5 8 * * 0", "schedule"),
        ("pull/1", "", "pull_request"),
        ("pull/2", "", "pull_request"),
    ]
    assert len({named(*run) for run in runs}) == len(runs)


@pytest.mark.parametrize(
    "odd", ["a\nb", "a\x1bb", "$(x)", "a b", "`x`", "a;b", "${{ y }}", "%h", "'"]
)
@pytest.mark.parametrize("where", ["notify", "site_file", "command", "user", "work"])
def test_a_word_that_would_need_quotes_is_refused(three_generations, odd, where):
    site, given = three_generations, {"site_file": "s", where: odd}
    if where == "work":
        site = replace(site, paths=replace(site.paths, work=Path(f"/{given.pop('work')}")))
    for kind in KINDS:
        with pytest.raises(BadInput, match="cannot be written to a pipeline"):
            render(kind, site, Request(**given))


def test_a_time_that_is_none_is_refused(three_generations):
    with pytest.raises(BadInput, match="is no time of day"):
        render("gitlab", three_generations, Request("s", at="25:00"))


def test_a_site_file_of_the_repository_stays_relative(three_generations, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yaml").touch()
    assert site_file("gitlab", three_generations, "site.yaml") == "site.yaml"
    assert Path(site_file("scrontab", three_generations, "site.yaml")).is_absolute()
    assert Path(site_file("gitlab", three_generations, "pi")).is_absolute()


def test_the_command_writes_files_and_a_dry_run_none(tmp_path, capsys):
    def ci(kind, name, *more):
        place = tmp_path / name
        words = ["check", "ci", kind, "--site", "embedded", "--output", str(place), *more]
        assert main(words) == 0
        return place

    me = ("--user", pwd.getpwuid(os.getuid()).pw_name)
    assert not ci("systemd", "units", *me, "--dry-run").exists()
    assert "[Timer]" in capsys.readouterr().out
    assert {path.suffix for path in ci("systemd", "units", *me).iterdir()} == {".service", ".timer"}
    assert ci("gitlab", "ci.yml").read_text().startswith("# The pipeline of embedded")


def test_whom_the_gate_tells_is_in_every_pipeline_and_units_are_short(three_generations):
    for kind in KINDS:
        told = render(kind, three_generations, Request("/s", notify="/etc/hpcdl/notify.yaml"))
        assert re.search(r"--notify\W+/etc/hpcdl/notify.yaml", "".join(told.values()))
        assert "--notify" not in "".join(render(kind, three_generations, Request("/s")).values())
    units = render("systemd", three_generations, Request("/s", user="hpc"))
    assert all(len(text.splitlines()) <= 15 for text in units.values())


def test_units_run_as_somebody_who_exists_and_as_root_only_if_said(three_generations, monkeypatch):
    """They ran as root where nobody was named, and with $USER of whoever rendered them."""
    monkeypatch.setattr(os, "getuid", lambda: 0)
    for given, said in (("", "would run as root"), ("no-such-user", "there is no user")):
        with pytest.raises(BadInput, match=said):
            unit_user(given, three_generations)
    assert unit_user("root", three_generations) == "root"


def test_a_pipeline_says_what_it_will_do(three_generations):
    said = explained(three_generations, Request("site.yaml", user="hpc", at="02:30", runs=3))
    assert "every night at 02:30 as hpc: checks with the tags nightly and node, runs: 3" in said
    assert "again where suspicious: at most 4 more, for 30 minutes" in said
    assert "on sunday at 08:30 as hpc" in said


# The project's own pipelines: sound for their services, and they call make's targets alone.

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ".github/workflows/ci.yml"
GITLAB = ".gitlab-ci.yml"
FILES = {GITHUB: "vendor.github-workflows", GITLAB: "vendor.gitlab-ci"} | {
    f".github/ISSUE_TEMPLATE/{name}.yml": "vendor.github-issue-forms" for name in ("fault", "wish")
}


@pytest.mark.parametrize("name", FILES)
def test_its_service_accepts_it(name):
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", FILES[name]]
    done = subprocess.run([*check, ROOT / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [GITHUB, GITLAB])
def test_it_calls_targets_that_there_are(name):
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
    called = set(re.findall(r"(?<!git )\bmake ([a-z][a-z-]+)$", (ROOT / name).read_text(), re.M))
    assert called <= targets, called - targets
    assert {"test-fast", "test-matrix", "down"} <= called


def test_every_python_that_is_supported_is_tried():
    setup = (ROOT / "setup.cfg").read_text()
    tried = yaml.safe_load((ROOT / GITHUB).read_text())["jobs"]["fast"]["strategy"]["matrix"]
    assert re.findall(r"Python :: (3\.\d+)", setup) == tried["python"]
