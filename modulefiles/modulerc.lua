-- Which version `module load tensorflow` gives: the job's partition decides, then the GPU that
-- is found, then the site's default. The table `dispatch` is written in front of this file.
-- Lmod gives such a file few functions: no ipairs, no pairs, no string library.

-- The model of the first NVIDIA GPU as its driver tells it, or nil. A PCI bus has at most 256
-- numbers, and nothing is tried where there is no driver.
local function gpu_model()
  local proc = dispatch.proc .. "/driver/nvidia/"
  if not isFile(proc .. "version") then
    return nil
  end
  for bus = 0, 255 do
    local file = io.open(proc .. ("gpus/0000:%02x:00.0/information"):format(bus))
    if file then
      local text = file:read("*all")
      file:close()
      return text:match("Model:%s*([^\n]+)")
    end
  end
end

local function by_gpu()
  local model = dispatch.gpus[1] and gpu_model()
  for row = 1, model and #dispatch.gpus or 0 do
    if model:find(dispatch.gpus[row].model, 1, true) then
      return dispatch.gpus[row].version
    end
  end
end

local version = dispatch.partitions[os.getenv("SLURM_JOB_PARTITION") or ""]
  or by_gpu()
  or dispatch.default
module_version("tensorflow/" .. version, "default")
