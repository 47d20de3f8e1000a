"""`python -m hpcdl.train`: one rank of a training run, or the search for its batch."""

import sys

from hpcdl.train import batch_size_search, program


def main(argv: list[str]) -> int:
    """Run what the arguments ask for; returns the exit code."""
    search = "--find-batch" in argv
    return batch_size_search.main(argv) if search else program.main(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
