"""Compiles kernels on TensorFlow's own GPU headers: `python -m tools.compile_evidence STACK ...`.

STACK is an environment with TensorFlow's wheel for GPUs, such as PREFIX/releases/ID/stack. Each
tools/gpu_kernels/*.cu.cc is compiled by clang with NVIDIA's wheels, or by an nvcc with the CUDA
around it (`--nvcc`), for the GPUs that are named, linked as an operation, and loaded by STACK's
Python; its machine code must be that of the GPUs and no other. No GPU is needed, and nothing is
computed on one.

What came out is one row of hpcdl/facts/gpu_kernels.yaml (`--write`), the compiler's first error
included: `hpcdl stack resolve` shows it. A kernel takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpcdl import facts
from hpcdl.stack import horovod
from hpcdl.stack.linked import is_machine, read_device_code
from hpcdl.stack.recipe import running_interpreter
from hpcdl.system.errors import HpcdlError, MissingPrerequisite
from hpcdl.system.files import write_atomic

KERNELS = Path(__file__).with_name("gpu_kernels")
_FLAGS = ("-DGOOGLE_CUDA=1", "-DNDEBUG", "-DEIGEN_MAX_ALIGN_BYTES=64", "-w")
_NVCC_FLAGS = "-std=c++17 -O3 --expt-relaxed-constexpr --extended-lambda -Xcompiler -fPIC"
_ERROR = re.compile(r"^.*\b(?:error|fatal|undefined (?:symbol|reference))\b.*$", re.M)
_SAME = ("when", "compiler", "cuda")
_LOAD = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
faults = {}
for path in sys.argv[1:]:
    try:
        tf.load_op_library(path)
    except Exception as fault:
        faults[path] = str(fault).splitlines()[0]
print("LOADED", json.dumps(faults))
"""


@dataclass(frozen=True)
class Setting:
    """The compilers, the tree of a CUDA release, the TensorFlow, and the GPUs as digits."""

    compiler: horovod.Tool
    kind: str
    gxx: str
    tree: Path
    packages: Path
    codes: tuple[str, ...]
    scratch: Path

    @property
    def tensorflow(self) -> str:
        """The version of the TensorFlow that is compiled against."""
        (info,) = self.packages.glob("tensorflow-*.dist-info")
        return info.name.removesuffix(".dist-info").rpartition("-")[2]

    def compile(self, source: Path) -> str:
        """Compile a kernel and link it beside its object; the first error, if any."""
        place = self.scratch / source.name.partition(".")[0]
        include = self.packages / "tensorflow" / "include"
        argv = [
            *self.argv(),
            *_FLAGS,
            *(word for folder in (include, self.scratch) for word in ("-isystem", str(folder))),
            *("-x", "cu" if self.kind == "nvcc" else "cuda", "-c", str(source), "-o", f"{place}.o"),
        ]
        link = [
            *(self.gxx, "-shared", f"{place}.o", "-o", f"{place}.so"),
            *(f"-L{self.packages / 'tensorflow'}", "-l:libtensorflow_framework.so.2"),
            *("-l:libtensorflow_cc.so.2", f"-L{self.tree / 'lib64'}", "-lcudart"),
            f"-Wl,-rpath,{self.tree / 'lib64'}",
        ]
        return _first_error(argv) or _first_error(link)

    def argv(self) -> list[str]:
        """The compiler, for exactly these GPUs."""
        if self.kind == "clang":
            where = (self.compiler.path, self.tree, Path(self.gxx), self.codes, "c++17")
            return [*horovod.compile_argv(*where), "-ferror-limit=1"]
        codes = [f"-gencode=arch=compute_{code},code=sm_{code}" for code in self.codes]
        return [str(self.compiler.path), "-ccbin", self.gxx, *_NVCC_FLAGS.split(), *codes]


def main(argv: Sequence[str] | None = None) -> int:
    """Compile, print a line for each kernel, and write the row if asked; 1 if a kernel failed."""
    options = _options().parse_args(argv)
    sources = sorted(KERNELS.glob("*.cu.cc"))
    if options.kernels:
        sources = [one for one in sources if one.name.partition(".")[0] in options.kernels]
    with tempfile.TemporaryDirectory() as folder:
        setting = _setting(options, Path(folder))
        faults = {}
        for source in sources:
            name = source.name.partition(".")[0]
            faults[name] = setting.compile(source) or _wrong_code(setting, name)
            print(f"{name}: {faults[name] or 'compiled'}", flush=True)
        compiled = [name for name, fault in faults.items() if not fault]
        faults |= _load_faults(options.stack, setting, compiled) if compiled else {}
    row = _row(setting, options.cuda, faults)
    print(yaml.safe_dump(row, sort_keys=False, width=1000))
    if options.write:
        _write(row, options.write)
    return 1 if row["failed"] else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.compile_evidence")
    parser.add_argument("stack", type=Path, help="an environment with TensorFlow for GPUs")
    parser.add_argument("--cuda", required=True, help="CUDA release of the wheels: 12.9.1")
    parser.add_argument("--gpu", required=True, nargs="+", help="compute capabilities: 6.0 7.0")
    parser.add_argument("--nvcc", type=Path, help="compile by this nvcc, with the CUDA around it")
    parser.add_argument("--gxx", default="g++", help="the compiler of the host's part")
    parser.add_argument("--kernels", nargs="+", help="only these; all by default")
    parser.add_argument(
        "-w",
        "--write",
        nargs="?",
        type=Path,
        const=facts.path("gpu_kernels"),
        help="write the row into the facts, or into another file",
    )
    return parser


def _setting(options: argparse.Namespace, scratch: Path) -> Setting:
    refused: list[str] = []
    kind = "nvcc" if options.nvcc else "clang"
    paths = [options.nvcc] if options.nvcc else horovod.clangs()
    compiler = next(horovod.fitting(paths, kind, options.gpu, options.cuda, refused), None)
    if compiler is None:
        raise MissingPrerequisite(f"no {kind} here compiles for these GPUs", details=refused)
    if options.nvcc:
        tree = options.nvcc.resolve().parents[1]
    else:
        tree = horovod.cuda_tree(options.cuda, running_interpreter(), print)
    # TensorFlow's headers look for CUDA's below third_party.
    (scratch / "third_party" / "gpus" / "cuda").mkdir(parents=True)
    (scratch / "third_party" / "gpus" / "cuda" / "include").symlink_to(tree / "include")
    packages = next(options.stack.absolute().glob("lib/python3*/site-packages"))
    codes = tuple(one.replace(".", "") for one in options.gpu)
    return Setting(compiler, kind, options.gxx, tree, packages, codes, scratch)


def _first_error(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    match = _ERROR.search(done.stderr)
    text = match.group(0) if match else done.stderr.strip()[-200:]
    return re.sub(r"^\S*/(?=\S+:\d)", "", text.strip())[:300]


def _wrong_code(setting: Setting, name: str) -> str:
    """Where the machine code is not that of the GPUs, what it is."""
    codes = read_device_code(setting.scratch / f"{name}.so")
    have = set(filter(is_machine, codes))
    wanted = {f"sm_{code}" for code in setting.codes}
    return "" if have == wanted else f"machine code: {', '.join(sorted(have)) or 'none'}"


def _load_faults(stack: Path, setting: Setting, names: Sequence[str]) -> Mapping[str, str]:
    """What TensorFlow says of those that do not load, by kernel."""
    paths = {str(setting.scratch / f"{name}.so"): name for name in names}
    argv = [str(stack / "bin" / "python"), "-c", _LOAD, *paths]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    told = re.search(r"^LOADED (.*)$", done.stdout, re.M)
    if told is None:
        return dict.fromkeys(names, f"TensorFlow ended with {done.returncode} as it loaded them")
    return {paths[path]: f"does not load: {text}" for path, text in json.loads(told[1]).items()}


def _row(setting: Setting, cuda: str, faults: Mapping[str, str]) -> dict[str, Any]:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    gpus = [f"{code[:-1]}.{code[-1]}" for code in setting.codes]
    return {
        "when": {"tensorflow": setting.tensorflow, "gpu": ",".join(gpus)},
        "compiler": f"{setting.kind} {setting.compiler.version}",
        "cuda": cuda,
        **_results(faults),
        "cpu_seconds": round(used.ru_utime + used.ru_stime),
        "proof": "compiled",
        "source": "kernels",
    }


def _results(faults: Mapping[str, str]) -> dict[str, Any]:
    good = [name for name, fault in sorted(faults.items()) if not fault]
    bad = {name: fault for name, fault in sorted(faults.items()) if fault}
    return {"compiled": good, "failed": bad}


def _write(row: Mapping[str, Any], path: Path) -> None:
    """Put the row in the place of the one for the same versions and GPUs.

    Of kernels that were left out this time the older results are kept.
    """
    text = path.read_text(encoding="utf-8")
    rows = yaml.safe_load(text)["notes"]
    same = [one for one in rows if all(one[key] == row[key] for key in _SAME)]
    faults = dict[str, str]()
    for one in (*same, row):
        faults |= {**dict.fromkeys(one["compiled"], ""), **one["failed"]}
    results = _results(faults)
    note = (
        f"custom GPU operations compile on TensorFlow's headers: {len(results['compiled'])} of "
        f"{len(faults)} kernels by {row['compiler']} and CUDA {row['cuda']}"
    )
    seconds = sum(one["cpu_seconds"] for one in (*same, row))
    new = {**row, **results, "cpu_seconds": seconds, "note": note}
    body = yaml.safe_dump(
        {"notes": [*(one for one in rows if one not in same), new]}, sort_keys=False, width=100
    )
    write_atomic(path, text[: text.index("notes:")] + body)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HpcdlError as fault:
        sys.exit(fault.in_one_line())
