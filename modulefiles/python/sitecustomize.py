"""Lets every Python of the loaded stack's version see the stack, behind what it has itself.

The module adds this directory to PYTHONPATH. Python imports `sitecustomize` when it starts: here
the stack's packages join sys.path, so a virtual environment made with `python -m venv` sees
TensorFlow. What is installed in the environment comes first, then the stack, then what the
system and ~/.local have, for a stray numpy there would break TensorFlow. Of the stack's own
Python, directories of others that have a package of the stack (PYTHONPATH of another module,
~/.local) come after the stack's. For any other Python the stack comes last. A Python of another
version finds no directory of its version below the stack and changes nothing. It must run on any
Python, also on version 2.
"""

import os
import sys


def _packages():
    """The stack's packages for this very Python, or None."""
    here = os.path.dirname(os.path.abspath(__file__))
    stack = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    version = "%d.%d%s" % (sys.version_info[0], sys.version_info[1], getattr(sys, "abiflags", ""))
    directory = os.path.join(stack, "lib", "python" + version, "site-packages")
    implementation = getattr(getattr(sys, "implementation", None), "name", "cpython")
    return directory if implementation == "cpython" and os.path.isdir(directory) else None


def _place():
    """Where in sys.path the stack belongs: before the system's directories in an environment."""
    if sys.prefix != sys.base_prefix:
        import site

        system = site.getsitepackages([sys.base_prefix]) + [site.getusersitepackages()]
        for index, directory in enumerate(sys.path):
            if directory in system:
                return index
    return len(sys.path)


def _join():
    packages = _packages()
    if packages is not None and packages not in sys.path:
        sys.path.insert(_place(), packages)


def _put_others_behind():
    """Of the stack's own Python: whoever has another numpy comes after the stack's packages."""
    packages = _packages()
    if packages not in sys.path or not packages.startswith(sys.prefix + os.sep):
        return
    end = sys.path.index(packages)
    others = [one for one in sys.path[:end] if one and not _within(one) and _has_ours(one)]
    sys.path[: end + 1] = [one for one in sys.path[: end + 1] if one not in others] + others


def _within(directory):
    return os.path.abspath(directory).startswith((sys.prefix + os.sep, sys.base_prefix + os.sep))


def _has_ours(directory):
    names = ("tensorflow", "keras", "horovod", "numpy", "h5py", "ml_dtypes", "google/protobuf")
    return any(os.path.isdir(os.path.join(directory, name)) for name in names)


def _advise():
    """Say what works before pip refuses: the stack takes no packages, also no `--user` ones."""
    here = os.path.dirname(os.path.abspath(__file__))
    argv = getattr(sys, "orig_argv", [])[1:]
    is_pip = argv[:2] == ["-m", "pip"] or os.path.basename(argv[0] if argv else "")[:3] == "pip"
    if is_pip and "install" in argv and here.startswith(sys.prefix + os.sep):
        sys.stderr.write(
            "hpcdl: nothing is installed into a release, nor with --user; your packages go into\n"
            "an environment on top of it: python -m venv ~/my-env && ~/my-env/bin/pip install ...\n"
        )


def _run_the_next():
    """Run the sitecustomize that this one hides, such as the system's."""
    here = os.path.dirname(os.path.abspath(__file__))
    for directory in sys.path:
        path = os.path.join(directory, "sitecustomize.py")
        if os.path.abspath(directory) != here and os.path.isfile(path):
            scope = {"__name__": "sitecustomize", "__file__": path}
            with open(path) as source:
                exec(compile(source.read(), path, "exec"), scope)  # as site.py would  # nosec B102
            return


_join()
_put_others_behind()
_advise()
_run_the_next()
