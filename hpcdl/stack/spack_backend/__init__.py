"""Stacks by Spack: `environment` is Spack itself, what is wanted and its lock."""
