"""Write the manual pages: `make man`, or `python -m tools.man DIRECTORY`.

One page for `hpcdl` and one per command group, in man(7), from the declarations in hpcdl/cli.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from hpcdl import __version__
from hpcdl.cli import GROUPS, load_group
from hpcdl.cli.framework import Command, Group, build_parser
from hpcdl.system.errors import ExitCode
from tools.reference import option_help, option_names


def pages() -> dict[str, str]:
    """Every page's text, by file name."""
    written = {"hpcdl.1": _overview()}
    for name, summary in GROUPS.items():
        entry = load_group(name)
        commands = entry.commands if isinstance(entry, Group) else (entry,)
        prog = f"hpcdl {name} " if isinstance(entry, Group) else "hpcdl "
        parts = [_head(f"hpcdl-{name}", summary), ".SH COMMANDS\n"]
        parts += [text for one in commands for text in _command(prog + one.name, one)]
        written[f"hpcdl-{name}.1"] = "".join([*parts, _also("hpcdl")])
    return written


def _overview() -> str:
    commands = "".join(
        f".TP\n.BR hpcdl\\-{name} (1)\n{_text(what)}\n" for name, what in GROUPS.items()
    )
    codes = "".join(f".TP\n.B {int(code)}\n{_text(_said(code))}\n" for code in ExitCode)
    return (
        _head("hpcdl", "from bare Slurm to verified TensorFlow training, from one site file")
        + f".SH COMMANDS\n{commands}.SH EXIT STATUS\n{codes}"
        + ".SH ENVIRONMENT\n.TP\n.B HPCDL_SITE\nThe site file, where \\-\\-site is not given.\n"
        + ".TP\n.B NO_COLOR\nNo colours.\n"
        + _also(*(f"hpcdl-{name}" for name in GROUPS))
    )


def _said(code: ExitCode) -> str:
    return code.name.lower().replace("_", " ")


def _head(name: str, summary: str) -> str:
    return (
        f'.TH {_text(name).upper()} 1 "" "hpcdl {__version__}" "hpcdl"\n'
        f".SH NAME\n{_text(name)} \\- {_text(summary)}\n"
        f".SH SYNOPSIS\n.B {_text(name.replace('-', ' '))}\n.I COMMAND ...\n"
    )


def _command(prog: str, command: Command) -> Iterator[str]:
    yield f".SS {_text(prog)}\n{_text(command.summary)}\n"
    yield f".PP\nExample:\n.PP\n.RS\n.nf\n{_text(command.example)}\n.fi\n.RE\n"
    for action in build_parser(prog, command)._actions:
        if action.dest != "help" and action.help != argparse.SUPPRESS:
            names = option_names(action).replace("`", "")
            yield f".TP\n.B {_text(names)}\n{_text(option_help(action)) or '...'}\n"


def _also(*names: str) -> str:
    return ".SH SEE ALSO\n" + ",\n".join(f".BR {_text(name)} (1)" for name in names) + "\n"


def _text(text: str) -> str:
    """Text as man(7) takes it: dashes that can be copied, nothing that begins a request."""
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in safe.split("\n"))


def main(directory: Path) -> None:
    """Write all pages."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text)
    print(f"{len(pages())} manual pages in {directory}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
