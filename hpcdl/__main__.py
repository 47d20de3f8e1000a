"""`python -m hpcdl` is the command line."""

import sys

from hpcdl.cli import main

sys.exit(main())
