"""The scripts are what they were, for every GPU, size and release of Slurm, and clean."""

import shutil
import subprocess

import pytest

from hpcdl.jobs.lint import lint
from hpcdl.slurm.rules import known_releases
from tests.golden.matrix import HERE, PARTITIONS, SIZES, kept, script, wanted

FILES, INDEX = kept()
CELLS = [line.split() for line in INDEX.splitlines() if not line.startswith("#")]


def test_the_kept_scripts_are_those_that_are_written_now() -> None:
    """When this fails on purpose: `make golden`, then read the diff."""
    files, index = wanted()
    assert sorted(FILES) == sorted(files)
    for name, text in files.items():
        assert FILES[name] == text, name
    assert index == INDEX


def test_every_partition_size_and_release_is_there() -> None:
    cells = {tuple(cell[:3]) for cell in CELLS}
    assert len(cells) == len(PARTITIONS) * len(SIZES) * len(known_releases()) == 150
    assert {cell[3] for cell in CELLS} == set(FILES)


@pytest.mark.parametrize("name", sorted(FILES))
def test_bash_takes_it(name: str) -> None:
    done = subprocess.run(["bash", "-n", HERE / name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    done = subprocess.run(
        ["shellcheck", "--norc", *sorted(HERE.glob("*.sh"))], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout == ""


@pytest.mark.parametrize("version", known_releases())
def test_the_linter_has_nothing_to_say_on_the_release(version: str) -> None:
    for partition in PARTITIONS:
        for size in SIZES:
            found = lint(
                script(partition, size, version), name=f"{partition} {size}", version=version
            )
            assert [f"{one.rule}: {one.line}" for one in found] == [], (partition, size)


def of(partition: str, size: str, version: str) -> str:
    return next(FILES[c[3]] for c in CELLS if c[:3] == [partition, size, version])


def test_what_differs_by_release_shows() -> None:
    texts = {version: of("p100", "4-nodes", version) for version in known_releases()}
    assert [v for v, text in texts.items() if " --exact " in text] == ["20.11", "21.08"]
    assert [v for v, text in texts.items() if "SLURM_TRES_PER_TASK" in text] == [
        "23.11", "24.05", "24.11", "25.05", "25.11", "26.05",
    ]  # fmt: skip


def test_what_must_not_differ_by_release_does_not() -> None:
    for partition in PARTITIONS:
        for size in SIZES:
            directives = {
                "\n".join(line for line in text.splitlines() if line.startswith("#SBATCH"))
                for text in (of(partition, size, version) for version in known_releases())
            }
            assert len(directives) == 1
