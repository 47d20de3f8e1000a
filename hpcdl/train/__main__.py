"""`python -m hpcdl.train`: one rank of a training run."""

import sys

from hpcdl.train.stop_signals import StopSignals

SIGNALS = StopSignals()


def main(argv: list[str] | None = None) -> int:
    """Listen for signals, then train as `argv` says; returns the exit code."""
    SIGNALS.listen()
    from hpcdl.train.program import train

    return train(argv, SIGNALS)


if __name__ == "__main__":
    sys.exit(main())
