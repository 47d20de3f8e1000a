"""`python -m hpcdl.train`: one rank of a training run, or the search for its batch."""

import sys

from hpcdl.train import batch_size_search, program

if __name__ == "__main__":
    arguments = sys.argv[1:]
    search = "--find-batch" in arguments
    sys.exit(batch_size_search.main(arguments) if search else program.main(arguments))
