"""What is installed is what PyPI served when the facts were written, or it is not installed."""

import io
import re
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl import facts
from hpcdl.stack import recipe as recipes
from hpcdl.stack.horovod import Tool, Toolchain, built_wheel, fetch_sdist, horovod_folder
from hpcdl.stack.recipe import (
    Interpreter,
    install,
    lock_file,
    lock_wheels,
    pins,
    pip_settings,
    read_wheels,
    recipe_of,
    running_interpreter,
    uv,
)
from hpcdl.stack.resolve import find_request
from hpcdl.stack.resolve_facts import known
from hpcdl.stack.tree import sha256
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.run import CommandFailed
from tests.make.releases import silent
from tests.make.sites import small_site

LOCK = facts.load("wheel_lock")
MPI = "Open MPI 4.1.4"


def recipe(*requirements):
    """The embedded site's recipe, with these requirements only where there are any."""
    site = small_site(Path("/nowhere"))
    found = recipe_of(site, find_request(site), ("cpu",))
    return replace(found, requirements=requirements or found.requirements, alone=())


def pinned(name):
    """The version of a package that goes with the recipe under the running Python, if any does."""
    found = dict(one.split("==") for one in pins(recipe().tensorflow, running_interpreter().minor))
    return found.get(name) or pytest.skip("TensorFlow has no wheels for this Python")


def wheel(folder, name, version):
    """A wheel of that name whose content is an attacker's."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (
            (f"{name}.py", "import os; os.system('touch /tmp/owned')\n"),
            (f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
            (f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            (f"{info}/RECORD", f"{name}.py,,\n{info}/RECORD,,\n"),
        ):
            archive.writestr(file, text)
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A directory that is the only index, by pip's variables."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


def installed(lock, folder):
    """Install what a lock names into a directory."""
    words = ("--target", folder, "--require-hashes", "--requirement", lock)
    install(Path(sys.executable), folder.with_name("log"), *words)
    return sorted(path.name for path in folder.glob("*.py"))


def test_an_index_that_serves_another_wheel_is_refused(index, tmp_path):
    """Its name and its version are those that are asked for."""
    wheel(index, "shtab", pinned("shtab"))
    lock = lock_wheels(recipe("shtab"), running_interpreter(), silent)
    (row,) = read_wheels(lock)
    assert row["sha256"] in LOCK["wheels"][f"shtab {pinned('shtab')}"].values()
    with pytest.raises(CommandFailed) as refused:
        installed(lock, tmp_path / "into")
    assert "hash" in str(refused.value.details).lower()
    assert not (tmp_path / "into/shtab.py").exists()


@pytest.mark.parametrize("packages", [(), ("strange",)])
def test_a_wheel_that_the_facts_do_not_know_is_refused_unless_a_site_asks_for_it(
    index, tmp_path, packages
):
    made, python = wheel(index, "strange", "1.0"), running_interpreter()
    asked = replace(recipe("strange"), packages=packages)
    assert pinned("shtab")
    if packages:
        lock = lock_wheels(asked, python, silent)
        assert read_wheels(lock) == [
            {"name": "strange", "version": "1.0", "sha256": sha256(made)}
        ], "what is looked up first counts"
        assert installed(lock, tmp_path / "into") == ["strange.py"]
    else:
        with pytest.raises(MissingPrerequisite, match="not those of PyPI") as caught:
            lock_wheels(asked, python, silent)
        assert caught.value.details == ("strange==1.0",)
        assert not lock_file(asked, python).exists()


def test_on_another_machine_the_build_says_that_no_digests_are_known(index, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    wheel(index, "shtab", "9.9.9")
    said = []
    lock = lock_wheels(recipe("shtab"), running_interpreter(), said.append)
    assert [one["version"] for one in read_wheels(lock)] == ["9.9.9"]
    (note,) = [line for line in said if line.startswith("note: ")]
    assert "digests of wheels come with hpcdl for x86_64" in note
    assert "on aarch64: the index is believed" in note


def test_an_index_that_does_not_answer_leaves_no_lock(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(CommandFailed) as caught:
        lock_wheels(recipe("shtab"), running_interpreter(), silent)
    assert "pip.conf" in caught.value.hint
    assert not lock_file(recipe("shtab"), running_interpreter()).exists()


def test_the_index_of_pip_is_that_of_uv(tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://mirror/simple\nextra-index-url =\n  https://a\n  https://b\n"
        "trusted-host = mirror\ncert = /etc/own.pem\nno-index = no\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_FIND_LINKS", "/one /two")
    for name in ("PIP_CERT", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    made = tmp_path / "uv"
    made.write_text('#!/bin/sh\necho "$@"; env\n')
    made.chmod(0o755)
    monkeypatch.setattr(recipes, "find_uv", lambda: str(made))
    uv("compile", log=tmp_path / "log")
    lines = (tmp_path / "log").read_text().splitlines()
    assert any("--find-links /one --find-links /two" in line for line in lines)
    assert {"UV_DEFAULT_INDEX=https://mirror/simple", "SSL_CERT_FILE=/etc/own.pem"} <= {*lines}
    named = [line for line in lines if "mirror" in line and not line.startswith("UV_")]
    assert named == [], "an index may hold a password, and everybody sees a command line"
    assert pip_settings()["extra-index-url"].split() == ["https://a", "https://b"]


@pytest.mark.parametrize("text", ["index-url = x\n", "[global]\na = 1\na = 2\n", "\xff"])
def test_settings_of_pip_that_cannot_be_read_are_one_error(text, tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_bytes(text.encode("latin-1"))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(BadInput, match="pip's settings cannot be read"):
        pip_settings()


def test_nothing_of_another_sdist_runs(index, tmp_path):
    """pip runs an sdist's setup.py to know its name, before anybody else looks at the file."""
    wanted = recipe().horovod
    setup = f"open({str(tmp_path / 'owned')!r}, 'w')\n".encode()
    with tarfile.open(index / wanted["sdist"], "w:gz") as archive:
        member = tarfile.TarInfo(f"{wanted['sdist'].removesuffix('.tar.gz')}/setup.py")
        member.size = len(setup)
        archive.addfile(member, io.BytesIO(setup))
    with pytest.raises(CommandFailed, match="failed with exit code 1") as refused:
        fetch_sdist(wanted, Path(sys.executable), tmp_path, silent)
    assert not (tmp_path / "owned").exists()
    assert "DO NOT MATCH THE HASHES" in str(refused.value.details)


def test_a_built_wheel_is_taken_by_those_who_have_its_compilers_or_none():
    python = Interpreter(Path("/usr/bin/python3"), "3.11.7")
    gcc, other = (Toolchain(Tool(Path("/usr/bin/g++"), version)) for version in ("12", "13"))
    folder = horovod_folder(recipe(), python, MPI, gcc)
    made = wheel(folder, "horovod", "0.28.1")
    assert built_wheel(folder) is None, "not whole"
    made.with_name("compilers.txt").write_text(f"{gcc}\n")
    half = folder.with_name(f"{folder.name}.partial-1")
    folder.rename(half)
    assert horovod_folder(recipe(), python, MPI, None) is None, "a build is at work, or was killed"
    half.rename(folder)
    assert built_wheel(folder) == made
    assert horovod_folder(recipe(), python, MPI, other) != folder, "another compiler, another wheel"
    assert horovod_folder(recipe(), python, MPI, None) == folder, "a machine without compilers"
    made.unlink()
    assert built_wheel(folder) is None, "removed by hand: it is built again"


def test_every_tensorflow_of_the_facts_has_its_set_for_every_python_it_takes():
    table = facts.load("tensorflow")["components"]
    for python in ("3.10", "3.11", "3.12", "3.13"):
        for tensorflow in table["tensorflow"]["wheels"]:
            if not _wheels_exist(tensorflow, python):
                assert pins(tensorflow, python) == ()
                continue
            for pin in pins(tensorflow, python):
                assert LOCK["wheels"][pin.replace("==", " ")], pin
            for package in ("tensorflow", "tensorflow-cpu"):
                tags = LOCK["wheels"][f"{package} {tensorflow}"]
                assert any(tag.startswith(f"cp{python.replace('.', '')}-") for tag in tags)


def _wheels_exist(tensorflow, python):
    values = {"tensorflow": tensorflow, "python": python}
    return all(
        rule.need.holds(values)
        for rule in known().rules
        if rule.need.variable == "python" and len(rule.when) == 1
        if all(one.variable == "tensorflow" and one.holds(values) for one in rule.when)
    )


def test_the_wheels_that_recipes_pin_have_digests():
    wanted = [f"keras {one}" for one in facts.load("tensorflow")["components"]["keras"]["wheels"]]
    for cuda, parts in facts.load("nvidia_wheels")["toolkits"].items():
        wanted += [f"nvidia-{name}-cu{cuda.split('.')[0]} {one}" for name, one in parts.items()]
    assert set(wanted) <= LOCK["wheels"].keys()
    digests = [one for tags in LOCK["wheels"].values() for one in tags.values()]
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in digests)
