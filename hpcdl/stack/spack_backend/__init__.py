"""Stacks that Spack compiles: from the resolution to a release that is one view.

`environment` renders what is wanted and lets Spack solve it, `spack_build` installs it and keeps
the binaries, `adopt` makes the release of it. `tool` is Spack itself.
"""
