"""What sbatch and srun of one Slurm release make of their options: shared by the stand-ins.

The stand-ins serve the releases that cannot be run here. They know nothing by themselves: which
options, variables, plug-ins and pairs a release takes is read from the toolkit's facts
(hpcdl/facts/slurm_rules.yaml, slurm_options.yaml), so they show what those rules say, and the
real releases at both ends of the range show whether that is true.

Settings: SLURM_STANDIN_VERSION (a release) and SLURM_STANDIN_RECORD (a folder for JSON records).
Nothing here imports hpcdl; PyYAML is all it needs.
"""

import json
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

import yaml

FACTS = Path(__file__).resolve().parents[2] / "hpcdl" / "facts"
NEWEST_POINT = 999


class Fatal(Exception):
    """What the real command prints before it exits; `code` is its exit code."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


# --- the facts ------------------------------------------------------------------------------------


@cache
def facts(name):
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((FACTS / f"{name}.yaml").read_text(), Loader=loader)


def order(text, point):
    """A release as numbers; `point` where it names no point release."""
    return (*[int(part) for part in text.split(".")[:3]], point)[:3]


@dataclass(frozen=True)
class Slurm:
    """One release, asked through the data."""

    version: str

    def within(self, row):
        since, until = row.get("since") or "0.0.0", row.get("until") or "99.0.0"
        return order(since, 0) <= order(self.version, NEWEST_POINT) < order(until, 0)

    def holds(self, rule):
        (row,) = [one for one in facts("slurm_rules")["rules"] if one["id"] == rule]
        return self.within(row)

    def fact(self, name):
        rows = [one for one in facts("slurm_rules")["facts"] if one["name"] == name]
        return next((one["value"] for one in rows if self.within(one)), None)

    def plugins(self):
        return [one["name"] for one in facts("slurm_rules")["mpi"] if self.within(one)]

    def options(self, command):
        return _options(self, command)

    def variables(self, command):
        return _variables(self, command)


@cache
def _options(slurm, command):
    rows = facts("slurm_options")["options"]
    return {one["name"]: one for one in rows if command in one["commands"] and slurm.within(one)}


@cache
def _variables(slurm, command):
    rows = facts("slurm_options")["environment"]
    own = [one for one in rows if one["command"] == command and slurm.within(one)]
    return {one["variable"]: one["option"] for one in own}


# --- options --------------------------------------------------------------------------------------


@dataclass
class Given:
    """The options in force: value and source (script, environment, command line) of each."""

    values: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def put(self, name, value, source):
        self.values[name] = value
        self.sources[name] = source

    def has(self, *names):
        return any(name in self.values for name in names)

    def by_cli(self, *names):
        """Given in the script or on the command line: Slurm treats these two alike."""
        return any(self.sources.get(name) in {"script", "cli"} for name in names)

    def by_env(self, *names):
        return any(self.sources.get(name) == "env" for name in names)

    def number(self, name, default=None):
        text = self.values.get(name, "")
        return int(text) if text.isdigit() else default

    def drop(self, *names):
        for name in names:
            self.values.pop(name, None)
            self.sources.pop(name, None)


def parse(slurm, command, words, source, given):
    """Read options as getopt does; returns the words behind them."""
    known = slurm.options(command)
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        read = _long if word.startswith("--") else _letter
        name, value = read(command, known, word, rest)
        check_value(slurm, command, name, value)
        given.put(name, value, source)
    return rest


def _long(command, known, word, rest):
    name, equals, value = word[2:].partition("=")
    close = [name] if name in known else [one for one in known if one.startswith(name)]
    if len(close) != 1:
        kind = "ambiguous" if close else "unrecognized"
        raise Fatal(f"{command}: {kind} option '{word}'\n{_try(command)}", 255)
    if known[close[0]].get("argument") == "required" and not equals:
        value = _argument(command, close[0], rest)
    return close[0], value


def _letter(command, known, word, rest):
    letter, after = word[1], word[2:]
    name = next((one for one, row in known.items() if row.get("short") == letter), None)
    if name is None:
        raise Fatal(f"{command}: invalid option -- '{letter}'\n{_try(command)}", 255)
    argument = known[name].get("argument", "none")
    if argument == "none" and after:
        rest.insert(0, f"-{after}")
    if argument == "none":
        return name, ""
    return name, after or (_argument(command, name, rest) if argument == "required" else "")


def _argument(command, name, rest):
    if not rest:
        raise Fatal(f"{command}: option '--{name}' requires an argument\n{_try(command)}", 255)
    return rest.pop(0)


def _try(command):
    return f'Try "{command} --help" for more information'


def check_value(slurm, command, name, value):
    """Refuse values that the release does not know."""
    given = {part.partition(":")[0].lower() for part in value.split(",")}
    for row in facts("slurm_rules")["values"]:
        named = row["option"] == name and str(row["value"]).lower() in given
        if named and command in row.get("commands", [command]) and not slurm.within(row):
            what = "specification" if name == "gres-flags" else f"argument: {value}"
            raise Fatal(f"{command}: error: Invalid --{name} {what}", 255)
    if name == "gres-flags" and "allow-task-sharing" in given and command == "sbatch":
        raise Fatal("sbatch: error: --gres-flags=allow-task-sharing is only used with srun.", 255)


def from_environment(slurm, command, environment, given):
    """Options that variables stand for: above the script, below the command line."""
    for variable, option in slurm.variables(command).items():
        if variable in environment:
            given.put(option, environment[variable], "env")


# --- pairs that exclude each other ----------------------------------------------------------------


def validate(slurm, command, given):
    for message in _conflicts(slurm, command, given):
        raise Fatal(f"{command}: {message}")
    if slurm.holds("cpus-per-gpu-excludes"):
        if given.by_cli("cpus-per-task"):
            given.drop("cpus-per-gpu")
        elif given.by_cli("cpus-per-gpu"):
            given.drop("cpus-per-task")


def _conflicts(slurm, command, given):
    pair = "gpu" in given.values.get("gres", "") and given.has("gpus-per-node")
    if pair and slurm.holds("gpu-flag-pair"):
        yield "fatal: --gpus-per-node and --gres=gpu are mutually exclusive."
    if given.has("ntasks-per-gpu") and slurm.holds("ntasks-per-gpu-excludes"):
        tail = "is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU"
        yield from (f"fatal: {option} {tail}" for option in _beside_ntasks_per_gpu(slurm, given))
    if sum(map(given.by_cli, ("mem", "mem-per-cpu", "mem-per-gpu"))) > 1:
        yield "fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive."
    both = given.by_cli("exclusive") and given.by_cli("oversubscribe")
    if both and slurm.holds("exclusive-oversubscribe"):
        yield "fatal: --exclusive and --oversubscribe options are mutually exclusive"
    for first, second in (("exact", "whole"), ("exclusive", "overlap")):
        both = command == "srun" and given.has(first) and given.has(second)
        if both and slurm.holds(f"{first}-{second}"):
            yield f"error: --{first} and --{second} are mutually exclusive."
    own = given.number("cpus-per-task")
    tres = re.search(r"cpu[=:](\d+)", given.values.get("tres-per-task", ""))
    by_variables = given.by_env("tres-per-task") and given.by_env("cpus-per-task")
    if by_variables and tres and own != int(tres[1]) and slurm.holds("cpus-per-task-mismatch"):
        values = f"SLURM_CPUS_PER_TASK={own} != SLURM_TRES_PER_TASK=cpu={tres[1]}"
        yield f"fatal: cpus-per-task set by two different environment variables {values}"
    pair = ("cpus-per-task", "cpus-per-gpu")
    both = all(map(given.by_cli, pair)) or all(map(given.by_env, pair))
    if both and slurm.holds("cpus-per-gpu-excludes"):
        names = "--cpus-per-task, --tres-per-task=cpu:#, and --cpus-per-gpu"
        yield f"fatal: {names} are mutually exclusive"


def _beside_ntasks_per_gpu(slurm, given):
    tres = given.values.get("tres-per-task", "")
    if given.by_cli("tres-per-task"):
        yield "--tres-per-task"
    if given.by_env("tres-per-task") and (slurm.holds("ntasks-per-gpu-with-cpus") or "gpu" in tres):
        yield "SLURM_TRES_PER_TASK"
    for name in ("gpus-per-task", "gpus-per-socket", "ntasks-per-node"):
        if given.has(name):
            yield f"--{name}" if given.by_cli(name) else f"SLURM_{name.upper().replace('-', '_')}"


# --- what a job and a step get --------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """Any node of the modelled cluster, as of the embedded one."""

    cpus: int = 16
    gpus: int = 4


def gpu_count(text):
    """GPUs in `4`, `v100:4`, `gpu:v100:4`, `gres/gpu:4,gres/nic:1`."""
    parts = [part for part in text.split(",") if "gpu" in part or part[:1].isdigit() or ":" in part]
    numbers = [re.search(r"(\d+)$", part) for part in parts if "nic" not in part]
    return sum(int(number.group(1)) for number in numbers if number)


def allocation(slurm, given, node):
    nodes = given.number("nodes", 1) or 1
    per_task = given.number("cpus-per-task", 1) or 1
    per_node = given.number("ntasks-per-node")
    total = given.number("ntasks", nodes * (per_node or 1)) or 1
    per_node = per_node or -(-total // nodes)
    gpus = gpus_per_node(given, nodes, per_node)
    if given.has("ntasks-per-gpu"):
        per_node = gpus * (given.number("ntasks-per-gpu") or 1)
        total = per_node * nodes
    if given.has("cpus-per-gpu"):
        per_task = max(1, (given.number("cpus-per-gpu") or 1) * gpus // per_node)
    # Where both are taken, the later one counts.
    shared = given.has("oversubscribe") and list(given.values)[-1] != "exclusive"
    whole = given.has("exclusive") and not shared
    cpus = node.cpus if whole else per_node * per_task
    if whole and slurm.fact("exclusive-shows-gpus"):
        gpus = node.gpus
    if cpus > node.cpus or gpus > node.gpus:
        message = "sbatch: error: Batch job submission failed: Requested node configuration is not "
        raise Fatal(message + "available")
    return {
        "nodes": nodes,
        "tasks": total,
        "tasks_per_node": per_node,
        "cpus_per_task": per_task,
        "cpus_per_node": cpus,
        "gpus_per_node": gpus,
    }


def gpus_per_node(given, nodes, tasks_per_node):
    if given.has("gpus-per-node"):
        return gpu_count(given.values["gpus-per-node"])
    if "gpu" in given.values.get("gres", ""):
        return gpu_count(given.values["gres"])
    if given.has("gpus"):
        return gpu_count(given.values["gpus"]) // nodes
    each = given.values.get("gpus-per-task") or given.values.get("tres-per-task", "")
    return gpu_count(each) * tasks_per_node if "gpu" in each or given.has("gpus-per-task") else 0


def cpus_of_tres(given):
    """The variable that --tres-per-task=cpu:N sets in a job and in its ranks."""
    cpus = re.search(r"cpu[=:](\d+)", given.values.get("tres-per-task", ""))
    return {"SLURM_CPUS_PER_TASK": cpus.group(1)} if cpus else {}


def binding(slurm, given):
    """How GPUs are bound to tasks: explicit, implied by the release, or none."""
    explicit = given.values.get("gpu-bind") or given.values.get("tres-bind", "")
    explicit = explicit.removeprefix("gres/gpu:").removeprefix("verbose,")
    if explicit == "none":
        return slurm.fact("gpu-bind-none") or "none"
    if explicit:
        return explicit
    per_task = given.values.get("gpus-per-task", "")
    tres = given.values.get("tres-per-task", "")
    if per_task or "gpu" in tres:
        kind = slurm.fact("gpus-per-task-bind")
        return f"{kind}:{gpu_count(per_task or tres)}" if kind != "none" else "none"
    if given.has("ntasks-per-gpu"):
        return f"{slurm.fact('ntasks-per-gpu-bind')}:{given.values['ntasks-per-gpu']}"
    return "none"


def visible(bind, gpus, local_rank):
    """The GPUs of its node that a task sees."""
    kind, _, rest = bind.partition(":")
    everything = list(range(gpus))
    if kind == "unset":
        return []
    if kind == "per_task":
        count = int(rest)
        first = local_rank * count % max(1, gpus)
        return everything[first : first + count]
    if kind == "single" and gpus:
        return [local_rank // int(rest or 1) % gpus]
    if kind in {"map_gpu", "map"}:
        numbers = [int(part) for part in rest.split(",")]
        return [numbers[local_rank % len(numbers)]]
    return everything


def step(slurm, given, job):
    nodes = min(given.number("nodes", job["nodes"]) or 1, job["nodes"])
    per_node = given.number("ntasks-per-node", job["tasks_per_node"]) or 1
    total = given.number("ntasks", nodes * per_node) or 1
    if not given.by_cli("ntasks") and given.by_cli("nodes", "ntasks-per-node"):
        total = nodes * per_node
    per_node = -(-total // nodes)
    gpus = job["gpus_per_node"]
    if given.by_cli("gpus", "gpus-per-node", "gres", "gpus-per-task", "tres-per-task"):
        gpus = min(gpus, gpus_per_node(given, nodes, per_node) or 0)
    cpus, exact = _step_cpus(slurm, given, gpus, per_node)
    held = per_node * cpus if exact else job["cpus_per_node"]
    bind = binding(slurm, given)
    return {
        "nodes": nodes,
        "tasks": total,
        "tasks_per_node": per_node,
        "cpus_per_task": cpus,
        "exact": exact,
        "cpus_held_per_node": held,
        "gpus_per_node": gpus,
        "gpu_bind": bind,
        "gpus_visible": [visible(bind, gpus, rank) for rank in range(per_node)],
        "kill_on_bad_exit": given.values.get("kill-on-bad-exit", "0") or "1",
        "shares": slurm.fact("overlap-shares") if given.has("overlap") else "",
        "mpi": given.values.get("mpi", ""),
        "cpu_bind": cpu_bind(slurm, given),
    }


def cpu_bind(slurm, given):
    """How CPUs are bound: as asked, unless the release ignores that."""
    asked = given.values.get("cpu-bind", "")
    if asked == "rank" and slurm.holds("cpu-bind-rank"):
        print("srun: Ignoring --cpu-bind=rank. Rank binding is obsolete.", file=sys.stderr)
        return ""
    return asked


def _step_cpus(slurm, given, gpus, per_node):
    """CPUs per task, and whether the step holds these only."""
    exact = given.has("exact", "exclusive") or (
        slurm.fact("step-default") == "exact" and not given.has("whole")
    )
    tres = re.search(r"cpu[=:](\d+)", given.values.get("tres-per-task", ""))
    if given.has("cpus-per-task") or tres:
        own = given.number("cpus-per-task") or int(tres.group(1) if tres else 1)
        return own, exact or slurm.fact("exact-implied") is not None
    if given.has("cpus-per-gpu") and slurm.fact("cpus-per-gpu-on-steps") is not None:
        return max(1, (given.number("cpus-per-gpu") or 1) * gpus // per_node), True
    return 1, exact


# --- records --------------------------------------------------------------------------------------


def record(kind, data):
    """Write one JSON record; its name counts the records of the folder."""
    place = Path(os.environ["SLURM_STANDIN_RECORD"])
    place.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        with suppress(FileExistsError), (place / f"{kind}-{number:03d}.json").open("x") as file:
            json.dump(data, file, indent=1, sort_keys=True)
            break


def run_main(main):
    """Run a stand-in: what it refuses is printed as Slurm prints it."""
    try:
        code = main(Slurm(os.environ["SLURM_STANDIN_VERSION"]), sys.argv[1:], dict(os.environ))
    except Fatal as fault:
        print(fault, file=sys.stderr)
        code = fault.code
    raise SystemExit(code)
