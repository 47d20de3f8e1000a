"""The training program that jobs run, checks measure and users copy from.

It is launched (`hpcdl train`, `python -m hpcdl.train`); docs/architecture.md says who imports it.
`program` is one rank from its arguments to its exit code: `options` says what is asked, `startup`
where this process stands among the ranks, `ranks` joins them and averages. `rank_run` is one run:
`models` and `data` give the network and its input, `fitting` the compiled model, `fit` and how it
resumes, `callbacks` times, checkpoints and signals.
"""
