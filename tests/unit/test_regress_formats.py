"""Verdicts for other programs are well formed, whatever a reason holds."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from hpcdl.cli import main
from hpcdl.regress.formats import as_junit, as_markdown, as_prometheus

ODD = 'loss "nan" <b> | \x00\x1b[31m & \\ back\nslash'


def verdict(status: str, reason: str = "", **changes: Any) -> dict[str, Any]:
    metric = {"name": "images_per_second", "value": 90.5, "unit": "images/s", "reference": 100.0,
              "low": 80.0, "high": None, "wanted": True}  # fmt: skip
    return {"check": "throughput", "case": "mlp", "partition": "p100", "status": status,
            "reason": reason, "waived": False, "ok": status == "PASS", "metrics": [metric],
            "seconds": 1.5, **changes}  # fmt: skip


RUN = {"schema": 1, "seconds": 12.0, "verdicts": [
    verdict("PASS"), verdict("FAIL", ODD), verdict("ERROR", ODD, metrics=[]),
    verdict("STALE", waived=True, ok=True), verdict("NO-REFERENCE"),
]}  # fmt: skip


def test_junit_counts_failures_and_errors_apart() -> None:
    suite = ET.fromstring(as_junit(RUN))
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["5", "2", "1"]
    assert len(suite.findall(".//failure")) == 2
    assert len(suite.findall(".//error")) == 1
    assert 'loss "nan" <b>' in str(suite.find(".//failure").get("message"))  # type: ignore[union-attr]


def test_a_markdown_table_has_one_line_per_verdict_and_six_cells() -> None:
    lines = as_markdown(RUN).splitlines()
    assert len(lines) == 2 + 5
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 7 for line in lines)


def test_prometheus_lines_have_the_form_of_its_text_format() -> None:
    sample = re.compile(r'[a-z_]+\{([a-z]+="(?:[^"\\\n]|\\.)*",?)+\} -?[0-9.e+-]+\Z')
    lines = [line for line in as_prometheus(RUN).splitlines() if not line.startswith("#")]
    assert all(sample.match(line) for line in lines)
    assert sum(line.startswith("hpcdl_check_status") for line in lines) == 5


@pytest.mark.parametrize("name", ["junit", "markdown", "prometheus", "json"])
def test_the_command_writes_the_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "verdicts.json").write_text(json.dumps(RUN))
    file = tmp_path / "out"
    words = ["check", "report", str(tmp_path), "--format", name, "--output", str(file)]
    assert main(words) == 0
    assert file.stat().st_size > 100


@pytest.mark.parametrize("text", ["", "{}", "[1, 2", '{"verdicts": 3}'])
def test_a_run_without_verdicts_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "verdicts.json").write_text(text)
    assert main(["check", "report", str(tmp_path)]) == 2
    assert "no verdicts" in capsys.readouterr().err


def test_without_a_folder_the_newest_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HPCDL_HOME", str(tmp_path))
    latest = tmp_path / "embedded" / "work" / "checks" / "latest"
    latest.mkdir(parents=True)
    (latest / "verdicts.json").write_text(json.dumps(RUN))
    assert main(["check", "report", "--site", "embedded"]) == 0
    assert "| throughput/mlp | p100 | PASS |" in capsys.readouterr().out


def test_an_unknown_format_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "report", "--format", "junti"]) == 2
    assert "did you mean 'junit'?" in capsys.readouterr().err
