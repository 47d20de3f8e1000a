"""The lowest layer: commands, files, locks, errors, documents with positions.

Nothing here knows of Slurm, of TensorFlow or of a site. Every layer above uses these
instead of the standard library's bare calls, so that each command leaves a record, each
write is atomic, and each failure says what to do next.
"""
