-- Reads GPU and driver version from the NVIDIA driver's files. `proc` is the directory /proc;
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

-- The model of the first GPU such as "Tesla P100-PCIE-16GB", or nil. Its place on the PCI bus is
-- not known, and a modulefile cannot list a directory: device 0 of every bus is tried first, then
-- the devices of bus 0, where virtual machines have theirs. None is tried without a driver.
local function gpu_model(proc)
  if driver_version(proc) == nil then
    return nil
  end
  local gpu = proc .. "/driver/nvidia/gpus/0000:%02x:%02x.0/information"
  for place = 0, 255 + 31 do
    local bus, device = place, 0
    if place > 255 then
      bus, device = 0, place - 255
    end
    local text = text_of(gpu:format(bus, device))
    if text then
      return text:match("Model:%s*([^\n]+)")
    end
  end
end

-- Whether the driver's name for a GPU means a model: as a word of it, for "L4" is no "L40S" and
-- "B200" no "GB200".
local function is_model(name, model)
  local word = "[^%w]" .. model:gsub("%W", "%%%0") .. "[^%w]"
  return (" " .. name .. " "):find(word) ~= nil
end
