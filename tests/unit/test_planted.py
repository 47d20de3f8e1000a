"""Names are not paths: what a stranger leaves in a directory is not read because of its name.

And a file that says what to run is read only if this user, root, or who can change hpcdl itself
has written it, wherever it is named: by an option, a variable, a default, the Python API.
"""

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcdl import api
from hpcdl.cli import main
from hpcdl.regress import runner
from hpcdl.regress.reframe_adapter.process import described
from hpcdl.regress.runner import CheckRequest
from hpcdl.site import find_site_file, load_site
from hpcdl.system import trust
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.workflows.study.load import shipped as studies
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
    for name in [*names, *(f"{one}.yaml" for one in names), "site.json", "job.yml"]:
        if not (shared / name).exists():
            stranger(f"cp text {name}", shared)
    stranger(
        "mkdir own && cp text own/site.yaml && cp text own/check.py && cp text own/spack.yaml",
        shared,
    )
    stranger("ln -s /etc/hostname link.yaml", shared)
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
