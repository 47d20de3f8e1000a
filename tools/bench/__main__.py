"""Runs the benchmarks that are named, or all of them, one by one, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

names = sys.argv[1:] or [path.stem[6:] for path in sorted(Path(__file__).parent.glob("bench_*.py"))]
for name in names:
    print(f"-- {name}", flush=True)
    words = ["-c", f"from tools.bench import bench_{name} as one; one.main()"]
    subprocess.run([sys.executable, *words], cwd=Path(__file__).parents[2], check=True)
