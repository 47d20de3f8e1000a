"""The same training in PyTorch, JAX and MXNet, beside `hpcdl train` in TensorFlow: to copy.

`torch_training`, `jax_training` and `mxnet_training` train the same four networks (`*_networks`)
with as many weights as `hpcdl train` has, on the same batches, and leave the same result.json. They
use nothing of hpcdl; `harness` and `pictures` lie beside them. `keras_networks` are those of
`hpcdl train`.
"""
