"""From real jobs to the page: a night on the embedded cluster, told in a browser."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from hpcdl.cli import main
from hpcdl.regress.exchange import of_outcome
from hpcdl.regress.history import open_history
from hpcdl.regress.references import update_references
from hpcdl.regress.report.tonight import headline
from tests.browser import chromium
from tests.integration import test_checks
from tests.integration.test_checks import reference, run

pytestmark = pytest.mark.cluster
site = test_checks.site


def test_a_night_of_real_jobs_is_told_with_their_scripts_and_logs(site, tmp_path, capsys):
    names = ("honest", "slower")
    update_references(site, "embedded", [reference(name) for name in names])
    outcome = run(site, "checks_that_look_well.py", names=names)
    history, page = tmp_path / "history.sqlite", tmp_path / "night.html"
    with open_history(history, site.name) as opened:
        assert opened.add(of_outcome(outcome)) == 2
    words = ["check", "report", "--site", str(site.source), "--history", str(history)]
    assert main([*words, "--html", str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(page)
    # The same run again, from its folder, is no other night.
    imported = ["check", "history", "import", str(outcome.directory.path)]
    assert main([*imported, "--site", str(site.source), "--history", str(history)]) == 0
    assert capsys.readouterr().out.startswith("0 new results")
    with chromium() as browser:
        browser.open(page.as_uri())
        title = browser.do("document.querySelector('h1').textContent")
        assert title == "Gate closed: 1 finding in 2 series"
        lead = browser.do("document.querySelector('.lead').textContent")
        assert lead.startswith(headline([asdict(one) | {"ok": one.ok} for one in outcome.verdicts]))
        slower = next(one for one in outcome.verdicts if one.check == "slower")
        row = "[...document.querySelectorAll('tr.row')].find((e) => e.dataset.text.match('slower'))"
        browser.do(f"{row}.querySelector('.open').click()")
        browser.do("document.querySelectorAll('.file').forEach((one) => { one.open = true })")
        browser.settle()
        detail = "document.querySelector('tr.detail:not([hidden])')"
        script, log = browser.do(f"[...{detail}.querySelectorAll('pre')].map((e) => e.textContent)")
        assert script == Path(slower.script).read_text()
        assert "#SBATCH" in script
        assert log == Path(slower.log).read_text()
        assert "try 2; the first was FAIL" in slower.reason
        assert browser.do(f"{detail}.querySelector('.reason').textContent") == slower.reason
        assert browser.errors == []
