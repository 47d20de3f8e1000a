"""The Slurm client: ask, submit, parse.

`client` runs Slurm's own commands and gives frozen records; `parse` holds the pure parsers of
what they print; `rules` holds what changed in which release, from facts. Nothing here knows
of a site or of TensorFlow.
"""
