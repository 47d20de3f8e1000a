"""Know before you submit: what a job on more GPUs will give, and what will limit it.

From one GPU's step, measured here or published, two numbers predict the step of any number of
GPUs: what waiting for the slowest rank costs, exchanging gradients, and input. `request.answer` is
the entry for other packages. Coefficients are fitted by `python -m tools.validate`.
"""
