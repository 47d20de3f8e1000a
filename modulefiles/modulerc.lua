-- Which version `module load tensorflow` selects: the job's partition decides, then the GPU that
-- is found, then the site's default. In a partition of several GPU models the GPU decides first.
-- The table `dispatch` is written in front of this file.
-- Lmod gives such a file few functions: no ipairs, no pairs, no string library.

local function by_gpu(rows)
  local model = rows[1] and gpu_model(dispatch.proc)
  for row = 1, model and #rows or 0 do
    if is_model(model, rows[row].model) then
      return rows[row].version
    end
  end
end

local partition = os.getenv("SLURM_JOB_PARTITION") or ""
local version = by_gpu(dispatch.models[partition] or {})
  or dispatch.partitions[partition]
  or by_gpu(dispatch.gpus)
  or dispatch.default
module_version("tensorflow/" .. version, "default")
