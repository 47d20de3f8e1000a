"""Arguments that are passed on to ReFrame: any but those by which hpcdl runs and reads it."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdl.system.errors import BadInput

_INSTEAD = {
    "-C": "use --config FILE", "--config-file": "use --config FILE",
    "-c": "use --checks PATH", "--checkpath": "use --checks PATH",
    "-R": "use --checks PATH", "--recursive": "use --checks PATH",
    "-n": "use --name", "--name": "use --name", "-t": "use --tag", "--tag": "use --tag",
    "--system": "use --partition",
    "--max-retries": "use --retries", "--repeat": "use --runs", "--distribute": "use --distribute",
    "--mode": "a mode may set any of these",
}  # fmt: skip
# What hpcdl itself sets, and what would make it no run.
_REFUSED = [
    *_INSTEAD, "-r", "--run", "--report-file", "--perflogdir", "--exec-policy", "--nocolor",
    "--restore-session", "--prefix", "-s", "--stage", "-o", "--output", "--keep-stage-files",
    "--dont-restage", "--duration", "--reruns", "-l", "--list", "-L", "--list-detailed",
    "--list-tags", "--describe", "--dry-run", "--ci-generate", "-h", "--help", "-V", "--version",
    "--show-config", "--detect-host-topology", "--upgrade-config-file",
]  # fmt: skip


def refuse_ours(words: Sequence[str]) -> None:
    """Refuse arguments that would take the run out of hpcdl's hands.

    Raises:
        BadInput: the first of them, with what to use instead.
    """
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        # argparse takes the beginning of a long option for it.
        meant = [one for one in _REFUSED
                 if one == name or (len(name) > 3 and one.startswith(name))]  # fmt: skip
        if meant:
            hint = _INSTEAD.get(meant[0], "it is not for a run of `hpcdl check run`")
            raise BadInput(f"{word[:40]} is not passed on to ReFrame", hint=hint)
