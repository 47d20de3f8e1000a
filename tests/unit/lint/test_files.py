"""What can be linted: files, directories, standard input, what follows `--`; what is no script."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from hpcdl.cli import main

LINT = ("job", "lint", "--slurm-version", "26.05")
SCRIPT = "#!/bin/bash\n#SBATCH --ntasks=4 --partiton=p100\npython train.py\n"


@pytest.fixture
def directory(tmp_path):
    for name in ("a.sh", "deep/b.slurm", ".git/hook.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SCRIPT)
    (tmp_path / "page.md").write_text("# Jobs\n\n#SBATCH --oops\n")
    (tmp_path / "tool.sh").write_text("#!/bin/bash\nexit 0\n")
    (tmp_path / "data.bin").write_bytes(b"#!\0\1\2")
    return tmp_path


def test_of_a_directory_the_batch_scripts_below_it_are_linted(directory, hpcdl):
    files = json.loads(hpcdl(*LINT, "--json", str(directory), code=1).out)["files"]
    assert [one["file"].removeprefix(f"{directory}/") for one in files] == ["a.sh", "deep/b.slurm"]


@pytest.mark.parametrize("words", [["--"], []])
def test_several_files_also_behind_two_dashes(directory, hpcdl, words):
    files = [str(directory / "a.sh"), str(directory / "deep/b.slurm")]
    assert hpcdl(*LINT, *words, *files, code=1).out.count("did you mean '--partition'?") == 2


def test_standard_input(monkeypatch, hpcdl):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SCRIPT.encode())))
    assert "-:2:20: error" in hpcdl(*LINT, "-", code=1).out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"\x7fELF\2\1\1\0", "is no script"),
        (b"root:x:0:0:root:/root:/bin/bash\n", "is no script"),
        ("#!/bin/bash\n#SBATCH -n 1\n".encode("utf-16"), "is UTF-16, which sbatch does not read"),
    ],
)
def test_what_is_no_script_is_bad_input(tmp_path, hpcdl, content, said):
    (tmp_path / "file").write_bytes(content)
    assert said in hpcdl(*LINT, str(tmp_path / "file"), code=2).err


def test_a_release_later_than_the_rules_is_told_the_latest(directory, hpcdl):
    said = hpcdl("job", "lint", "--slurm-version", "30.05", str(directory), code=2).err
    assert "--slurm-version 26.05" in said


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        ("/bin/tcsh", "tcsh"),
        ("/usr/bin/env -S Rscript --vanilla", "Rscript"),
        ("/usr/bin/python3 -u", "python3"),
    ],
)
def test_of_other_shells_only_directives_are_checked(tmp_path, hpcdl, shell, name):
    path = tmp_path / "job"
    path.write_text(f"#!{shell}\n#SBATCH --ntasks=0\nsrun --exact | tee x &\n")
    printed = hpcdl(*LINT, str(path), code=1)
    assert f"{name} runs it, so only directives are checked" in printed.err
    assert printed.out.count("error:") == 1


@pytest.mark.timeout(20)
def test_a_pipe_and_links_in_circles_below_a_directory_hold_nothing_up(directory, capsys):
    os.mkfifo(directory / "deep" / "c.sh")
    (directory / "circle").symlink_to(directory)
    (directory / "itself").symlink_to("itself")
    assert main(["job", "lint", "--json", str(directory)]) in {0, 1}
    files = json.loads(capsys.readouterr().out)["files"]
    assert [Path(one["file"]).name for one in files] == ["a.sh", "b.slurm"]
