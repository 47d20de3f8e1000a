"""`hpcdl check references`: measure, propose or show what results are compared with."""

from __future__ import annotations

import argparse

from hpcdl.cli.check_options import modules, request_of, selection, shown
from hpcdl.cli.framework import Command, print_json, show, the_site
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import ExitCode


def _references_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("measure", "propose", "show"),
        help="measure; propose a change from past runs; or show")  # fmt: skip
    selection(parser)
    add("--runs", type=at_least(1), default=5, metavar="N", help="number of runs to measure (5)")
    add("--write", action="store_true", help="propose: apply the change")
    add("--if-missing", action="store_true",
        help="measure: only checks of --name without a reference")  # fmt: skip


def _references(args: argparse.Namespace) -> ExitCode:
    from hpcdl.system.errors import BadInput

    # Options that would be ignored, or would turn slowed runs into references.
    given = {"--set": args.set}
    if args.action != "measure":
        given |= {"--tag": args.tag, "--checks": args.checks, "--if-missing": args.if_missing}
    if args.action != "propose":
        given |= {"--write": args.write}
    for option, value in given.items():
        if value:
            why = "a run with changed options cannot be a reference" if option == "--set" else ""
            raise BadInput(
                f"`references {args.action}` takes no {option}",
                hint=why or "select with --partition and --name; see --help",
            )
    actions = {"measure": _measure, "propose": _propose, "show": _show_references}
    return actions[args.action](args)


def _propose(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    from hpcdl.regress.propose import propose
    from hpcdl.regress.show import proposals_text

    site = the_site(args)
    drafts = propose(site, modules(site, args), args.partition, args.name)
    if args.write and not args.dry_run:
        drafts.write(site)
    if args.json:
        diffs = {str(edit.path): edit.diff for edit in drafts.edits}
        print_json({"diffs": diffs, "references": [*map(asdict, drafts.rows)],
                    "waiting": drafts.waiting})  # fmt: skip
    else:
        print(proposals_text(drafts), end="")
    return ExitCode.OK


def _measure(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    from hpcdl.regress.measure import covered, measure
    from hpcdl.regress.reframe_adapter.releases import require_reframe
    from hpcdl.regress.show import references_text
    from hpcdl.system.text import StatusLine

    require_reframe()
    site = the_site(args)
    found, request = modules(site, args), request_of(args)
    if args.if_missing and covered(site, found, request):
        return _show_references(args)
    if args.dry_run:
        what = ", ".join([*request.names, *(f"tag {tag}" for tag in request.tags)]) or "every check"
        where = ", ".join(part.label for part in site.by_groups(request.partitions))
        said = f"would run {what} {request.repeat} times on {where}, and write the references"
        return show(args, {"runs": request.repeat, "files": [], "references": []}, said)
    with StatusLine(quiet=args.json) as status:
        done = measure(site, found, request, shown(status))
    if args.json:
        print_json({"files": done.files, "references": [asdict(row) for row in done.references]})
    else:
        print(references_text(done.references))
        for file in done.files:
            print(f"wrote {file}: review it like code")
    return ExitCode.OK


def _show_references(args: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    from hpcdl.regress.references import load_references
    from hpcdl.regress.show import references_text

    site = the_site(args)
    chosen = site.by_groups(args.partition)
    sets = sorted({partition.reference_set for partition in chosen})
    partitions = {partition.label for partition in chosen}
    rows = [row for name in sets for row in load_references(site, name).values()
            if row.partition in partitions
            and (not args.name or row.names & {*args.name})]  # fmt: skip
    return show(args, [asdict(row) for row in rows], references_text(rows))


COMMANDS = (
    Command("references",
            "Measure, propose or show the reference values that results are compared with.",
            "hpcdl check references measure --partition p100 --runs 5", _references,
            _references_options, changes=True),
)  # fmt: skip
