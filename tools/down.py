"""`hpcdl cluster down` for a checkout without its environment: nothing is needed but Python.

A cluster that is up is found by its record, which names its site file. Only where there is no
such record is the site file read, by what the environment has and this Python may lack.
"""

import sys

from hpcdl.cli import main

try:
    sys.exit(main(["cluster", "down"]))
except ModuleNotFoundError as lack:
    if lack.name != "yaml":
        raise
    print("nothing was running")
