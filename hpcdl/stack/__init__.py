"""The software stack: resolve what fits, build it, verify it, publish it atomically.

`release` is what other packages see: a frozen value and its readers. `recipe` chooses wheels
by hpcdl/facts, `horovod` compiles, `build` makes the immutable `tree`, `verify` proves it through
its own module, `publish` switches one link. What Spack compiles is the package `spack_backend`.
"""
