"""Lints files, and prints findings as text in compiler style, or as JSON.

Files are read as text, refused where they are no scripts, and found below directories.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdl.jobs.lint import LintFinding, lint
from hpcdl.jobs.lint.parse import BatchScript
from hpcdl.jobs.lint.shell import parser
from hpcdl.slurm.rules import SEVERITIES, SlurmRelease, as_release, known_releases, rule
from hpcdl.system.document import Document, Fault, Mark, Scalar, show_fault
from hpcdl.system.errors import BadInput, ExitCode, MissingPrerequisite
from hpcdl.system.files import open_regular
from hpcdl.system.resources import to_install
from hpcdl.system.text import count_of, paint

if TYPE_CHECKING:
    from hpcdl.slurm.fits import Cluster

_NO_PARSER = "note: only directives are checked, not what the scripts run\n  hint: {}"
_STYLES = {"error": "red", "warning": "yellow", "note": "cyan", "advice": "cyan"}
ScriptFindings = Sequence[tuple[str, Sequence[LintFinding]]]
"""Files, with what was found in each."""
MAX_BYTES = 4 * 1024**2
_PIPES = 5000
"""Slurm's own limit, max_script_size in slurm.conf's SchedulerParameters."""
_DIRECTIVE = re.compile(r"^[ \t]*#SBATCH", re.M)
_BEGINS = ("#!", "\ufeff#!", "#SBATCH")
_WHAT = "a batch script begins with #! or has #SBATCH lines"


def run_lint(
    paths: Sequence[Path],
    version: str | None = None,
    as_json: bool = False,
    *,
    cluster: Cluster | None = None,
    advice: bool = False,
    live: bool = False,
) -> ExitCode:
    """Lint files and print what is found; `-` is standard input.

    The newest known release is checked by default; `cluster` is that of `lint`.
    With `live` the sbatch on PATH is asked, too, whether it would take each file.
    The answer is NO where a script has an error, else USAGE where one cannot be read, else OK.

    Raises BadInput: the rules do not know `version`, or no script could be read.
    """
    release = _judged_release(version)
    results: list[tuple[str, tuple[LintFinding, ...]]] = []
    refused: list[BadInput] = []
    for path, text in scripts(paths):
        if isinstance(text, BadInput):
            refused.append(text)
            continue
        name, script = str(path), BatchScript(text, str(path), release)
        if not script.is_shell:
            program = script.interpreter or "nothing"
            note = f"note: {name}: {program} runs it, so only directives are checked"
            print(note, file=sys.stderr)
        findings = lint(text, name=name, version=release, cluster=cluster)
        if live:
            findings += _of_sbatch(path)
        results.append((name, findings))
        if not as_json:
            print(_as_text(name, text, str(release), findings, advice))
    if not results and refused:
        raise refused[0]
    if as_json:
        print(json.dumps(_as_data(str(release), results, advice), indent=2))
    for error in refused:
        print(error.render(), file=sys.stderr)
    errors = any(finding.severity == "error" for _, findings in results for finding in findings)
    return ExitCode.NO if errors else ExitCode.USAGE if refused else ExitCode.OK


def _judged_release(version: str | None) -> SlurmRelease:
    """The release to judge by, the newest known one by default."""
    if parser() is None:
        print(_NO_PARSER.format(to_install("lint")), file=sys.stderr)
    newest = known_releases()[-1]
    release = as_release(version or newest)
    if release > as_release(newest):
        hint = f"--slurm-version {newest} is the nearest"
        raise BadInput(f"the rules end with Slurm {newest}; {release} is newer", hint=hint)
    return release


def _of_sbatch(path: Path) -> tuple[LintFinding, ...]:
    """Return why `sbatch --test-only` refuses a script; print a note if it does not answer."""
    from hpcdl.slurm.client import dry_run, refusal

    try:
        why = refusal(dry_run(path)) if path.is_file() else ()
    except MissingPrerequisite as fault:
        print(f"note: {path}: sbatch --test-only: {fault.message}", file=sys.stderr)
        return ()
    return (LintFinding(rule("sbatch-refuses"), 1, 1, 1, why[-1]),) if why else ()


def _as_text(
    name: str, text: str, version: str, findings: Sequence[LintFinding], advice: bool
) -> str:
    """Each finding with its place, line, caret, consequence, fix and source; then their number."""
    lines = [_printable(line) for line in text.split("\n")]
    document = Document(_printable(name), lines, Scalar("", False, Mark(1, 1)))
    blocks = ["\n".join(_block(document, one)) for one in _shown(findings, advice)]
    return "\n\n".join([*blocks, _summary(document.name, version, findings, advice)])


def _shown(findings: Sequence[LintFinding], advice: bool) -> list[LintFinding]:
    """The findings that are printed: advice only where it is asked for."""
    return [one for one in findings if advice or one.severity != "advice"]


def _block(document: Document, finding: LintFinding) -> list[str]:
    rule = finding.rule
    severity = paint(f"{rule.severity}:", _STYLES[rule.severity])
    message = f"{severity} {_printable(finding.message)} [{rule.id}]"
    mark = Mark(finding.line, finding.column)
    return [
        *show_fault(document, Fault(message, mark, width=finding.width)),
        f"   then: {rule.consequence}",
        f"   fix:  {rule.fix}",
        f"   from: {rule.source} ({rule.span}; {rule.proof})",
    ]


def _summary(name: str, version: str, findings: Sequence[LintFinding], advice: bool) -> str:
    """`job.sh: 2 errors (Slurm 22.05); 3 pieces of advice: --advice shows them`."""
    counts = Counter(finding.severity for finding in findings)
    parts = [count_of(counts[one], one) for one in ("error", "warning", "note") if counts[one]]
    hidden = ""
    if counts["advice"]:
        pieces = count_of(counts["advice"], "piece") + " of advice"
        them = "it" if counts["advice"] == 1 else "them"
        parts += [pieces] if advice else []
        hidden = "" if advice else f"; {pieces}: --advice shows {them}"
    return f"{name}: {', '.join(parts) or 'no findings'} (Slurm {version}){hidden}"


def _printable(text: str) -> str:
    """Text without control characters, so that a script cannot drive the terminal."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\t" else "\ufffd" for sign in text)


def _as_data(version: str, results: ScriptFindings, advice: bool) -> dict[str, Any]:
    """The findings of files as plain values: what `--json` prints. All are counted."""
    counts = Counter(finding.severity for _, findings in results for finding in findings)
    return {
        "schema": 1,
        "slurm": version,
        "counts": {severity: counts[severity] for severity in SEVERITIES},
        "files": [
            {"file": name, "findings": [_row(one) for one in _shown(findings, advice)]}
            for name, findings in results
        ],
    }


def _row(finding: LintFinding) -> dict[str, Any]:
    rule, places = finding.rule, ("severity", "line", "also", "column", "width", "message")
    own = {key: getattr(finding, key) for key in places}
    said = {"consequence": rule.consequence, "fix": rule.fix, "releases": str(rule.span)}
    return {"rule": rule.id, **own, **said, "source": rule.source, "proof": rule.proof}


# ---- the files ----


def scripts(paths: Sequence[Path]) -> Iterator[tuple[Path, str | BadInput]]:
    """Each file with its text, or with why it is refused.

    Of a directory these are the batch scripts below it, hidden directories left out.
    """
    for path in paths:
        if str(path) == "-" or not path.is_dir():
            yield path, _attempt(path)
            continue
        texts: list[tuple[Path, str | BadInput]]
        texts = [
            (one, text)
            for one in _below(path)
            if isinstance(text := _attempt(one), str)
            and text.startswith(_BEGINS)
            and _DIRECTIVE.search(text)
        ]
        yield from texts or [(path, BadInput(f"no batch script below {path}", hint=_WHAT))]


def _below(directory: Path) -> Iterator[Path]:
    for parent, directories, names in os.walk(directory):
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(names))


def _attempt(path: Path) -> str | BadInput:
    try:
        return read_script(path)
    except BadInput as fault:
        return fault


def read_script(path: Path) -> str:
    """The text of a script, line ends kept; bytes that are no UTF-8 are read as Latin-1.

    Raises BadInput: it cannot be read, is larger than any batch script, or is none.
    """
    if str(path) == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        with open_regular(path, "batch script") as file:
            data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadInput(
            f"{path} is larger than {MAX_BYTES // 1024**2} MB, and sbatch takes no more",
            hint="keep data in a separate file",
        )
    if not data.strip():
        raise BadInput(f"{path} is empty", hint=_WHAT)
    # Of one command line the parser's time is their number squared: 200,000 of them took hours.
    if (pipes := max(one.count(b"|") for one in data.replace(b"|\n", b"|").split(b"\n"))) > _PIPES:
        message = f"{path} has a command line of {pipes:,} pipes, which is not read"
        raise BadInput(message, hint="put it into a script of its own")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise BadInput(f"{path} is UTF-16, which sbatch does not read", hint="save it as UTF-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return require_script(text, str(path))


def require_script(text: str, name: str, hint: str = _WHAT) -> str:
    """The text itself; BadInput for one that has no sign of a batch script."""
    if not text.startswith(_BEGINS) and not _DIRECTIVE.search(text):
        raise BadInput(f"{name} is no script", hint=hint)
    return text
