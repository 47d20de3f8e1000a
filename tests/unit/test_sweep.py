"""Sweeps: a matrix of jobs as arrays; points keep their names; impossible ones are named."""

import json
import re
import subprocess
from collections import Counter
from dataclasses import replace

import pytest

from hpcdl.jobs import JobSpec, Module
from hpcdl.jobs.sweep import (
    check_keys,
    groups,
    matrix_of,
    plan,
    point_id,
    preview,
    request_of,
    run_statuses,
    samples,
    shares,
    submit,
    sweep_directory,
)
from hpcdl.site import load_site
from hpcdl.slurm import client, once
from hpcdl.system.errors import BadInput
from tests.make.sites import takes_every_job
from tests.unit import slurm_output as said

BASE = JobSpec("v100", name="scaling")


@pytest.fixture(scope="module")
def site(three_generations):
    return three_generations


def test_every_combination_is_a_point_and_excluded_ones_are_not(site):
    matrix = {"gpus": ["1", "2"], "model": ["vgg16", "mlp"]}
    points = plan(site, BASE, matrix, [{"gpus": "2", "model": "mlp"}])
    found = [(p.values["gpus"], p.values["model"]) for p in points]
    assert found == [("1", "vgg16"), ("1", "mlp"), ("2", "vgg16")]
    assert points[0].spec.gpus == 1
    assert points[0].spec.program == ("hpcdl", "train", "--model", "vgg16")


def test_points_that_ask_for_the_same_share_a_script(site):
    points = plan(site, BASE, {"gpus": ["1", "2"], "lr": ["0.1", "0.2", "0.3"]})
    assert [len(group) for group in groups(points)] == [3, 3]
    assert [len(group) for group in groups(points, tasks=2)] == [2, 1, 2, 1]
    assert len(samples(points)) == 4, "each value is in one"


def test_a_point_keeps_its_name_when_the_matrix_grows(site):
    small = {p.id for p in plan(site, BASE, {"gpus": ["1"], "lr": ["0.1"]})}
    assert small <= {p.id for p in plan(site, BASE, {"lr": ["0.2", "0.1"], "gpus": ["2", "1"]})}
    assert point_id({"a": "1", "b": "2"}) == point_id({"b": "2", "a": "1"})


def test_arguments_arrive_byte_for_byte_in_their_task(site, tmp_path):
    nasty = ["plain", "a b", "$(touch x)", "`id`", "new\nline", "quo'te\"s", "-e", "ünïcode"]
    base = JobSpec("v100", program=("printf", "%s\\0"))
    points = plan(site, base, {"word": nasty, "gpus": ["1"]})
    modules = {"v100": Module(())}
    ((_, script, file, arguments),) = preview(site, tmp_path / "s w", points, modules, 3)
    assert "--array=0-7%3" in script.directives
    file.parent.mkdir()
    file.write_text(arguments)
    lines = [line.text for line in script.lines]
    read = "\n".join(one for one in lines if one.startswith(("hpcdl_point=", 'eval "hpcdl_point')))
    for task, word in enumerate(nasty):
        argv = ["bash", "-c", f'{read}\n"${{hpcdl_point[@]:1}}"']
        env = {"SLURM_ARRAY_TASK_ID": str(task), "PATH": "/usr/bin:/bin"}
        told = subprocess.check_output(argv, cwd=tmp_path, env=env)
        assert told.split(b"\0")[:2] == [b"--word", word.encode()]
    assert not (tmp_path / "x").exists()


def test_a_point_with_exit_code_0_is_done_and_with_another_failed(site, tmp_path):
    points = plan(site, BASE, {"lr": ["0.1", "0.2", "0.3"], "gpus": ["1"]})
    for point, code in zip(points[:2], "01", strict=True):
        (tmp_path / "points" / point.id).mkdir(parents=True)
        (tmp_path / "points" / point.id / "exit_code").write_text(f"{code}\n")
    found = run_statuses(tmp_path, points)
    assert [one.state for one in found] == ["done", "failed", "missing"]
    assert found[1].exit_code == 1


def test_a_key_that_the_program_has_a_place_for_is_its_own():
    """Others that are nearly a job's are refused: tests/golden/errors.txt."""
    program = ("python", "-c", "pass", "--gpu", "{gpu}")
    check_keys(replace(BASE, program=program), {"gpu": ["1", "2"]})
    check_keys(BASE, {"gpu": ["1", "2"]}, {"gpu"})
    assert matrix_of([("lr", "0.1, 0.2")]) == {"lr": ["0.1", "0.2"]}


@pytest.mark.parametrize(
    ("program", "matrix", "expected"),
    [
        (("x.py", "--depth={depth}"), {"depth": ["50"], "gpus": ["1"]}, ("x.py", "--depth=50")),
        # In double braces it is no mark; a value that looks like one arrives as it is.
        (
            ("{n}", "{{n}}", "{m}", '{{"a": {{"b": 1}}'),
            {"n": ["7"]},
            ("7", "{n}", "{m}", '{{"a": {{"b": 1}}'),
        ),
        (
            ("{a} {b}", "{c}", "{}", "{a"),
            {"a": ["{b}"], "b": ["{a}"]},
            ("{b} {a}", "{c}", "{}", "{a"),
        ),
    ],
)
def test_marks_of_a_program_take_the_values(site, program, matrix, expected):
    (point,) = plan(site, replace(BASE, program=program), matrix)
    assert point.spec.program == expected


class Queue:
    """What was submitted: all of it waits for ever."""

    def __init__(self, monkeypatch):
        self.scripts: list[str] = []
        self.options: list[tuple[str, ...]] = []
        takes_every_job(monkeypatch)
        monkeypatch.setattr(once, "submit", self.submit)
        monkeypatch.setattr(client, "queue", self.records)

    def submit(self, script, options, *, token):
        self.scripts.append(script.read_text())
        self.options.append(tuple(options))
        return 100 + len(self.scripts)

    def records(self, mine=False):
        numbers = range(101, 101 + len(self.scripts))
        return tuple(said.job(id=n, array_job=n, array_tasks="0-999") for n in numbers)


@pytest.fixture
def queue(monkeypatch):
    return Queue(monkeypatch)


def run(site, folder, matrix, base=BASE, running=None):
    modules = {name: Module((f"for-{name}",)) for name in site.partitions}
    points = plan(site, base, matrix)
    return submit(site, folder, points, modules, running, request=request_of(base))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"program": ("python", "/b.py")}, "program: python /a.py, now python /b.py"),
        ({"partition": "p100"}, "partition: v100, now p100"),
        ({"environment": {"SEED": "1"}}, "environment: none, now {'SEED': '1'}"),
    ],
)
def test_results_of_other_jobs_are_not_taken_for_its_own(site, tmp_path, queue, changes, named):
    base, matrix = JobSpec("v100", program=("python", "/a.py")), {"lr": ["1"]}
    run(site, tmp_path, matrix, base)
    other = replace(base, **changes)
    with pytest.raises(BadInput, match="begun with other jobs") as caught:
        run(site, tmp_path, matrix, other)
    assert "--name" in caught.value.hint
    assert named in caught.value.details[0]
    with pytest.raises(BadInput, match="begun with other jobs"):
        run_statuses(tmp_path, plan(site, other, matrix), request=request_of(other))
    assert len(queue.scripts) == 1


def test_a_sweep_resumes_with_more_time_and_queues_nothing_twice(site, tmp_path, queue):
    run(site, tmp_path, {"lr": ["1", "2"]})
    run(site, tmp_path, {"lr": ["3"]}, replace(BASE, minutes=90))
    found = run(site, tmp_path, {"lr": ["1", "2", "3"]})
    assert [one.job_id for one in found] == [101, 101, 102]
    assert len(queue.scripts) == 2


def test_the_same_sweep_again_is_the_same_with_every_option(site, tmp_path, queue):
    """What a JSON file makes of the request is compared: lists, where there were tuples."""
    given = {"sbatch": ("nice=5",), "program": ("a",), "environment": {"A": "1"}}
    base = replace(BASE, **given, chdir=tmp_path, files=(tmp_path / "train.py",))
    for _ in range(2):
        run(site, tmp_path, {"lr": ["1"]}, base)
    assert len(queue.scripts) == 1


def test_the_jobs_of_each_partition_load_its_own_module(site, tmp_path, queue):
    run(site, tmp_path, {"partition": ["p100", "v100"]})
    for text, name in zip(queue.scripts, ("p100", "v100"), strict=True):
        assert re.findall(r"module load (\S+)", text) == [f"for-{name}"]


@pytest.mark.parametrize(("arrays", "running"), [(1, 4), (3, 4), (4, 4), (7, 3), (5, 1)])
def test_all_arrays_together_keep_to_the_most_jobs_at_a_time(arrays, running):
    most = Counter()
    for number, share in enumerate(shares(arrays, running)):
        assert share
        most[number % running] = max(most[number % running], share)
    assert sum(most.values()) == running


def test_arrays_beyond_the_most_jobs_at_a_time_wait_for_those_before_them(site, tmp_path, queue):
    run(site, tmp_path, {"gpus": ["1", "2", "4"]}, running=2)
    own, after = ("--array=0-0%1",), "--dependency=afterany:101"
    assert queue.options == [own, own, (after, *own)]
    assert all("--array=0-0%1" in text for text in queue.scripts)
    run(site, tmp_path, {"gpus": ["8"]}, running=2)
    assert queue.options[3] == (f"{after}:102:103", "--array=0-0%2"), "earlier ones run"


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"schema": 1}', '{"schema": 1, "points": [{"job_id": 7}]}', "[" * 9999]
)
def test_a_manifest_that_cannot_be_one_is_reported(site, tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(BadInput, match=r"sweep\.json"):
        run_statuses(tmp_path, plan(site, BASE, {"lr": ["1"]}))


@pytest.mark.parametrize(
    ("tasks", "there"),
    [
        ("3-5,8%2", [3, 4, 5, 8]),
        ("0-8:4", [0, 4, 8]),
        ("1,3-5:2%1", [1, 3, 5]),
        ("7", [7]),
        ("", []),
        ("0x1F", range(10)),
    ],
)
def test_tasks_in_any_form_are_read(tasks, there):
    record = said.job(id=7, array_job=5, array_tasks=tasks)
    assert [task for task in range(10) if record.has_task(task)] == list(there)


def test_a_dry_run_shows_what_is_missing_and_names_what_cannot_run(site, tmp_path, hpcdl):
    text = site.source.read_text().replace("/scratch/$USER/hpcdl", str(tmp_path / "work"))
    (tmp_path / "site.yaml").write_text(text)
    site_file = str(tmp_path / "site.yaml")
    line = f"job sweep --site {site_file} --no-module --dry-run --over gpus=1,2,100000"
    words = line.split()
    done = sweep_directory(load_site(tmp_path / "site.yaml"), "train") / "points"
    done /= point_id({"gpus": "1"})
    done.mkdir(parents=True)
    (done / "exit_code").write_text("0\n")
    shown = hpcdl(*words, code=6)
    assert shown.out.count("# would submit an array of 1:") == 1
    assert "gpus=100000" in shown.err
    said = json.loads(hpcdl(*words, "--json", code=6).out)
    assert [one["state"] for one in said["points"]] == ["done", "missing", "impossible"]
    assert [len(one["points"]) for one in said["arrays"]] == [1]
    assert not (done.parents[1] / "sweep.json").exists()
