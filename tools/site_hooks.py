"""Hooks of mkdocs: the site's first page is README.md, and links lead to its pages."""

from pathlib import Path
from typing import Any

_OTHERS = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "MAINTAINERS.md")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie at the top of the checkout."""
    from mkdocs.structure.files import File

    root = Path(config.config_file_path).parent
    for name in ("README.md", *_OTHERS):
        text = (root / name).read_text().replace("](docs/", "](")
        page = "index.md" if name == "README.md" else name
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Pages name those of the top as GitHub shows them."""
    for name in ("README.md", *_OTHERS):
        page = "index.md" if name == "README.md" else name
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown
