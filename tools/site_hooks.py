"""Hooks of mkdocs: the site's first page is README.md, and links lead to its pages."""

from pathlib import Path
from typing import Any

_OTHERS = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "MAINTAINERS.md")


_DOORS = {
    "For users": {
        "First job in 15 minutes": "tutorial-user.html",
        "A GPU shell": "interactive.html",
        "All of jobs": "users.html",
    },
    "For admins": {
        "First stack in 30 minutes": "tutorial-admin.html",
        "Ten nodes from bare Slurm": "howto-cluster.html",
        "All of stacks": "stack.html",
    },
    "For operations": {
        "First night in 30 minutes": "tutorial-operations.html",
        "Notices and pipelines": "nights-operation.html",
        "All of nights": "nightly.html",
    },
}
"""The cards of the first page: a result first, then a task, then the guide."""


def _doors() -> str:
    cards = (
        f"<div><strong>{role}</strong><br>"
        + "<br>".join(f'<a href="{page}">{title}</a>' for title, page in pages.items())
        + "</div>"
        for role, pages in _DOORS.items()
    )
    return f'<div class="doors">{"".join(cards)}</div>\n\n'


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie at the top of the checkout."""
    from mkdocs.structure.files import File

    root = Path(config.config_file_path).parent
    for name in ("README.md", *_OTHERS):
        text = (root / name).read_text().replace("](docs/", "](")
        page = name
        if name == "README.md":
            page, text = "index.md", text.replace("![", _doors() + "![", 1)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Pages name those of the top as GitHub shows them."""
    for name in ("README.md", *_OTHERS):
        page = "index.md" if name == "README.md" else name
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """A corner of a table that is empty is no heading."""
    return html.replace("<th></th>", "<td></td>")


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The search of a page that is a file needs a worker of its own: ours, not another host's."""
    from mkdocs.utils import get_relative_url

    own = get_relative_url("assets/iframe-worker.js", page.url)
    return output.replace("https://unpkg.com/iframe-worker/shim", own)
