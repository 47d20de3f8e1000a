"""A tree for everybody: readable by all, writable by none but its owner."""

import py_compile
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcdl.stack.recipe import own_digest, own_files, own_wheel, pack
from hpcdl.stack.tree import add_startup, compile_folders, open_to_readers, require_space
from hpcdl.system.errors import MissingPrerequisite


def test_everybody_reads_and_nobody_else_writes(tmp_path):
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    for name, before in (("bin/tool", 0o700), ("data", 0o666), ("bin", 0o700)):
        (tree / name).touch()
        (tree / name).chmod(before)
    (tree / "link").symlink_to("data")
    open_to_readers(tree)
    for name, after in (("bin", 0o755), ("bin/tool", 0o755), ("data", 0o644)):
        assert stat.S_IMODE((tree / name).stat().st_mode) == after


def test_bytecode_is_never_checked_against_its_source(tmp_path):
    source = tmp_path / "code.py"
    source.write_text("value = 1\n")
    # As a program that is run while the tree is made leaves it: checked.
    made = Path(py_compile.compile(str(source)))
    compile_folders(Path(sys.executable), [tmp_path], tmp_path / "log", print)
    assert made.read_bytes()[4:8] == b"\1\0\0\0", "unchecked (PEP 552)"


def test_no_python_writes_bytecode_beside_the_start_file(tmp_path):
    """Root's Pythons of other versions read it too, while the module is loaded."""
    add_startup(tmp_path)
    where, before = tmp_path / "share" / "hpcdl" / "python", sorted(tmp_path.rglob("*"))
    code = "import sitecustomize as s; print(s.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(where)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.strip(), done.stderr) == (str(where / "sitecustomize.py"), "")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["-m", "pip", "install", "--user", "tabulate"], True),
        (["-m", "pip", "list"], False),
        (["-c", "'pip'", "install"], False),
    ],
)
def test_pip_in_a_release_meets_a_clear_word_first(tmp_path, argv, told):
    stack, mine = tmp_path / "stack", tmp_path / "mine"
    for where in (stack, mine):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", where], check=True)
        (packages,) = where.glob("lib/python3*/site-packages")
        (packages / "pip").mkdir()
        (packages / "pip" / "__main__.py").write_text("")
    add_startup(stack)
    env = {"PYTHONPATH": str(stack / "share" / "hpcdl" / "python")}
    said = [
        subprocess.run(
            [where / "bin" / "python", *argv], env=env, capture_output=True, text=True, check=True
        ).stderr
        for where in (stack, mine)
    ]
    assert ("python -m venv ~/my-env" in said[0]) is told
    assert said[1] == "", "an environment of the user's own takes packages"


def test_what_will_not_fit_is_refused_before_it_is_fetched(tmp_path):
    free = shutil.disk_usage(tmp_path).free / 1e9
    prefix, wheels = tmp_path / "prefix", tmp_path / "wheels"
    with pytest.raises(MissingPrerequisite, match=f"no space left for the stack in {prefix}"):
        require_space({wheels: 0.0, prefix: free * 2})
    assert not list(tmp_path.iterdir()), "a refusal leaves nothing"
    require_space({prefix: free / 4, wheels: free / 4})
    with pytest.raises(MissingPrerequisite, match=f"in {wheels}") as caught:
        require_space({prefix: free / 1.5, wheels: free / 1.5})
    assert "hpcdl stack gc" in caught.value.hint


def test_a_packed_wheel_has_a_record_of_every_member(tmp_path):
    target = tmp_path / "x.whl"
    target.write_bytes(pack({"a.py": b"1", "d/b.py": b"22"}, "x.dist-info/RECORD"))
    with zipfile.ZipFile(target) as archive:
        rows = archive.read("x.dist-info/RECORD").decode().splitlines()
        assert sorted(archive.namelist()) == sorted(row.split(",")[0] for row in rows)
    assert "d/b.py" in rows[1]
    assert rows[1].endswith(",2")


def test_hpcdl_finds_all_of_itself():
    names = [name for name, _ in own_files()]
    assert names == sorted(names)
    assert {
        "hpcdl/__init__.py",
        "hpcdl/modulefiles/tensorflow.lua",
        "hpcdl/facts/wheels.yaml",
        "hpcdl/templates/sites/embedded.yaml",
    } < set(names)
    assert not any("__pycache__" in name for name in names)
    assert own_digest() == own_digest()


def test_an_environment_installed_in_a_checkout_is_no_part_of_hpcdl(tmp_path, monkeypatch):
    """Its view leads to gigabytes, some by links and some, such as scripts, as files."""
    environment = tmp_path / "spack" / "environments" / "own"
    for folder in (tmp_path / "hpcdl", environment / "view" / "bin", environment / ".spack-env"):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    for top in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / top).touch()
    (environment / "spack.yaml").touch()
    (environment.parent / ".gitignore").touch()  # no wheel has it
    (environment / "view" / "lib").symlink_to("/usr/lib")
    monkeypatch.setattr("hpcdl.stack.recipe._PACKAGE", tmp_path / "hpcdl")
    names = [name for name, _ in own_files()]
    assert names == ["hpcdl/file"]


def test_a_wheel_of_hpcdl_is_named_for_the_very_bytes_in_it(tmp_path, monkeypatch):
    """Somebody may edit a file while the wheel is made."""
    monkeypatch.setenv("HPCDL_CACHE", str(tmp_path))
    own, wheel = own_wheel()
    assert own == own_digest()
    assert wheel.parent.name.endswith(own)
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        info = next(name.partition("/")[0] for name in names if ".dist-info/" in name)
        assert b"Name: hpcdl" in archive.read(f"{info}/METADATA")
        assert b"hpcdl = hpcdl" in archive.read(f"{info}/entry_points.txt")
    assert {name for name, _ in own_files()} < names
    other = tmp_path / "other.py"
    other.write_text("1")
    monkeypatch.setattr("hpcdl.stack.recipe.own_files", lambda: iter([("hpcdl/other.py", other)]))
    assert own_wheel()[1] != wheel
