"""Know before you submit: what a job on more GPUs will give, and what will limit it.

From one GPU's measured step, the layers of the real network and the published figures of the
hardware, the model predicts the step of any number of GPUs. `request.answer` is the entry for
other packages, `validate.validate` compares the model with published rows; the model is pure:
network (layers), overlap (all-reduces and the recursion), step, parallel (what is split), forecast.
"""
