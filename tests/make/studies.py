"""Small studies for tests, and results of their jobs as `hpcdl train` leaves them."""

import json
from pathlib import Path

from hpcdl.api import study as api
from hpcdl.jobs.spec import Module
from hpcdl.jobs.sweep import run_statuses
from hpcdl.workflows.study import running
from hpcdl.workflows.study.cells import make_plan, note_others
from tests.make.results import trained
from tests.make.sites import shipped

RATES = {1: 8.0, 2: 15.0, 4: 16.0}
ALL = {}


def jobs(over="gpus=1,2,4 model=resnet50", options="--steps=20", **more):
    """Jobs named training; 8 GPUs are predicted."""
    return api.Jobs("training", over, options, **{"predict": (8,), **more})


def all_ran(results):
    with results.rule("complete", "all ran"):
        assert results.complete()


def judged_by(holds):
    """A `judge` with one rule, which holds or not as a function of the results says."""

    def judge(results):
        with results.rule("own", "x"):
            assert holds(results)

    return judge


def planned(folder, *matrices, partitions=(), pythons=ALL, report=None, **changes):
    """The plan of a study of these jobs on the embedded site; `changes` are of its scale."""
    site = shipped(work=folder, datasets=folder / "data")
    usual = {"shows": "a test", "minutes": 5, "judge": all_ran, "single_node": True}
    scale = api.Scale(**{**usual, "jobs": matrices or [jobs()], **changes})
    study = api.Study(
        title="A try",
        question="Does it work?",
        origin="nobody",
        found="nothing",
        series=["model"],
        small=scale,
        full=scale,
        report=report or (lambda results: [api.rate(results)]),
        name="try-out",
        path=Path(__file__),
    )
    return make_plan(site, study, "small", partitions, pythons)


def finish(plan, rates, of=ALL, **changes):
    """Leave a result for every cell whose ranks have a rate: of some values alone."""
    for cell in plan.cells:
        if cell.gpus in rates and of.items() <= cell.values.items():
            cell.results.mkdir(parents=True, exist_ok=True)
            result = trained(cell.gpus, rates[cell.gpus], **changes)
            (cell.results / "result.json").write_text(json.dumps(result))
            (cell.results / "exit_code").write_text("0\n")
            note_others(plan, cell.point.id, 0.0)
    return plan


def on_two_cores(plan, *others):
    """Note the machine that the jobs ran on, and what others had of it, cell by cell."""
    for cell, part in zip(plan.cells, others or [0.01] * len(plan.cells), strict=False):
        if cell.results.is_dir():
            (cell.results / "others").write_text(f"{part} 2\n")


def findings_of(plan):
    return running.collect(plan, run_statuses(plan.folder, plan.points))


def verdict(plan):
    """The answer of the one rule of a study, and its evidence."""
    (one,) = findings_of(plan).protocol.verdicts
    return one.ok, one.evidence


def modules_for(plan):
    return dict.fromkeys(plan.site.partitions, Module(("tensorflow",)))
