"""Names are not paths: what a stranger leaves in a directory is not read because of its name.

And a file that says what to run is read only if this user, root, or who can change hpcdl itself
has written it, wherever it is named: by an option, a variable, a default, the Python API.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcdl import api
from hpcdl.cli import GROUPS, load_group, main
from hpcdl.cli.framework import Command
from hpcdl.regress import runner
from hpcdl.regress.reframe_adapter.process import described
from hpcdl.regress.runner import CheckRequest
from hpcdl.site import find_site_file, load_site
from hpcdl.system import trust
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.workflows.study.declared import shipped as studies
from tests.strangers import as_root, stranger

SITES = ("embedded", "pi", "a100-h100", "p100-v100-k80")
EVIL = "evil: [\n"  # whoever reads it stumbles


@pytest.fixture
def tried(capfd):
    """Runs a command: its exit code, and what it prints."""

    def run(*words):
        capfd.readouterr()
        code = main(list(words))
        said = capfd.readouterr()
        return SimpleNamespace(code=code, out=said.out, err=said.err)

    return run


@pytest.fixture
def planted(shared, monkeypatch):
    """A directory of a stranger's files with the names that commands take; the victim is in it."""
    names = [*SITES, *studies(), "site", "job", "checks", "cpu", "p100", "resnet50", "tensorflow"]
    (shared / "text").write_text(EVIL)
    here = [*names, *(f"{one}.yaml" for one in names), "site.json", "job.yml"]
    below = [f"own/{one}" for one in ("site.yaml", "check.py", "spack.yaml", "job.json")]
    below += ["own/dataset.json", "own/verdicts.json"]
    copies = "; ".join(f"cp -n text {one}" for one in (*here, *below))
    stranger(f"mkdir own; {copies}; ln -s /etc/hostname link.yaml", shared)
    monkeypatch.chdir(shared)
    monkeypatch.setenv("HPCDL_HOME", str(shared / ".victim"))
    monkeypatch.delenv("HPCDL_SITE", raising=False)
    return shared


# Every argument that takes a shipped name: what stands in its place is the name.
NAMES = [
    *(["site", "show", "--site", name] for name in SITES),
    *(["study", "show", name] for name in studies()),
    ["stack", "resolve", "--site", "embedded", "--partition", "cpu"],
    ["job", "render", "--site", "embedded", "--partition", "cpu", "--no-module", "--", "true"],
    ["predict", "scale", "--model", "resnet50", "--site", "embedded", "--gpus", "1"],
    ["cluster", "status"],
    ["cluster", "down", "--dry-run"],
]


@as_root
@pytest.mark.parametrize("words", NAMES, ids=" ".join)
def test_a_name_means_what_is_shipped_whatever_lies_here(planted, tried, words):
    done = tried(*words)
    assert "Traceback" not in done.err
    assert "evil" not in done.out + done.err
    assert "is not read" not in done.err, "it was not even opened"


# Every argument, variable and default that takes the path of such a file.
PATHS = [
    (["site", "show", "--site", "./site"], {}),
    (["site", "show", "--site", "site.yaml"], {}),
    (["site", "show", "--site", "./own/site.yaml"], {}),
    (["site", "show", "--site", "link.yaml"], {}),
    (["site", "show"], {"HPCDL_SITE": "pi.yaml"}),
    (["cluster", "up", "--dry-run", "--site", "./embedded"], {}),
    (["cluster", "up", "--dry-run"], {"HPCDL_SITE": "./embedded"}),
    (["cluster", "env", "--site", "embedded.yaml"], {}),
    (["doctor", "login", "--site", "embedded.yaml"], {}),
    (["job", "render", "--site", "embedded", "--file", "job"], {}),
    (["job", "submit", "--site", "embedded", "--file", "./job.yaml"], {}),
    (["stack", "adopt", "own", "--site", "embedded", "--dry-run"], {}),
    (["check", "night", "--site", "embedded", "--notify", "own/site.yaml"], {}),
    (["study", "show", "./site.yaml"], {}),
    (["study", "run", "own/check.py", "--site", "embedded", "--dry-run"], {}),
]


@as_root
@pytest.mark.parametrize(("words", "env"), PATHS, ids=lambda one: " ".join(one))
def test_a_file_of_another_user_is_refused_by_name_and_owner(
    planted, tried, monkeypatch, words, env
):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    done = tried(*words)
    assert done.code == 3, done.out + done.err
    assert "is not read: it belongs to nobody" in done.out + done.err
    assert re.search("copy (it|the files) to a (file|directory)", done.out + done.err)
    assert "evil" not in done.err


@as_root
@pytest.mark.parametrize("place", ["own", "own/check.py", "mine"])
def test_checks_and_settings_of_reframe_of_another_user_are_refused(planted, pi, place):
    """They are Python, and run; in a directory of ours one file of theirs is enough."""
    (planted / "mine").mkdir(mode=0o1777)
    (planted / "mine").chmod(0o1777)
    stranger("cp text mine/reframe.py; cp text own/reframe.py", planted)
    said = "is not read: (it belongs to nobody|everybody may)"
    with pytest.raises(MissingPrerequisite, match=said):
        runner._check_request(pi, CheckRequest(paths=(planted / place,)))
    paths = replace(pi.paths, prefix=planted / place.partition("/")[0])
    with pytest.raises(MissingPrerequisite, match=said):
        runner._check_request(replace(pi, paths=paths), CheckRequest())


@as_root
@pytest.mark.parametrize("place", ["{shared}", "{shared}/open/mine"])
def test_a_check_where_others_may_add_files_is_refused(shared, pi, place):
    """ReFrame runs the `__init__.py` beside a check: one in /tmp ran as the check's owner."""
    stranger("printf 'import os\nos.mkdir(\"owned\")\n' > __init__.py", shared)
    (shared / "open").mkdir()
    (shared / "open").chmod(0o777)  # not sticky: others may rename what is in it
    (shared / "open/mine").mkdir()
    folder = Path(place.format(shared=shared))
    (folder / "check.py").write_text("")
    said = "everybody may (write to it|rename files in)"
    with pytest.raises(MissingPrerequisite, match=said) as caught:
        runner._check_request(pi, CheckRequest(paths=(folder / "check.py",)))
    assert "copy the files to a directory that only you can change" in caught.value.hint
    with pytest.raises(MissingPrerequisite, match=said):  # `check list` ran anybody's
        described(folder / "settings.py", [folder / "check.py"])
    assert not list(shared.rglob("owned"))


@as_root
def test_the_default_site_file_of_another_user_is_refused(planted, tried):
    (planted / ".victim").mkdir()
    (planted / ".victim/site.yaml").write_text(find_site_file("pi").read_text())
    assert tried("site", "show").code == 0
    os.chown(planted / ".victim/site.yaml", 65534, 65534)
    assert "site.yaml is not read: it belongs to nobody" in tried("site", "show").err
    with pytest.raises(MissingPrerequisite, match="belongs to nobody"):
        api.load_site(planted / "site.yaml")


@pytest.mark.parametrize(
    ("mode", "group", "said"),
    [
        (0o644, None, None),
        (0o664, 12345, "the group 12345 may write to it"),
        (0o666, None, "everybody may write to it"),
        (0o646, None, "everybody may write to it"),
    ],
)
def test_a_file_that_others_may_write_is_refused(shared, monkeypatch, mode, group, said):
    file = shared / "site.yaml"
    file.write_text(find_site_file("pi").read_text())
    if group and os.getuid():
        pytest.skip("to give a file to a group that is not ours needs root")
    if group:
        os.chown(file, -1, group)
    file.chmod(mode)
    if said is None:
        assert load_site(file).name == "pi"
        return
    with pytest.raises(MissingPrerequisite, match=said) as caught:
        load_site(file)
    shared.chmod(0o700)  # now nobody else can reach it
    assert load_site(file).name == "pi"
    shared.chmod(0o1777)
    assert "chmod g-w,o-w" in caught.value.hint
    # An admin group for which hpcdl itself is installed may share its site file.
    monkeypatch.setattr(trust, "_authors", lambda: (frozenset(), frozenset({group})))
    if group:
        assert load_site(file).name == "pi"


@as_root
def test_the_account_that_hpcdl_is_installed_for_is_trusted(tmp_path, monkeypatch):
    file = tmp_path / "site.yaml"
    file.write_text(find_site_file("pi").read_text())
    os.chown(file, 65534, 65534)
    with pytest.raises(MissingPrerequisite):
        load_site(file)
    monkeypatch.setattr(trust, "_authors", lambda: (frozenset({65534}), frozenset()))
    assert load_site(file).name == "pi"


def test_a_site_that_has_the_name_of_a_file_here_says_how_to_mean_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mysite").touch()
    with pytest.raises(BadInput, match="there is no site 'mysite'") as caught:
        find_site_file("mysite")
    assert "--site ./mysite" in caught.value.hint


def test_in_python_a_path_is_a_file_and_a_text_is_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pi").write_text(find_site_file("pi").read_text().replace("name: pi", "name: own"))
    assert (api.load_site("pi").name, api.load_site(Path("pi")).name) == ("pi", "own")


def test_a_copy_in_the_user_s_own_name_is_read(tmp_path):
    """What the refusal says to do works, below a directory where all may write, too."""
    subprocess.run(["cp", find_site_file("pi"), tmp_path / "mine.yaml"], check=True)
    tmp_path.chmod(0o1777)
    assert load_site(tmp_path / "mine.yaml").name == "pi"


# Groups that run in jobs: test_train_*, test_stage and test_preflight try their arguments.
IN_JOBS = {"train", "data", "stage", "preflight"}
DATA = {
    *("check report folder", "predict --calibrate", "job lint files", "site --output"),
    *(f"job {one}" for one in ("--job", "cancel jobs", "log job", "report job", "watch job")),
}
"""What is read as data, whoever wrote it: bounded, never run. Whose a job is, is asked next."""


def arguments():
    """Each argument that takes a value, as commands declare it: an option once per group.

    So a new option is among them by itself.
    """
    found = {}
    for group in (one for one in GROUPS if one not in IN_JOBS):
        entry = load_group(group)
        for command in [entry] if isinstance(entry, Command) else entry.commands:
            parser = argparse.ArgumentParser(add_help=False)
            for configure in command.arguments:
                configure(parser)
            for action in parser._actions:
                name = (action.option_strings or [f"{command.name} {action.dest}"])[-1]
                if action.nargs != 0 and not action.choices:
                    found.setdefault(f"{group} {name}", (group, command, action, parser))
    return found


def command_line(group, command, action, parser, value):
    """The command's example with this value of an argument; nothing is changed by it."""
    words = shlex.split(command.example.split("|")[0].split(">")[0])
    words = words[words.index("hpcdl") + 1 :]
    end = words.index("--") if "--" in words else len(words)
    words, rest = words[:end], words[end:]
    if name := next(iter(action.option_strings[-1:]), ""):
        words = [*words, name, value]
    else:
        given = vars(parser.parse_known_args(words[1 + (group != command.name) :])[0])[action.dest]
        given = given if isinstance(given, list) else [given]
        words = [*(word for word in words if word not in given), value]
    words += ["--site", "embedded"] * (command.site and "--site" not in words)
    return [*words, *["--dry-run"] * command.changes, *rest]


REFUSED = re.compile("is not read: it belongs|cannot be trusted|others may read")


class Opened(list):
    """The files that this process opens while it listens; a hook of Python cannot be removed."""

    listens = False

    def __call__(self, event, args):
        if self.listens and event in {"open", "sqlite3.connect", "subprocess.Popen", "os.exec"}:
            self.extend(
                str(Path(one).absolute()) for one in args[:1] if isinstance(one, str | Path)
            )


@as_root
def test_what_an_argument_names_is_refused_where_a_stranger_wrote_it(planted, tried):
    """Or it is not opened, or it is read as data and stands in the table."""
    opened, taken = Opened(), {}
    sys.addaudithook(opened)
    for name, argument in arguments().items():
        for value in ("checks", "./own/site.yaml", "own"):
            opened.clear()
            opened.listens = True
            try:
                done = tried(*command_line(*argument, value))
            except SystemExit:  # argparse does not take the value
                continue
            finally:
                opened.listens = False
            read = [one for one in opened if one.startswith(f"{planted}/") and Path(one).is_file()]
            if read and not REFUSED.search(done.out + done.err):
                taken[name] = f"{value} was read: {done.code} {done.err[-200:]}"
    assert {name: how for name, how in taken.items() if name not in DATA} == {}
    assert taken.keys() == DATA, "what is not read any more leaves the table"
