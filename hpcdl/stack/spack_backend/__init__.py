"""Stacks that Spack compiles: from the resolution to a release that is one view.

`environment` is Spack itself, what is wanted and its solution, `spack_build` installs it and keeps
the binaries, `adopt` makes the release of it.
"""
