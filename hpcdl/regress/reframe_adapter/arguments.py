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
_OURS = frozenset({"-r", "--run", "--report-file", "--perflogdir", "--exec-policy", "--nocolor",
                   "--restore-session", "--prefix", "-s", "--stage", "-o", "--output",
                   "--keep-stage-files", "--dont-restage", "--duration",
                   "--reruns"})  # fmt: skip
_NO_RUN = frozenset({"-l", "--list", "-L", "--list-detailed", "--list-tags", "--describe",
                     "--dry-run", "--ci-generate", "-h", "--help", "-V", "--version",
                     "--show-config", "--detect-host-topology",
                     "--upgrade-config-file"})  # fmt: skip
_SHORT = frozenset("CcRntrsolLhV")


def refuse_ours(words: Sequence[str]) -> None:
    """Refuse arguments that would take the run out of hpcdl's hands.

    Raises:
        BadInput: the first of them, with what to use instead.
    """
    for word in words:
        name = word.partition("=")[0]
        if not word.startswith("--") and word.startswith("-") and word[1:2] in _SHORT:
            name = word[:2]
        known = {*_INSTEAD, *_OURS, *_NO_RUN}
        # argparse takes the beginning of a long option for it.
        long = name.startswith("--") and len(name) > 3
        meant = [one for one in known if one == name or (long and one.startswith(name))]
        if meant:
            hint = _INSTEAD.get(meant[0], "it is not for a run of `hpcdl check run`")
            raise BadInput(f"{word[:40]} is not passed on to ReFrame", hint=hint)
