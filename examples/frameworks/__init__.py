"""The same training in PyTorch and in JAX, beside `hpcdl train` in TensorFlow: programs to copy.

`torch_networks` and `jax_networks` train AlexNet, GoogLeNet, ResNet-50 and ViT-S/16 with as many
weights as `hpcdl train` has, on the same batches, and leave the same result.json. They use nothing
of hpcdl; `harness` and `pictures` lie beside them.
"""
