"""The pages: links lead somewhere, commands exist, and nothing names a machine it was made on."""

import re
import shlex
from pathlib import Path

import pytest

from hpcdl.cli import GROUPS, load_group, main
from hpcdl.cli.framework import Group, build_parser
from tools import wrap

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def name(path):
    return str(path.relative_to(ROOT))


def links(page):
    return re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in links(page):
        assert (page.parent / target).exists(), f"{name(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_on_a_page_exist(page):
    for group, command in re.findall(r"`(?:\$ )?hpcdl ([a-z]+) ?([a-z-]*)", page.read_text()):
        assert group in GROUPS, f"{name(page)}: hpcdl {group}"
        found = load_group(group)
        if isinstance(found, Group) and command and not command.startswith("-"):
            known = {one.name for one in found.commands}
            assert command in known or found.default, f"{name(page)}: hpcdl {group} {command}"


def typed(text):
    """The arguments of each `hpcdl` line in a page's blocks, continued lines joined."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        if language not in ("", "bash", "console"):
            continue
        joined = re.sub(r"\\\n(?:> )?\s*", "", block)
        for line in re.findall(r"^(?:\$ |srun )?hpcdl (.*)", joined, re.M):
            line = re.split(r" \||\s2?>|;| && ", line)[0]
            if "..." not in line:
                yield shlex.split(line, comments=True)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_in_a_page_s_blocks_exist(page):
    for words in typed(page.read_text()):
        group = load_group(words.pop(0))
        if isinstance(group, Group):
            known = {one.name: one for one in group.commands}
            chosen = words.pop(0) if words and words[0] in known else group.default
            if not chosen:
                continue  # `hpcdl check --help`
            group = known[chosen]
        parser = build_parser(f"hpcdl {group.name}", group)
        asked = words[: words.index("--")] if "--" in words else words
        assert parser.parse_args([word for word in asked if word != "--help"]), name(page)


def test_every_page_is_reached_from_the_readme_or_another_page():
    linked = {(page.parent / target).resolve() for page in PAGES for target in links(page)}
    lost = [name(page) for page in ROOT.glob("docs/*.md") if page.resolve() not in linked]
    assert not lost, f"no page links to {lost}"


def test_the_page_s_slices_of_a_gpu_make_a_site_and_a_script(tmp_path, capsys):
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/howto-sites.md").read_text(), re.S)
    head = "schema: 1\nname: here\nslurm: {version: '24.11'}\n"
    head += "paths: {prefix: /p, work: /w, datasets: /d}\n"
    (tmp_path / "site.yaml").write_text(head + example)
    words = ["--site", str(tmp_path / "site.yaml"), "--partition", "mig", "--gpus", "1"]
    assert main(["job", "render", *words, "--no-module", "--", "hostname"]) == 0
    assert "--gpus-per-node=a100_1g.10gb:1" in capsys.readouterr().out


@pytest.mark.parametrize("page", wrap.pages(), ids=name)
def test_prose_is_at_most_100_wide(page):
    """When this fails: `python -m tools.wrap`."""
    assert wrap.wrapped(page.read_text()) == page.read_text()
