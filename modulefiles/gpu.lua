-- What the NVIDIA driver tells of this machine, through its files. `proc` is the folder /proc;
-- tests use another one. Both Lmod's modulefiles and its .modulerc.lua start with this.

local function text_of(path)
  local file = io.open(path)
  if file == nil then
    return nil
  end
  local text = file:read("*all")
  file:close()
  return text
end

-- The driver's version such as "535.104.05", or nil without a driver.
local function driver_version(proc)
  local text = text_of(proc .. "/driver/nvidia/version")
  return text and text:match("Kernel Module.-%s(%d+%.[%d.]+)")
end

-- The model of the first GPU such as "Tesla P100-PCIE-16GB", or nil. A PCI bus has at most 256
-- numbers, and none is tried without a driver.
local function gpu_model(proc)
  if driver_version(proc) == nil then
    return nil
  end
  for bus = 0, 255 do
    local text = text_of(proc .. ("/driver/nvidia/gpus/0000:%02x:00.0/information"):format(bus))
    if text then
      return text:match("Model:%s*([^\n]+)")
    end
  end
end

