"""The studies: published questions asked again, each a Python file (examples/studies).

declared.py is what a file declares and reads it; cells.py makes its matrices into the points of
sweeps, running.py queues them and waits; measurements.py reads their results, findings.py predicts
what is too large and answers, charts.py and report.py show it.
"""
