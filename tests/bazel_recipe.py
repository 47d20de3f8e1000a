"""What the recipe of TensorFlow asks of bazel: run by `spack -e ENVIRONMENT python`, as JSON.

The recipe's own methods make the tree of CUDA, the build's environment, .tf_configure.bazelrc and
bazel's command line, here, in the working directory. Only what it would be given differs: where
CUDA, cuDNN, NCCL and a C++ compiler are (arguments 2 to 5), the Python, and TensorFlow's own
`configure`, which `_configure` stands for.
"""

import json
import os
import sys
from pathlib import Path

import spack.environment
from spack.util.environment import EnvironmentModifications
from spack.util.executable import Executable


def _configure():
    """Write what TensorFlow's configure.py makes of its environment, as far as CUDA goes."""
    names = (
        "HERMETIC_CUDA_VERSION",
        "HERMETIC_CUDNN_VERSION",
        "LOCAL_CUDA_PATH",
        "LOCAL_CUDNN_PATH",
        "LOCAL_NCCL_PATH",
        "HERMETIC_CUDA_COMPUTE_CAPABILITIES",
    )
    lines = [f'build:cuda --repo_env {name}="{os.environ[name]}"' for name in names]
    lines.append(f'build --action_env CUDA_TOOLKIT_PATH="{os.environ["CUDA_TOOLKIT_PATH"]}"')
    lines.append("build:opt --copt=-march=native\n")
    Path(".tf_configure.bazelrc").write_text("\n".join(lines))
    for name in ("configure.py", "tensorflow/tools/pip_package/build_pip_package.py"):
        Path(name).touch()


def main():
    out, cuda, cudnn, nccl, compiler = sys.argv[1:]
    environment = spack.environment.active_environment()
    (spec,) = (one for one in environment.all_specs() if one.name == "py-tensorflow")
    for name, prefix in (("cuda", cuda), ("cudnn", cudnn), ("nccl", nccl)):
        spec[name].set_prefix(prefix)
    package, asked, before = spec.package, [], dict(os.environ)
    Path(package.stage.path).mkdir(parents=True, exist_ok=True)
    given = {
        "python": Executable(sys.executable),
        "python_platlib": str(Path.cwd() / "platlib"),
        "spack_cc": compiler,
        "make_jobs": 2,
        "env": os.environ,
        "bazel": lambda *words: asked.extend(words),
    }
    for name, value in given.items():
        setattr(package.module, name, value)
        setattr(sys.modules[type(package).__mro__[1].__module__], name, value)
    wanted = EnvironmentModifications()
    package.setup_build_environment(wanted)
    wanted.apply_modifications()
    package.make_local_cuda()
    _configure()
    package.post_configure_fixes()
    package.one_cuda()
    package.use_bazel_cache()
    package.build(spec, spec.prefix)
    changed = {name: text for name, text in os.environ.items() if before.get(name) != text}
    Path(out).write_text(json.dumps({"arguments": asked, "environment": changed}))


main()
