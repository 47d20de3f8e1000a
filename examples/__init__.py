"""Programs to copy: they use nothing of hpcdl.

`keras_digits`, `distribute_digits`, `horovod_digits` and `parameter_server_digits` are whole
training programs, one for each way; `frameworks` has the same training in PyTorch, JAX and MXNet.
An installed hpcdl has this directory as `hpcdl.examples`.
"""
