"""TensorFlow compiled for one GPU generation, on Spack's own CUDA, cuDNN and NCCL.

What this adds to the builtin recipe: the ends of what each GPU can use (the builtin one knows
only beginnings), NCCL for the same GPU, the CUDA libraries at run time, Keras, a build against
Spack's CUDA where TensorFlow would download its own, and a bazel cache for machines without
internet. The versions and their sources are in hpcdl/facts of the hpcdl project.
"""

import os

from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.packages.py_tensorflow.package import PyTensorflow as BuiltinPyTensorflow

from spack.package import *


class PyTensorflow(BuiltinPyTensorflow):
    __doc__ = BuiltinPyTensorflow.__doc__

    maintainers("hpcdl")

    with when("+cuda"):
        # The newest CUDA each release can be built with.
        depends_on("cuda@:11", when="@:2.14")
        depends_on("cuda@:12", when="@2.15:2.17")
        # gpu_prim.h and others: tensorflow pull requests 90563 and 99364.
        depends_on("cuda@:12.6", when="@2.18:2.20")

        # cuDNN 8.8 and later carry no machine code for Kepler, 9.11 and later none for Maxwell,
        # Pascal and Volta (read from NVIDIA's wheels).
        for arch in ("35", "37"):
            depends_on("cudnn@:8.7", when=f"cuda_arch={arch}")
            conflicts("@2.15:", when=f"cuda_arch={arch}", msg="TensorFlow 2.15 needs CUDA 12.2, "
                      "which no longer compiles for Kepler")  # fmt: skip
        for arch in ("50", "52", "53", "60", "61", "62", "70", "72"):
            depends_on("cudnn@:9.10", when=f"cuda_arch={arch}")

        # Needed when it runs, not only when it is built.
        depends_on("cuda", type=("build", "link", "run"))
        depends_on("cudnn", type=("build", "link", "run"))
        depends_on("nccl", type=("build", "link", "run"), when="+nccl")
        for arch in CudaPackage.cuda_arch_values:
            depends_on(f"nccl cuda_arch={arch}", when=f"+nccl cuda_arch={arch}")

    # From 2.16 on `import tensorflow.keras` is Keras 3. Before, Keras depends on TensorFlow, and
    # the bundle hpcdl-tensorflow brings it.
    depends_on("py-keras@3.10:", when="@2.20", type="run")
    depends_on("py-keras@3.5:", when="@2.18:2.19", type="run")
    depends_on("py-keras@3:", when="@2.16:2.17", type="run")

    @property
    def local_cuda(self):
        """A tree laid out as TensorFlow's hermetic CUDA rules expect a local toolkit."""
        return join_path(self.stage.path, "local-cuda")

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        super().setup_build_environment(env)
        if self.spec.satisfies("@2.18: +cuda"):
            # Compile against Spack's libraries: without these, bazel fetches CUDA and cuDNN of
            # its own choice from NVIDIA.
            env.set("LOCAL_CUDA_PATH", self.local_cuda)
            env.set("LOCAL_CUDNN_PATH", self.spec["cudnn"].prefix)
            env.set("HERMETIC_CUDA_VERSION", str(self.spec["cuda"].version))
            env.set("HERMETIC_CUDNN_VERSION", str(self.spec["cudnn"].version.up_to(3)))
            if self.spec.satisfies("+nccl"):
                env.set("LOCAL_NCCL_PATH", self.spec["nccl"].prefix)

    def setup_run_environment(self, env: EnvironmentModifications) -> None:
        super().setup_run_environment(env)
        if self.spec.satisfies("+cuda"):
            # TensorFlow opens these by name when it finds a GPU.
            cuda = self.spec["cuda"].prefix
            folders = [cuda.lib64, cuda.extras.CUPTI.lib64, self.spec["cudnn"].prefix.lib]
            if self.spec.satisfies("+nccl"):
                folders.append(self.spec["nccl"].prefix.lib)
            for folder in folders:
                env.prepend_path("LD_LIBRARY_PATH", folder)
            # XLA looks for libdevice and ptxas here.
            env.append_flags("XLA_FLAGS", f"--xla_gpu_cuda_data_dir={cuda}")

    @run_before("configure")
    def make_local_cuda(self):
        """Link the toolkit's parts together: CUPTI has its own directory in Spack's CUDA."""
        if not self.spec.satisfies("@2.18: +cuda"):
            return
        cuda, cudnn = self.spec["cuda"].prefix, self.spec["cudnn"].prefix
        for folder, sources in (
            ("include", (cuda.include, cuda.extras.CUPTI.include)),
            ("lib", (cuda.lib64, cuda.extras.CUPTI.lib64)),
            ("bin", (cuda.bin, cuda.nvvm.bin)),
        ):
            self._link_all(sources, join_path(self.local_cuda, folder))
        self._link_all((cuda.nvvm,), join_path(self.local_cuda, "nvvm"))
        # Some headers are still looked for at their places in TensorFlow's own tree.
        third_party = join_path(self.local_cuda, "include", "third_party")
        gpus = join_path(third_party, "gpus", "cuda")
        self._link_all((cuda.include,), join_path(gpus, "include"))
        # Included by this path, as conda-forge's build has it.
        cupti = join_path(gpus, "extras", "CUPTI", "include")
        self._link_all((cuda.extras.CUPTI.include, cuda.include), cupti)
        self._link_all((cudnn.include,), join_path(third_party, "gpus", "cudnn"))
        if self.spec.satisfies("+nccl"):
            nccl = self.spec["nccl"].prefix
            self._link_all((nccl.include,), join_path(third_party, "nccl"))

    def _link_all(self, sources, folder):
        """Link all that lies in `sources`; what is there already, in a reused stage, stays."""
        mkdirp(folder)
        for source in sources:
            for name in os.listdir(source) if os.path.isdir(source) else ():
                target = join_path(folder, name)
                if not os.path.lexists(target):
                    symlink(join_path(source, name), target)

    @run_after("configure")
    def one_cuda(self):
        """Take out the path of a whole toolkit, which would win over the tree made above.

        TensorFlow's configure writes it; conda-forge's build takes it out, too.
        """
        if self.spec.satisfies("@2.18: +cuda"):
            with open(".tf_configure.bazelrc") as file:
                lines = file.readlines()
            with open(".tf_configure.bazelrc", mode="w") as file:
                file.writelines(line for line in lines if "CUDA_TOOLKIT_PATH" not in line)

    @run_after("configure")
    def use_bazel_cache(self):
        """Take bazel's downloads from HPCDL_BAZEL_CACHE, which a build with internet has filled.

        With HPCDL_BAZEL_OFFLINE set as well, a file that is not there is an error at once.
        """
        cache = os.environ.get("HPCDL_BAZEL_CACHE")
        if cache:
            with open(".tf_configure.bazelrc", mode="a") as file:
                # `build` lines count for every command that takes them. The second option has
                # this name in bazel 6, and as an alias in later ones.
                file.write(f"\nbuild --repository_cache={cache}\n")
                if os.environ.get("HPCDL_BAZEL_OFFLINE"):
                    file.write("build --experimental_repository_disable_download\n")
