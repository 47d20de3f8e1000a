"""Write the pages of docs/ that come from data: `make docs`, or `python -m tools.docs`.

tests/unit/test_docs.py compares the committed pages with this.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tools import lint_rules
from tools.reference import commands, exit_codes, job_file, results, site_file

DOCS = Path(__file__).resolve().parents[1] / "docs"


PAGES: dict[str, Callable[[], str]] = {
    "site-file.md": site_file,
    "job-file.md": job_file,
    "results.md": results,
    "exit-codes.md": exit_codes,
    "commands.md": commands,
    "lint.md": lint_rules.as_markdown,
    "evidence/lint-rules.md": lint_rules.evidence,
}
"""What makes the text of each page of docs/."""


def main() -> None:
    """Write every page, and say which changed."""
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        changed = not path.exists() or path.read_text() != text
        path.write_text(text)
        print(f"docs/{name}" + (" changed" if changed else ""))


if __name__ == "__main__":
    main()
