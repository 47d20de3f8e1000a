"""The studies: published questions asked again, each a Python file (examples/studies).

declared.py is what a file declares and reads it; cells.py makes its matrices into the points of a
sweep and reads their results, running.py queues them and waits; findings.py predicts what is too
large and answers, report.py shows it.
"""
