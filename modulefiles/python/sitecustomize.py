"""Lets every Python of the loaded stack's version see the stack, after all that it has itself.

The module puts this folder on PYTHONPATH. Python imports `sitecustomize` when it starts: here
the stack's packages go to the end of sys.path, so a virtual environment made with
`python -m venv` sees TensorFlow, and what is installed in it comes first. A Python of another
version finds no folder of its version below the stack and changes nothing. It must run on any
Python, also on version 2.
"""

import os
import sys


def _append_stack():
    here = os.path.dirname(os.path.abspath(__file__))
    stack = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    name = "python%d.%d%s" % (sys.version_info[0], sys.version_info[1], getattr(sys, "abiflags", ""))
    packages = os.path.join(stack, "lib", name, "site-packages")
    implementation = getattr(getattr(sys, "implementation", None), "name", "cpython")
    if implementation == "cpython" and os.path.isdir(packages) and packages not in sys.path:
        sys.path.append(packages)


def _run_the_next():
    """Run the sitecustomize that this one hides, such as the system's."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in sys.path:
        path = os.path.join(folder, "sitecustomize.py")
        if os.path.abspath(folder) != here and os.path.isfile(path):
            scope = {"__name__": "sitecustomize", "__file__": path}
            with open(path) as source:
                exec(compile(source.read(), path, "exec"), scope)
            return


_append_stack()
_run_the_next()
