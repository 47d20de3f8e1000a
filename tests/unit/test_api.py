"""What other people's scripts import: its page's example, its names, and what it costs."""

import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl import api
from hpcdl.jobs import Module
from hpcdl.regress.history import VARIABLE

SITE = object()
"""In a test's arguments: a site."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def run(code):
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_the_page_s_example_prints_what_the_page_says():
    (code,), (shown,) = (
        re.findall(form, PAGE.read_text(), re.S)
        for form in ("```python\n(.*?)```", "```\n\n(    .*?)\n\n")
    )
    assert run(code) == re.sub("^    ", "", shown, flags=re.M) + "\n"


def test_the_page_names_every_function():
    named = set(re.findall(r"^\| `(\w+)\(", PAGE.read_text(), re.M))
    assert named == set(api.__all__) - {"Fault", "JobSpec", "Site"}


def test_its_import_loads_no_heavy_package():
    heavy = "{'numpy', 'tensorflow', 'reframe', 'jinja2', 'sqlite3'}"
    assert run(f"import sys, hpcdl.api; print({heavy} & set(sys.modules))") == "set()\n"


def test_it_answers_for_a_site(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "history.sqlite"))
    site = api.load_site("p100-v100-k80")
    assert {one.partition for one in api.resolve(site)} >= {"p100", "v100"}
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --time=1\n#SBATCH --ntaks=4\nsrun true\n")
    for either in (script, script.read_text()):
        found = [(one.line, one.rule.id) for one in api.lint(either, site)]
        assert found == [(3, "option-misspelt")]
    with pytest.raises(api.Fault, match="cannot read"):
        api.lint(tmp_path / "none.sh", site)
    with pytest.raises(api.Fault, match=r"the text 'job\.sh' is no script"):  # nor a Path
        api.lint("job.sh", site)
    (point,) = api.predict(site, "p100", "resnet50", gpus=4).points
    assert point.gpus == 4
    assert all(row.partition == "p100" for row in api.references(site, "p100"))
    assert api.references(site, "p100")
    assert not api.gate(site).open, "nothing was ever measured"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("program", "python train.py"),
        ("program", ("python", 3)),
        ("nodes", "2"),
        ("nodes", 1.5),
        ("nodes", True),
        ("requeues", "1; true"),
        ("environment", ["A=1"]),
        ("environment", {"A": 1}),
        ("environment", {1: "A"}),
        ("job_dir", 3),
        ("mem", "much"),
        ("mem_per_cpu", True),
    ],
)
def test_a_field_of_another_type_is_said(field, value):
    job = api.JobSpec("p100", **{"program": ("true",), field: value})
    for asked in (api.render, api.submit):
        with pytest.raises(api.Fault, match=rf"({field}\b|'A'|'1').* (must be|is) ") as fault:
            asked(api.load_site("pi"), job)
        assert fault.value.hint


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("load_site", [3]),
        ("load_site", ["a" * 10_000]),
        ("load_site", ["~nobody-there/x"]),
        ("load_site", ["/none.yaml"]),
        ("render", ["pi", api.JobSpec("p100")]),
        ("render", [SITE, {"partition": "p100"}]),
        ("render", [SITE, api.JobSpec("p10")]),
        ("lint", [["#!/bin/sh"], SITE]),
        ("resolve", [SITE, 3]),
        ("references", [SITE, {}]),
        ("predict", [SITE, "p100", 3]),
    ],
)
def test_an_argument_of_another_type_or_of_nothing_is_said(function, arguments):
    arguments = [api.load_site("pi") if one is SITE else one for one in arguments]
    with pytest.raises(api.Fault, match=r"cannot (be|read)|no site|no partition") as fault:
        getattr(api, function)(*arguments)
    assert fault.value.hint


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a traceback has no notes")
def test_a_traceback_shows_the_hint_too():
    for asked in (lambda: api.load_site("pii"), lambda: api.resolve("pi")):
        with pytest.raises(api.Fault) as fault:
            asked()
        assert fault.value.__notes__ == [f"help: {fault.value.hint}"]


@pytest.mark.parametrize(
    "more", [{"batch": "8"}, {"size": 1.5}, {"bogus": 1}, {"result": 3}, {"real": "yes"}]
)
def test_a_prediction_of_what_is_no_number_is_said(more):
    with pytest.raises(api.Fault, match=rf"\b({next(iter(more))}|PathLike)\b"):
        api.predict(api.load_site("pi"), "p100", "resnet50", **more)


def test_a_transformer_is_split_by_the_text_of_the_option():
    site, gpt = api.load_site("a100-h100"), ("h100", "gpt_18b")
    found = api.predict(site, *gpt, gpus=8, size=2048, split="tensor=8,stages=1")
    assert (found.work.plan.tensor, found.points[0].fits) == (8, True)
    assert api.predict(site, *gpt, gpus=8, split="stages=4").work.plan.micro_batches == 16
    for wrong in ("", "tensor", "tensor=0", "tensor=8,tensor=4", 8):
        with pytest.raises(api.Fault, match=r"KEY=N|tensor is 0|'tensor' twice|expected str"):
            api.predict(site, *gpt, split=wrong)


def test_what_the_file_system_refuses_is_said(monkeypatch):
    monkeypatch.setenv(VARIABLE, "/" + "a" * 1000)
    with pytest.raises(api.Fault, match=r"name (is )?too long"):
        api.gate(api.load_site("pi"))


def test_lists_and_either_form_of_a_path_are_taken():
    one = api.JobSpec("p100", program=("python", "/a b/x.py"), job_dir=Path("/w/j"), data="/d")
    other = replace(one, program=["python", Path("/a b/x.py")], job_dir="/w/j", data=Path("/d"))
    site = api.load_site("pi")
    assert api.render(site, one).text == api.render(site, other).text


def test_python_and_the_command_line_see_the_same_files(tmp_path, monkeypatch, hpcdl):
    """What is named from here is not there where the job works."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("train.py", "mine.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "d").mkdir()
    site = api.load_site("pi")
    line = ["job", "render", "--site", "pi", "--partition", "p100", "--no-module"]
    for fields, options in (
        ({"job_dir": Path("j"), "data": "d"}, ["--job-dir=j", "--data=d"]),
        ({"chdir": "~/d"}, ["--chdir=~/d"]),
        ({"program": ("python", "-m", "mine")}, []),
    ):
        job = api.JobSpec("p100", **{"program": ("python", "train.py"), **fields})
        text = api.render(site, job, ()).text
        assert text == hpcdl(*line, *options, "--", *job.program).out
        assert all(
            f"{tmp_path}/{Path(one).name}" in text for one in fields.values() if one != job.program
        )
        assert str(tmp_path) in text
    with pytest.raises(api.Fault, match="was not expanded"):
        api.render(site, api.JobSpec("p100", job_dir=Path("$SCRATCH/x")), ())
    for program in (("python", "none.py"), ("./none",), ("cat", "train.py")):
        with pytest.raises(api.Fault, match=r"there is no|is in the current directory"):
            api.submit(site, api.JobSpec("p100", program=program), ())
    assert not list(tmp_path.glob("**/job.sh"))


def test_modules_of_one_s_own_none_and_those_of_a_gpu_model_are_loaded(tmp_path, monkeypatch):
    site, job = api.load_site("pi"), api.JobSpec("p100", gpus=1, program=("true",))
    lines = {
        named: re.findall("(?m)^ *module load (.*) \\|\\|", api.render(site, job, named).text)
        for named in (None, (), ("gcc/12", "mine/1.0"))
    }
    assert lines == {None: lines[None], (): [], ("gcc/12", "mine/1.0"): ["gcc/12 mine/1.0"]}
    assert "tensorflow" in lines[None][0]
    asked = []
    monkeypatch.setattr(
        "hpcdl.workflows.modules.module_for", lambda *_, **how: asked.append(how) or Module(())
    )
    for more in ({"gpu_model": "p100"}, {"container": "/i.sif"}):
        with suppress(api.Fault):  # this site has no container runtime
            api.render(site, replace(job, **more))
    assert [one["gpu_model"] for one in asked] == ["p100"], "a container loads none"
