"""The small programs that measure a node or a network with what training uses.

Checks run them on compute nodes, `python -m hpcdl.measure.NAME`; each writes a result.json in the
shape of a training's (hpcdl.measure.measurement). Nothing imports them.
"""
