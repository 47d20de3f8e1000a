-- The module of one release. The table `release` is written in front of this file when the
-- release is published; everything else is the same for all of them.

local stack = release.stack
if mode() == "unload" then
  -- What was loaded is taken away, also where this file has meanwhile another release.
  stack = os.getenv("HPCDL_STACK") or stack
end

whatis("Name: tensorflow")
whatis("Version: " .. release.version)
whatis("Category: machine learning")
whatis("Description: " .. release.summary)
whatis("URL: https://www.tensorflow.org")
whatis("Keywords: tensorflow, keras, horovod, mpi, python")

help([[
]] .. release.summary .. [[


  python train.py                      runs with TensorFlow and Horovod
  python -m venv --system-site-packages ~/my-env
                                       your own packages on top; they win over the stack's
  hpcdl job submit --help              batch jobs

Release ]] .. release.id .. [[

]])

-- One TensorFlow at a time: loading another version swaps it.
family("tensorflow")

prepend_path("PATH", pathJoin(stack, "bin"))
-- Lets virtual environments see the stack; see the comment in that folder's file.
prepend_path("PYTHONPATH", pathJoin(stack, "share", "hpcdl", "python"))
setenv("HPCDL_RELEASE", release.id)
setenv("HPCDL_STACK", stack)
