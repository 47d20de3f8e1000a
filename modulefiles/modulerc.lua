-- Which version `module load tensorflow` selects: by the job's partition, else by the GPU that
-- is found, else the site's default. The table `dispatch` is written in front of this file.
-- Lmod gives such a file few functions: no ipairs, no pairs, no string library.

local function by_gpu()
  local model = dispatch.gpus[1] and gpu_model(dispatch.proc)
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
