"""The machine that measures: which device, in what state, and who else is there.

device        finds the device; what configs/devices says of it
environment   versions, system, load, isolation: what a run notes of where it was measured
lock          one evaluation at a time on a device ◄── lock_note: for how long at most
gauges        clocks, temperature, power of a GPU ◄── nvidia_smi, amd_smi
neighbours    what others take of the processors while a worker is timed
stopwatch     how long something of the judge's own takes
"""
