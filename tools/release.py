"""Build what a release publishes, and look at it: `make release`. Nothing is uploaded.

Wheel and sdist are built twice from a clean copy of the last commit, and must be the same bytes;
the time of their files is the commit's. The version stands in hpcdl/__init__.py alone.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from hpcdl import __version__

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 1_020_000


def built(directory: Path) -> list[Path]:
    """Wheel and sdist of the last commit, in a directory."""
    when = _said("git", "log", "-1", "--format=%ct")
    source = directory / "source"
    source.mkdir(parents=True)
    packed = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(source)  # noqa: S202 - our own commit  # nosec B202
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", directory / "dist", source],
        env={**os.environ, "SOURCE_DATE_EPOCH": when},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    for path in (directory / "dist").glob("*.tar.gz"):
        _even_out(path, int(when))
    return sorted((directory / "dist").iterdir())


def _even_out(path: Path, when: int) -> None:
    """An sdist with sorted files, one time, and no names of this machine."""
    files: list[tuple[tarfile.TarInfo, bytes]] = []
    with tarfile.open(path) as archive:
        for one in archive.getmembers():
            content = archive.extractfile(one)
            files.append((one, content.read() if content else b""))
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for one, data in sorted(files, key=lambda pair: pair[0].name):
            one.mtime, one.uid, one.gid, one.uname, one.gname = when, 0, 0, "", ""
            one.mode = 0o755 if one.mode & 0o111 else 0o644
            one.pax_headers = {}
            archive.addfile(one, io.BytesIO(data) if one.isreg() else None)
    path.write_bytes(gzip.compress(plain.getvalue(), mtime=when))


def faults(wheel: Path, changes: str) -> list[str]:
    """What forbids a release: its size, its version, its changes."""
    found = []
    if wheel.stat().st_size > MOST_BYTES:
        found.append(f"{wheel.name} has {wheel.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
    if f"-{__version__}-" not in wheel.name:
        found.append(f"{wheel.name} is not of version {__version__}")
    if not re.search(rf"^## \[?{re.escape(__version__)}\]?( |$)", changes, re.M):
        found.append(f"CHANGELOG.md has no section '## {__version__}'")
    return found


def _said(*argv: str) -> str:
    return subprocess.run(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    """Build twice, compare, look at the result, and leave it in dist/."""
    with tempfile.TemporaryDirectory() as directory:
        first, second = (built(Path(directory) / name) for name in ("first", "second"))
        wrong = [
            f"{one.name} differs from build to build"
            for one, two in zip(first, second, strict=True)
            if _digest(one) != _digest(two)
        ]
        kept = [Path(shutil.copy2(path, ROOT / "dist")) for path in first]
    (wheel,) = (path for path in kept if path.suffix == ".whl")
    wrong += faults(wheel, (ROOT / "CHANGELOG.md").read_text())
    for tool in (["twine", "check", "--strict", *kept], ["check_wheel_contents", wheel]):
        if subprocess.run([sys.executable, "-m", *tool], check=False).returncode:
            wrong.append(f"{tool[0]} refuses it")
    for path in kept:
        print(f"{_digest(path)}  dist/{path.name}  {path.stat().st_size:,} bytes")
    print("\n".join(wrong) or f"hpcdl {__version__} could be released: tag v{__version__}, upload")
    return 1 if wrong else 0


if __name__ == "__main__":
    (ROOT / "dist").mkdir(exist_ok=True)
    sys.exit(main())
