"""Templates and forms: what a program or a reader has yet to fill in.

This is a property of the whole script: one gap in its directives says that others are filled in
as well. Of such a script only that is said which no filling mends.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from hpcdl.jobs.lint.options import Option

GAP = re.compile(
    r"#SBATCH +\$|(?<!\$)\{(?:[\w{%#]| \w+ \})|#[A-Z]\w*#|@[A-Za-z]\w*@|(?<![\w.])@[A-Z_]{2,}\b"
    r"|\b_[A-Z][A-Z_]+_\b|<[^<>]*>|%(?:[A-Z][A-Z_]{2,}|[A-Za-z]{3,})%|%%[A-Za-z][\w-]*%%|%\(\w+\)"
    r"|XXX|(?<![a-z])xxx(?![a-z])|__[A-Z]\w*?__|\[[A-Za-z][A-Za-z_ ]{3,}\]|\.\.\."
    r"|(?<![A-Za-z])(?:[Yy]our|YOUR)(?![a-z])|PLACEHOLDER|CHANGE_?ME|REPLACE|TODO|FIXME|\bself\.\w",
    re.A,
)
GAP_LINE = re.compile(r"[ \t]*(?:\{[\w{%#]|@@?\w|<[%\w]|%\w+%|__\w+\{|\$\{\w+\}\s*\Z)", re.A)
"""A line that begins with a gap."""
GAP_BLOCK = re.compile(r"^[ \t]*\{([%#]).{0,2000}?\1\}", re.M | re.S)
"""A template's own comment or statement, of one line or several."""
FILLED = frozenset(("option-value", "directive-argument", "directive-variable", "shebang",
                    "assignment-spaced"))  # fmt: skip
"""Rules that say nothing of a template: what they find is filled in."""
_NAME = re.compile(
    r"\.(?:template|tmpl|tpl|in|j2|jinja2?|mustache)(?:\.\w+)?\Z|(?:^|/)templates?/[^/]*\Z", re.I
)
_COMMENT = re.compile(r"\s#.*")
_NUMBERS = {"nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "mem",
            "mem-per-cpu", "mem-per-gpu", "time", "array"}  # fmt: skip
"""Options whose value has a number in it: a word in its place is a form's, as in `-n num_cores`."""
_COUNTED = {*_NUMBERS, "gpus", "gpus-per-node", "gpus-per-task", "gres"}
_NO_NUMBER = re.compile(r"(?!infinite|unlimited)[^\d$`]*[A-Za-z][^\d$`]*\Z", re.I)
_BOUNDS = re.compile(r"(?:\d+|[A-Za-z])-[A-Za-z](?:%\w+)?\Z", re.A)
"""Of an array: `n-m`, `1-N`."""
_VARIABLE = re.compile(r"\$\{?([A-Za-z]\w*)", re.A)


def is_template(
    name: str, directives: Iterable[str], given: Sequence[Option], assigned: Collection[str]
) -> bool:
    """Whether a script's name, directives or values of options say that something is missing.

    `assigned` are the variables that it sets itself: a directive that names one is a mistake.
    """
    if _NAME.search(name) or any(GAP.search(_COMMENT.sub("", text)) for text in directives):
        return True
    return sum(one.value == "" for one in given) > 1 or any(
        (one.name in _NUMBERS and _NO_NUMBER.match(one.text))
        or (one.name == "array" and _BOUNDS.match(one.text))
        or not set(_VARIABLE.findall(one.text)) <= {*assigned}
        for one in given
        if one.name in _COUNTED
    )
