"""`hpcdl check references measure --if-missing`: measured once, and used again after that."""

import pytest

from hpcdl.cli import check_references, main
from hpcdl.jobs import Module
from hpcdl.system.errors import CheckFailed

WORDS = ["check", "references", "measure", "--site", "embedded", "--partition", "p100"]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been measured; the measuring itself is left out."""
    calls: list[str] = []

    def measure(*_: object, **__: object) -> None:
        calls.append("measured")
        raise CheckFailed("measuring is left out here")

    monkeypatch.setattr(check_references, "modules", lambda *_: {"p100": Module((), None, "tf-1")})
    monkeypatch.setattr("hpcdl.regress.measure.measure", measure)
    monkeypatch.setattr("hpcdl.regress.reframe_adapter.releases.require_reframe", lambda: None)
    return calls


@pytest.mark.parametrize(
    ("there", "words", "count"),
    [(True, ["--if-missing"], 0), (False, ["--if-missing"], 1), (True, [], 1)],
)
def test_what_is_there_is_measured_again_only_when_asked_for(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, there: bool, words: list[str], count: int
) -> None:
    monkeypatch.setattr("hpcdl.regress.measure.covered", lambda *_: there)
    assert main([*WORDS, *words]) == (1 if count else 0)
    assert len(measured) == count
