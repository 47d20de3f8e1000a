"""Stacks that Spack compiles: from the resolution to a release that is one view.

`environment` renders what is wanted, `concretize` lets Spack solve it, `make` installs it in
parallel and keeps the binaries; `view` makes the release's tree, `adopt` the release,
`spack_build` goes the whole way. `tool` is Spack itself.
"""
