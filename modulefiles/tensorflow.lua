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
-- What it was built upon, such as the site's Open MPI: from where it was found, which need not be
-- in MODULEPATH, and so may be hidden from users.
for _, module in ipairs(release.needs.modules or {}) do
  append_path("MODULEPATH", module.folder)
  depends_on(module.name)
end

-- A folder of this release, or of the one that was loaded.
local function folder_of(path)
  local own = path:sub(1, #release.stack) == release.stack
  return own and stack .. path:sub(#release.stack + 1) or path
end

-- What the build set when it was tested, such as the folders of CUDA's libraries.
for name, value in pairs(release.environment) do
  if type(value) == "table" then
    for place = #value, 1, -1 do
      prepend_path(name, folder_of(value[place]))
    end
  else
    setenv(name, value)
  end
end
setenv("HPCDL_RELEASE", release.id)
setenv("HPCDL_STACK", stack)

-- The guard: one line that says why this release does not fit here.

local function driver_fault(needs, inside_job)
  local have = driver_version(release.proc)
  if needs == nil or (have == nil and not inside_job) then
    return nil
  elseif have == nil then
    return "this node has no NVIDIA driver"
  elseif convertToCanonical(have) < convertToCanonical(needs.from) then
    return "the NVIDIA driver is " .. have .. ", it needs " .. needs.from .. " or newer"
  elseif needs.branch and tonumber(have:match("^%d+")) > needs.branch then
    return "the NVIDIA driver is " .. have .. "; branch " .. needs.branch
      .. " is the last one that drives this GPU"
  end
end

local function gpu_fault(models)
  local have = models and gpu_model(release.proc)
  if have == nil then
    return nil
  end
  for _, model in ipairs(models) do
    if have:find(model, 1, true) then
      return nil
    end
  end
  return "the GPU is a " .. have .. ", it has device code for " .. table.concat(models, ", ")
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
  -- slurmd sets this in batch scripts and steps. A shell of `salloc` has the job's number, and
  -- may well be on a login node.
  local inside_job = os.getenv("SLURMD_NODENAME") ~= nil
  local fault = host_fault(release.needs.cpu_flags)
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
