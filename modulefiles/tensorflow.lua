-- The module of one release. The table `release` is written in front of this file when the
-- release is published; everything else is the same for all of them.

local stack = release.stack
if mode() == "unload" then
  -- Unload what was loaded, even if this file now belongs to another release.
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


  python train.py                      runs with what is named above
  python -m venv --system-site-packages ~/my-env
                                       your own packages; they take precedence over the stack's
                                       (`pip install --user` is refused: use such an environment)
  hpcdl job submit --help              batch jobs

Release ]] .. release.id .. [[

]])

-- One TensorFlow at a time: loading another version swaps it.
family("tensorflow")

prepend_path("PATH", pathJoin(stack, "bin"))
-- Lets virtual environments see the stack; see the comment in that directory's file.
prepend_path("PYTHONPATH", pathJoin(stack, "share", "hpcdl", "python"))
-- Modules it was built with, such as the site's Open MPI, from the directory where they were
-- found. That directory need not be in MODULEPATH, so it may be hidden from users.
for _, module in ipairs(release.needs.modules or {}) do
  append_path("MODULEPATH", module.directory)
  depends_on(module.name)
end

-- A directory of this release, or of the one that was loaded.
local function directory_of(path)
  local own = path:sub(1, #release.stack) == release.stack
  return own and stack .. path:sub(#release.stack + 1) or path
end

-- Variables of the tested build, such as the directories of CUDA's libraries.
for name, value in pairs(release.environment) do
  if type(value) == "table" then
    for place = #value, 1, -1 do
      prepend_path(name, directory_of(value[place]))
    end
  else
    -- What the user had comes back with `module unload`. Flags are added to the user's own.
    local before = os.getenv(name)
    if before and before ~= "" and name:match("_FLAGS$") and mode() == "load" then
      value = before:find(value, 1, true) and before or before .. " " .. value
    end
    pushenv(name, value)
  end
end
setenv("HPCDL_RELEASE", release.id)
setenv("HPCDL_STACK", stack)

-- The guard: one line with the reason if this release does not fit this machine.

-- Set by modules of other Pythons: this release's Python would look for its own modules there.
local function python_fault()
  local home = os.getenv("PYTHONHOME") or ""
  if home ~= "" then
    return "PYTHONHOME is " .. home .. ", and Python will not start; "
      .. "`unset PYTHONHOME`, or unload the Python module that sets it"
  end
end

-- What another module's variable has in the way of the release's own files. Users' programs may
-- need it, so this is a warning. `names` are files in a directory of the variable.
local function shadow(variable, names)
  for directory in (os.getenv(variable) or ""):gmatch("[^:]+") do
    if directory:sub(1, #stack) ~= stack then
      for _, name in ipairs(names) do
        local file = io.open(directory .. "/" .. name)
        if file then
          file:close()
          return directory .. "/" .. name
        end
      end
    end
  end
end

local function shadows()
  local found = {}
  local libraries = { "libtensorflow_framework.so.2", "libtensorflow_cc.so.2" }
  if release.needs.gpus then
    for _, name in ipairs({ "libcudnn.so.9", "libcudnn.so.8", "libnccl.so.2", "libcudart.so.12",
                            "libcudart.so.11.0", "libcublas.so.12", "libcublas.so.11" }) do
      table.insert(libraries, name)
    end
  end
  if release.environment.LD_LIBRARY_PATH == nil then
    found[#found + 1] = shadow("LD_LIBRARY_PATH", libraries)
  end
  found[#found + 1] = shadow("PYTHONPATH", { "numpy/__init__.py", "tensorflow/__init__.py",
    "keras/__init__.py", "h5py/__init__.py", "google/protobuf/__init__.py" })
  return found
end

local function driver_fault(needs, inside_job)
  local have = driver_version(release.proc)
  if needs == nil or (have == nil and not inside_job) then
    return nil
  elseif have == nil then
    return "this node has no NVIDIA driver"
  elseif convertToCanonical(have) < convertToCanonical(needs.from) then
    return "the NVIDIA driver is " .. have .. ", but the release needs " .. needs.from .. " or newer"
  elseif needs.branch and tonumber(have:match("^%d+")) > needs.branch then
    return "the NVIDIA driver is " .. have .. "; branch " .. needs.branch
      .. " is the last one that supports this GPU"
  end
end

local function gpu_fault(models)
  local have = models and gpu_model(release.proc)
  if have == nil then
    return nil
  end
  for _, model in ipairs(models) do
    if is_model(have, model) then
      return nil
    end
  end
  return "the GPU is a " .. have .. ", but the release has device code for " .. table.concat(models, ", ")
end

local function host_fault(flags)
  local info = flags and text_of(release.proc .. "/cpuinfo")
  local have = info and info:match("flags%s*:([^\n]*)")
  if have == nil then
    return nil
  end
  for _, flag in ipairs(flags) do
    if not (have .. " "):find(" " .. flag .. " ", 1, true) then
      return "the CPU has no " .. flag
    end
  end
end

if mode() == "load" then
  for _, file in ipairs(shadows()) do
    LmodMessage("warning: " .. file .. " is of another module or of yours, and the release has its own: "
      .. "unload that module, or unset the variable, if TensorFlow or Horovod behaves oddly")
  end
  -- slurmd sets this in batch scripts and steps. A shell of `salloc` has the job's number, and
  -- may well be on a login node.
  local inside_job = os.getenv("SLURMD_NODENAME") ~= nil
  local fault = python_fault()
    or host_fault(release.needs.cpu_flags)
    or driver_fault(release.needs.driver, inside_job)
    or gpu_fault(release.needs.gpus)
  if fault then
    local line = myModuleFullName() .. " does not fit this machine: " .. fault
    if inside_job then
      LmodError(line)
    else
      -- Not LmodWarning: after one, `module load` itself counts as failed.
      LmodMessage("warning: " .. line)
    end
  end
end
