"""What other people's scripts import: its page's example, its names, and what it costs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdl import api
from hpcdl.regress.history import VARIABLE

SITE = object()
"""In a test's arguments: a site."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=True).stdout  # fmt: skip


def test_the_page_s_example_prints_what_the_page_says() -> None:
    (code,), (shown,) = (re.findall(form, PAGE.read_text(), re.S)
                         for form in ("```python\n(.*?)```", "```\n\n(    .*?)\n\n"))  # fmt: skip
    assert run(code) == re.sub("^    ", "", shown, flags=re.M) + "\n"


def test_the_page_names_every_function() -> None:
    named = set(re.findall(r"^\| `(\w+)\(", PAGE.read_text(), re.M))
    assert named == set(api.__all__) - {"Fault", "JobSpec", "Site"}


def test_its_import_loads_no_heavy_package() -> None:
    heavy = "{'numpy', 'tensorflow', 'reframe', 'jinja2', 'sqlite3'}"
    assert run(f"import sys, hpcdl.api; print({heavy} & set(sys.modules))") == "set()\n"


def test_it_answers_for_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "history.sqlite"))
    site = api.load_site("p100-v100-k80")
    assert {one.partition for one in api.resolve(site)} >= {"p100", "v100"}
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --time=1\n#SBATCH --ntaks=4\nsrun true\n")
    for either in (script, script.read_text()):
        assert [(one.line, one.rule.id) for one in api.lint(either, site)] == [
            (3, "option-misspelt")
        ]
    with pytest.raises(api.Fault, match="cannot read"):
        api.lint(tmp_path / "none.sh", site)
    (point,) = api.predict(site, "p100", "resnet50", gpus=4).points
    assert point.gpus == 4
    assert all(row.partition == "p100" for row in api.references(site, "p100"))
    assert api.references(site, "p100")
    assert not api.gate(site).open, "nothing was ever measured"


def test_what_it_cannot_answer_is_said(tmp_path: Path) -> None:
    site = api.load_site("pi")
    with pytest.raises(api.Fault, match="no partition") as fault:
        api.render(site, api.JobSpec("p10"))
    assert fault.value.hint
    with pytest.raises(api.Fault):
        api.load_site(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("program", "python train.py"),
        ("program", ("python", 3)),
        ("nodes", "2"),
        ("nodes", 1.5),
        ("nodes", True),
        ("requeues", "1; true"),
        ("name", None),
        ("environment", ["A=1"]),
        ("environment", {"A": 1}),
        ("job_dir", 3),
        ("memory", 4),
    ],
)
def test_a_field_of_another_type_is_said(field: str, value: Any) -> None:
    job = api.JobSpec("p100", **{"program": ("true",), field: value})
    for asked in (api.render, api.submit):
        with pytest.raises(api.Fault, match=f"JobSpec: {field} cannot be") as fault:
            asked(api.load_site("pi"), job)
        assert fault.value.hint


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("load_site", [3]),
        ("load_site", ["a" * 10_000]),
        ("load_site", ["~nobody-there/x"]),
        ("render", ["pi", api.JobSpec("p100")]),
        ("render", [SITE, {"partition": "p100"}]),
        ("lint", [["#!/bin/sh"], SITE]),
        ("resolve", [SITE, 3]),
        ("references", [SITE, {}]),
        ("predict", [SITE, "p100", 3]),
    ],
)
def test_an_argument_of_another_type_is_said(function: str, arguments: list[Any]) -> None:
    arguments = [api.load_site("pi") if one is SITE else one for one in arguments]
    with pytest.raises(api.Fault, match=r"cannot (be|read)|no site file") as fault:
        getattr(api, function)(*arguments)
    assert fault.value.hint


@pytest.mark.parametrize("more", [{"batch": "8"}, {"size": 1.5}, {"bogus": 1}, {"result": 3}])
def test_a_prediction_of_what_is_no_number_is_said(more: dict[str, Any]) -> None:
    with pytest.raises(api.Fault, match=rf"Request.*\b{next(iter(more))}"):
        api.predict(api.load_site("pi"), "p100", "resnet50", **more)


def test_what_the_file_system_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/" + "a" * 1000)
    with pytest.raises(api.Fault, match=r"name (is )?too long"):
        api.gate(api.load_site("pi"))


def test_lists_and_either_form_of_a_path_are_taken() -> None:
    forms = [
        {"program": ("python", "/a b/x.py"), "job_dir": Path("/w/j"), "data": "/d"},
        {"program": ["python", Path("/a b/x.py")], "job_dir": "/w/j", "data": Path("/d")},
    ]
    one, other = (api.render(api.load_site("pi"), api.JobSpec("p100", **form)).text
                  for form in forms)  # fmt: skip
    assert one == other
