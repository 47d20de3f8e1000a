"""hpcdl: from bare Slurm to verified TensorFlow training, from one site file."""

__version__ = "0.1.0"
