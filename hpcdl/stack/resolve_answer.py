"""What `hpcdl stack resolve` answers: a `Resolution` per partition, an `Answer` to `--why-not`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcdl import facts
from hpcdl.stack.resolve_facts import Tried
from hpcdl.stack.resolve_solution import Choice
from hpcdl.stack.resolve_solver import Rule


@dataclass(frozen=True)
class Resolution:
    """The newest working set for one partition and one backend.

    `choices` is empty where nothing fits. `problems` are contradictions with what the site has
    (a driver that is too old or too new): each a chain of rules; `choices` then holds what
    would fit without that. `wanted` says whether the site's stacks ask for this backend here.
    `tried` is the build of these versions for these GPUs that was made and loaded, if one was.
    """

    partition: str
    stack: str | None
    backend: str
    wanted: bool
    gpu: str | None
    compute: str | None
    driver: str | None
    pins: Mapping[str, str]
    choices: tuple[Choice, ...]
    problems: tuple[tuple[Rule, ...], ...]
    notes: tuple[str, ...]
    tried: Tried | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Chosen versions by component; empty where nothing fits."""
        return {choice.component: choice.version for choice in self.choices}

    @property
    def fits(self) -> bool:
        """Whether a set fits what the site has, its driver included."""
        return bool(self.choices) and not self.problems

    @property
    def proof(self) -> str:
        """How sure the set is: as it was tried as a whole, else its weakest version."""
        if self.tried is not None:
            return self.tried.proof
        levels = [choice.proof for choice in self.choices] or ["doubtful"]
        return max(levels, key=facts.PROOFS.index)


@dataclass(frozen=True)
class Answer:
    """The answer to `--why-not`: the chain of limits, or the set that results.

    `newest` is a newer version that fits too; empty where there is none.
    """

    question: str
    partition: str
    backend: str
    gpu: str | None
    chain: tuple[Rule, ...]
    versions: Mapping[str, str]
    newest: str

    @property
    def fits(self) -> bool:
        """Whether the version works here after all."""
        return bool(self.versions)
