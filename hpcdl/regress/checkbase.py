"""The base of hpcdl's ReFrame checks: a job exactly as `hpcdl job submit` would queue it.

The script comes from hpcdl.jobs, so that nightly numbers describe what users run. A check says
which job (`request`), which metrics (`metrics`) and what must hold (`faults`); a metric that is not
there, a job that ended oddly or a release that is not the site's fails here, before ReFrame could
overlook it.
"""

# mypy: disable-error-code="misc,untyped-decorator"

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.utility.sanity as sn
import reframe.utility.typecheck as typ
from reframe.core.builtins import run_after, run_before, sanity_function, variable
from reframe.core.exceptions import ReframeError
from reframe.core.runtime import runtime

from hpcdl.jobs.layout import plan_on
from hpcdl.jobs.script import render_script
from hpcdl.jobs.spec import JobSpec, Module, is_train
from hpcdl.regress.job_state import PATIENCE_SECONDS, exit_fault
from hpcdl.regress.references import Reference, load_references
from hpcdl.regress.reframe_adapter.backend import JobPlan, declared_name, job_record
from hpcdl.regress.result import Measured, faults_of, of_this_run, read_result, reads
from hpcdl.results.faults import FaultKind, JobFault, as_fault, describe
from hpcdl.site import Partition, Site, load_site
from hpcdl.slurm.execution import CLUSTER, PROFILES, ExecutionProfile
from hpcdl.system.declare import to_argv
from hpcdl.system.errors import BadInput
from hpcdl.system.run import module_argv, run

LOG, RESULT = "job.log", "result.json"


@dataclass(frozen=True)
class Metric:
    """A number that a check measures: its unit, and how to read it from the result.

    `judged` says whether it needs a reference; a number that is only shown needs none. `better`
    says which values are (`higher` or `lower`), where neither its bounds nor its unit do.
    """

    name: str
    unit: str
    read: Callable[[Measured], float | None]
    judged: bool = True
    better: str = ""


class HpcdlCheck(rfm.RunOnlyRegressionTest):
    """One job of the site's, measured. Subclasses give `case`, `request` and `metrics`."""

    valid_prog_environs = ["hpcdl"]  # noqa: RUF012 - ReFrame's way of declaring
    sourcesdir = None
    require_reference = True
    # Further options of the training program, `name=value` (ReFrame: -S settings=...).
    settings = variable(typ.List[str], value=[], loggable=True)
    # Whether references are being measured, so that none is needed.
    measuring = variable(typ.Bool, value=False, loggable=True)
    # What a verdict needs to know beside ReFrame's own report.
    evidence = variable(dict, value={}, loggable=True)
    restarts = variable(int, value=0)  # how often the job may be put back into the queue
    silence_seconds = variable(float, value=600.0)  # without a sign of life: it is given up
    patience_seconds = variable(float, value=PATIENCE_SECONDS)  # that it may wait for its nodes
    needs_gpus = True  # whether ranks of a partition with GPUs must compute on them

    @property
    def check_name(self) -> str:
        """Return the check's name: that of its class."""
        return declared_name(type(self))

    @property
    def case_name(self) -> str:
        """Which variant of the check this is; part of its references' key."""
        return "default"

    def request(self, site: Site, partition: Partition) -> JobSpec:
        """The job, as a user would ask for it."""
        raise NotImplementedError

    def metrics(self) -> Sequence[Metric]:
        """Return the metrics."""
        return ()

    def faults(self, measured: Measured) -> Sequence[JobFault | str]:
        """Return the faults of a result; text is a failure, always.

        By default what must hold of any job: world size, nodes, release, device, its own end.
        """
        return faults_of(measured, self.layout, self.evidence["release"], real_gpus=self.real_gpus)

    def measured(self) -> Measured:
        """Return the job's result.json, if it is of this job."""
        result = read_result(Path(self.stagedir) / RESULT)
        if self.job.record is None:
            return result
        _, partition = self.place()
        gpu = partition.gpu.driver_name if partition.gpu and self.needs_gpus else ""
        return of_this_run(result, self.job.record, self.job.token, gpu)

    def expected(self, metric: Metric, site: Site, partition: Partition) -> Reference | None:
        """A reference that follows from a model or a rule, where no file has one."""
        return None

    def most(self, metric: Metric) -> float | None:
        """Return the hardware's upper limit, None if it is unknown: more is an error."""
        return None

    def suits(self, site: Site, partition: Partition, execution: ExecutionProfile) -> bool:
        """Return whether the check means anything on a partition that can hold its job."""
        return True

    def script(self, site: Site, spec: JobSpec, module: Module) -> str:
        """The script of the job, as `hpcdl job render` prints it."""
        return render_script(site, spec, module).text

    def ended(self, exit_code: int | None) -> Sequence[JobFault | str]:
        """Return the faults that the job's exit code means."""
        return [] if exit_code == 0 else [exit_fault(exit_code)]

    @property
    def layout(self) -> dict[str, Any]:
        """The job's layout as plain values, once the job is set up."""
        return dict(self.evidence["layout"])

    @property
    def real_gpus(self) -> bool:
        """Return whether ranks must find a GPU."""
        return self.needs_gpus and self.layout["gpus_per_node"] > 0 and self.execution.real_gpus

    @property
    def execution(self) -> ExecutionProfile:
        """How measurements are taken and judged on the partition that the check runs on."""
        return execution_of(self.current_partition)

    def place(self) -> tuple[Site, Partition]:
        """The site, and the partition that the check runs on."""
        return site_and_partition(self.current_partition)

    @run_after("init")
    def choose_partitions(self) -> None:
        """Only partitions that can hold the job."""
        partitions = runtime().system.partitions
        self.valid_systems = [part.fullname for part in partitions if self._fits(part)]
        # A check that never starts, because what it depends on failed, keeps its name as well.
        self.evidence = {"check": self.check_name}

    @run_after("setup")
    def write_script(self) -> None:
        """Lay the job out and hand ReFrame its script."""
        site, partition = self.place()
        module, directory = module_of(self.current_partition), Path(self.stagedir).absolute()
        spec = replace(self.request(site, partition), job_dir=directory)
        if is_train(spec.program):
            spec = replace(spec, program=(*spec.program, *map(option, self.settings)))
        if not self.is_dry_run():
            require_data(spec.program)
        layout = plan_on(site, spec)[1]
        self.num_tasks = layout.world_size
        self.num_tasks_per_node = layout.tasks_per_node
        self.num_cpus_per_task = layout.cpus_per_task
        self.job.plan = JobPlan(
            self.script(site, spec, module),
            f"{self.check_name}/{self.case_name}",
            LOG,
            self.restarts,
            self.silence_seconds,
            self.patience_seconds,
        )
        self.executable = spec.program[0]  # ReFrame wants one; the script has it
        self.evidence = {
            "check": self.check_name,
            "case": self.case_name,
            "partition": partition.label,
            "layout": asdict(layout),
            "release": module.release,
            "driver": partition.driver,
            "faults": [],
            "metrics": {},
            "script": str(directory / "rfm_job.sh"),
            "log": str(directory / LOG),
            "result": str(directory / RESULT),
        }
        self.job.faults = self.evidence["faults"]

    @run_before("sanity")
    def gather(self) -> None:
        """Read what the job left, once."""
        measured = self.measured()
        # What the node says of its driver is worth more than what the site file says.
        self.evidence["driver"] = measured.driver or self.evidence["driver"]
        values = {metric.name: metric.read(measured) for metric in self.metrics()}
        faults = [*self.ended(self.job.exitcode), *self.faults(measured)]
        faults += [
            JobFault(FaultKind.NO_METRIC, f"missing metric: {name} is not in the result", name)
            for name, value in values.items()
            if (value is None or not math.isfinite(value)) and not measured.faults
        ]
        self.evidence |= {
            "metrics": {
                metric.name: {
                    "value": values[metric.name],
                    "unit": metric.unit,
                    "judged": metric.judged,
                    "better": metric.better,
                    "most": self.most(metric),
                }
                for metric in self.metrics()
            },
            "faults": [as_fault(fault).as_data() for fault in faults],
            "job": job_record(self.job),
        }

    @sanity_function
    def nothing_is_wrong(self) -> Any:
        """Return whether no fault was found."""
        faults = self.evidence["faults"]
        return sn.assert_true(not faults, msg=describe(map(as_fault, faults)))

    @run_before("performance")
    def compare(self) -> None:
        """Give ReFrame the metrics and their references."""
        self.require_reference = not (self.measuring or self.is_dry_run())
        site, partition = self.place()
        rows = {} if self.measuring else load_references(site, [partition.label])
        bounds: dict[str, tuple[Any, ...]] = {}
        for metric in filter(lambda metric: metric.judged, self.metrics()):
            entry = self.evidence["metrics"][metric.name]
            value = sn.make_performance_function(sn.defer(entry["value"]), metric.unit)
            self.perf_variables[metric.name] = value
            key = (self.check_name, self.case_name, partition.label, metric.name)
            row = self._reference(metric, rows.get(key))
            if row is not None:
                bounds[metric.name] = (row.value, row.lower, row.upper, row.unit)
                entry["reference"] = asdict(row)
        self.reference = {self.current_partition.fullname: bounds}

    def _reference(self, metric: Metric, own: Reference | None) -> Reference | None:
        """A rule of the check's always holds; what a model expects, where nothing is measured."""
        expected = self.expected(metric, *self.place())
        if expected is not None and expected.is_rule:
            return expected
        return own if own is not None or self.measuring else expected

    def _fits(self, part: Any) -> bool:
        if "hpcdl_site" not in part.extras:
            return False
        site, partition = site_and_partition(part)
        try:
            plan_on(site, self.request(site, partition))[1]
        except BadInput:
            return False
        return self.suits(site, partition, execution_of(part))


class PrintedCheck(HpcdlCheck):
    """A check whose program prints its number, and writes no result.

    `pattern` finds it in the job's output, the last time that it is there: its first group, in
    `unit`. What Slurm says of the job is the evidence.
    """

    pattern, unit, better = "", "", ""

    def measured(self) -> Measured:
        """Return the number that was printed last."""
        log = Path(self.stagedir) / LOG
        printed = re.findall(self.pattern, log.read_text(errors="replace") if log.exists() else "")
        if not printed:
            text = f"missing metric: nothing that the job printed fits {self.pattern!r}"
            return Measured({}, (JobFault(FaultKind.NO_METRIC, text),))
        try:
            return Measured({"printed": float(printed[-1])})
        except (TypeError, ValueError):
            text = f"missing metric: {printed[-1]!r} is no number"
            return Measured({}, (JobFault(FaultKind.NO_METRIC, text),))

    def metrics(self) -> Sequence[Metric]:
        """Return the metric, named after the check."""
        return [Metric(self.check_name, self.unit, reads("printed"), better=self.better)]

    def faults(self, measured: Measured) -> Sequence[JobFault | str]:
        """Return why there is no number."""
        return measured.faults


_site = functools.cache(load_site)


def site_and_partition(part: Any) -> tuple[Site, Partition]:
    """The site and the partition behind one of ReFrame's partitions."""
    site = _site(Path(part.extras["hpcdl_site"]))
    return site, site.partition(part.extras["hpcdl_partition"])


def module_of(part: Any) -> Module:
    """The module that jobs of one of ReFrame's partitions load."""
    where, release = (part.extras.get(f"hpcdl_{of}") for of in ("module_directory", "release"))
    names = tuple(part.extras.get("hpcdl_modules", ()))
    return Module(names, Path(where) if where else None, release or None)


def execution_of(part: Any) -> ExecutionProfile:
    """The profile of one of ReFrame's partitions; before there is one, a cluster's."""
    return PROFILES[part.extras["hpcdl_execution"]] if part is not None else CLUSTER


def require_data(program: Sequence[str]) -> None:
    """Refuse a program whose data set is not there, with the command that makes it.

    Raises ReframeError: it is not there.
    """
    for word in program:
        path = Path(word.removeprefix("--data="))
        if word.startswith("--data=/") and not path.exists():
            made = path.name == "digits"
            how = f"hpcdl data make digits {path}" if made else "hpcdl data inspect --help"
            raise ReframeError(f"there is no data set {path}; make it: `{how}`")


def option(setting: str) -> str:
    """`delay_ms=400` as the training program's `--delay-ms=400`; a bare name is a switch."""
    name, sign, value = setting.partition("=")
    return f"--{name.strip('-').replace('_', '-')}{sign}{value}"


def rendered(site: Site, spec: JobSpec, module: Module) -> str:
    """Return the script of `hpcdl job render` for a request. Raises CommandFailed: it refuses."""
    loads = [] if module.names else ["--no-module"]
    words = [*to_argv(spec), *loads, f"--site={site.source}", "--", *spec.program]
    return run([*module_argv(sys.executable, "hpcdl"), "job", "render", *words], timeout=60).stdout
