"""The studies: published questions asked again, as data.

A study is one YAML file (facts/studies; study_format.yaml) that load.py makes values of model.py.
study_plan.py makes its matrix into the points of sweeps, run.py queues them and waits, collect.py
reads their results, forecast.py predicts what is too large, judge.py answers, the other modules
show it. Jobs come from the generator, numbers from the training program and the model.
"""
