"""Sweeps: a matrix of jobs as arrays; points keep their names; impossible ones are named."""

import subprocess
import time
from pathlib import Path

import pytest

from hpcdl.jobs import JobSpec, Module
from hpcdl.jobs.sweep import Point, groups, matrix_of, plan, point_id, render
from hpcdl.jobs.sweep_run import standings, sweep_folder
from hpcdl.site import Site, load_site
from hpcdl.slurm import parse
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import folder

BASE = JobSpec("v100", name="scaling")


@pytest.fixture(scope="module")
def site() -> Site:
    return load_site(folder("templates") / "sites" / "p100-v100-k80.yaml")


def test_every_combination_is_a_point_and_excluded_ones_are_not(site: Site) -> None:
    matrix = {"gpus": ["1", "2"], "model": ["vgg16", "mlp"]}
    points = plan(site, BASE, matrix, [{"gpus": "2", "model": "mlp"}])
    assert [dict(p.values) for p in points] == [
        {"gpus": "1", "model": "vgg16"},
        {"gpus": "1", "model": "mlp"},
        {"gpus": "2", "model": "vgg16"},
    ]
    assert points[0].spec.gpus == 1
    assert points[0].spec.program == ("hpcdl", "train", "--model", "vgg16")


def test_points_that_ask_for_the_same_share_a_script(site: Site) -> None:
    points = plan(site, BASE, {"gpus": ["1", "2"], "lr": ["0.1", "0.2", "0.3"]})
    assert [len(group.points) for group in groups(points)] == [3, 3]
    assert [len(group.points) for group in groups(points, tasks=2)] == [2, 1, 2, 1]


def test_an_impossible_point_is_named_and_the_rest_goes_on(site: Site) -> None:
    points = plan(site, BASE, {"gpus": ["1", "100000"]})
    assert points[0].problem == ""
    assert "v100" in points[1].problem
    assert sum(len(group.points) for group in groups(points)) == 1


def test_a_point_keeps_its_name_when_the_matrix_grows(site: Site) -> None:
    small = {p.id for p in plan(site, BASE, {"gpus": ["1"], "lr": ["0.1"]})}
    large = {p.id for p in plan(site, BASE, {"lr": ["0.2", "0.1"], "gpus": ["2", "1"]})}
    assert small <= large
    assert point_id({"a": "1", "b": "2"}) == point_id({"b": "2", "a": "1"})


def test_values_that_look_like_marks_arrive_as_they_are(site: Site) -> None:
    base = JobSpec("v100", program=("echo", "{a} {b}", "{c}", "{}", "{a"))
    (point,) = plan(site, base, {"a": ["{b}"], "b": ["{a}"]})
    assert point.spec.program == ("echo", "{b} {a}", "{c}", "{}", "{a")


def test_a_key_given_twice_is_refused_not_overridden() -> None:
    assert matrix_of([("a", "1,2"), ("b", "3")]) == {"a": ["1", "2"], "b": ["3"]}
    with pytest.raises(BadInput, match="--over a is given twice"):
        matrix_of([("a", "1"), ("a", "2")])


@pytest.mark.parametrize("key", ["", "-x", "a b", "a\n", "$(id)", "\u00e9"])
def test_a_key_that_names_no_option_is_refused(site: Site, key: str) -> None:
    with pytest.raises(BadInput, match="is no name of an option"):
        plan(site, BASE, {key: ["1"]})


@pytest.mark.parametrize("name", ["../x", "/etc", "..", "", ".hidden", "a/b", "x\n"])
def test_a_sweep_stays_in_its_folder(site: Site, name: str) -> None:
    with pytest.raises(BadInput, match="is not possible"):
        sweep_folder(site, name)


def test_braces_in_a_program_take_the_value(site: Site) -> None:
    base = JobSpec("v100", program=("python", "x.py", "--depth={depth}"))
    (point,) = plan(site, base, {"depth": ["50"], "gpus": ["1"]})
    assert point.spec.program == ("python", "x.py", "--depth=50")


@pytest.mark.parametrize(
    ("matrix", "exclude", "says"),
    [
        ({}, [], "no matrix"),
        ({"gpus": [""]}, [], "empty value"),
        ({"gpus": ["1", "1"]}, [], "twice"),
        ({"gpus": ["1"]}, [{"model": "x"}], "'model'"),
        ({"gpus": ["1"]}, [{"gpus": "1"}], "excluded"),
        ({"a": list("abcd"), "b": list("abcd")}, [], "more than 10"),
    ],
)
def test_a_wrong_matrix_is_refused(
    site: Site, matrix: dict[str, list[str]], exclude: list[dict[str, str]], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        plan(site, BASE, matrix, exclude, limit=10)


def test_arguments_arrive_byte_for_byte_in_their_task(site: Site, tmp_path: Path) -> None:
    nasty = ["plain", "a b", "$(touch x)", "`id`", "new\nline", "quo'te\"s", "-e", "ünïcode"]
    base = JobSpec("v100", program=("printf", "%s\\0"))
    points = plan(site, base, {"word": nasty, "gpus": ["1"]})
    (group,) = groups(points)
    script, arguments = render(site, group, Module(()), tmp_path / "s w", 0, 3)
    assert "--array=0-7%3" in script.directives
    (tmp_path / "s w").mkdir()
    (tmp_path / "s w" / "array-000.args").write_text(arguments)
    read = "\n".join(
        line.text for line in script.lines if line.text.startswith(("point=", 'eval "point'))
    )
    for task, word in enumerate(nasty):
        done = subprocess.run(
            ["bash", "-c", f'{read}\n"${{point[@]:1}}"'], capture_output=True, cwd=tmp_path,
            env={"SLURM_ARRAY_TASK_ID": str(task), "PATH": "/usr/bin:/bin"}, check=True,
        )  # fmt: skip
        assert done.stdout.split(b"\0")[:2] == [b"--word", word.encode()]
    assert not (tmp_path / "x").exists()


def test_a_script_of_an_array_is_sound_bash(site: Site, tmp_path: Path) -> None:
    (group,) = groups(plan(site, BASE, {"lr": ["0.1", "0.2"], "gpus": ["8"]}))
    for launcher in ("horovod", "multiworker", "horovod-mpirun"):
        spec = JobSpec("v100", gpus=8, launcher=launcher)
        again = type(group)(spec, tuple(Point(p.id, p.values, spec) for p in group.points))
        text = render(site, again, Module(()), tmp_path, 0, None)[0].text
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_a_point_with_exit_code_0_is_done_and_another_one_is_missing(
    site: Site, tmp_path: Path
) -> None:
    points = plan(site, BASE, {"lr": ["0.1", "0.2"], "gpus": ["1"]})
    for point, code in zip(points, "01", strict=True):
        (tmp_path / "points" / point.id).mkdir(parents=True)
        (tmp_path / "points" / point.id / "exit_code").write_text(f"{code}\n")
    assert [one.state for one in standings(tmp_path, points)] == ["done", "missing"]


def test_a_waiting_array_speaks_for_its_waiting_tasks() -> None:
    line = "JobId=7 ArrayJobId=5 ArrayTaskId=3-5,8%2 JobName=x JobState=PENDING Restarts=0"
    record = parse.job(line)
    assert record.array_job == 5
    assert [task for task in range(10) if record.has_task(task)] == [3, 4, 5, 8]


def test_ten_thousand_points_are_rendered_in_seconds(site: Site, tmp_path: Path) -> None:
    matrix = {"gpus": ["1", "2", "4", "8"], "lr": [str(n) for n in range(2500)]}
    start = time.perf_counter()
    points = plan(site, BASE, matrix, limit=10_000)
    for number, group in enumerate(groups(points)):
        render(site, group, Module(()), tmp_path, number, 8)
    assert len(points) == 10_000
    assert time.perf_counter() - start < 10, "3 s on a quiet machine; `make bench` has the figure"
