"""`python -m hpcdl.train`: one rank of a training run."""

import sys

from hpcdl.train.program import main

if __name__ == "__main__":
    sys.exit(main())
