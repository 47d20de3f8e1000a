"""What is cached is never stale, and never stands in the way."""

import os

import pytest

from hpcdl.jobs.script import _compiled_templates
from hpcdl.site import load_site
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import _KEPT, cache, cached, folder


class Maker:
    """Counts how often it is asked."""

    calls = 0

    def __call__(self):
        self.calls += 1
        return {"call": self.calls}


def test_a_value_is_made_once_for_the_same_sources_and_anew_for_others_of_the_same_second(tmp_path):
    make, source = Maker(), tmp_path / "source"
    for text, call in (("aa", 1), ("ab", 2), ("aa", 1)):
        source.write_text(text)
        os.utime(source, (1, 1))
        assert cached("k", [b"data", source], make) == {"call": call}
    parted = [cached("k", sources, make) for sources in ([b"ab", b"c"], [b"a", b"bc"])]
    assert parted == [{"call": 3}, {"call": 4}], "sources do not run into each other"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100])
def test_a_damaged_value_is_made_anew(content):
    make = Maker()
    cached("k", [b"x"], make)
    (file,) = (cache() / "k").iterdir()
    file.write_bytes(content)
    assert cached("k", [b"x"], make) == {"call": 2}


def test_no_space_for_the_cache_is_no_failure(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HPCDL_CACHE", str(tmp_path / "file"))
    assert cached("k", [b"x"], Maker()) == {"call": 1}
    assert cached("k", [tmp_path / "missing"], Maker()) == {"call": 1}


def test_the_cache_does_not_grow_without_end():
    for number in range(_KEPT + 5):
        cached("k", [str(number).encode()], Maker())
    assert len(list((cache() / "k").iterdir())) == _KEPT


def test_a_site_file_that_changes_is_judged_again(tmp_path):
    file = tmp_path / "site.yaml"
    text = (folder("templates") / "sites" / "embedded.yaml").read_text()
    file.write_text(text)
    assert load_site(file).partition("p100").nodes == 2
    file.write_text(text.replace("nodes: 2", "nodes: 3", 1))
    assert load_site(file).partition("p100").nodes == 3
    file.write_text(text.replace("nodes: 2", "nodes: 0", 1))
    for _ in range(2):
        with pytest.raises(BadInput, match="has 1 fault"):
            load_site(file)


def test_sites_are_cached():
    path = folder("templates") / "sites" / "pi.yaml"
    assert load_site(path) == load_site(path)
    assert len(list((cache() / "sites").iterdir())) == 1, "a file among its sources is missing"


def test_compiled_templates_are_not_taken_from_where_others_may_write(shared, monkeypatch):
    monkeypatch.setenv("HPCDL_CACHE", str(shared / "cache"))
    assert _compiled_templates() is not None
    (shared / "cache/templates").chmod(0o777)
    assert _compiled_templates() is None
