"""The machine that measures: its device, its state, and other processes on it.

device        finds the device; what configs/devices says of it
environment   versions, system, load, isolation: the part of a run that says where it was measured
lock          one evaluation at a time on a device ◄── lock_note: for how long at most
gauges        clocks, temperature, power of a GPU ◄── nvidia_smi, amd_smi
processors    the part of the processors that a judge may count on
neighbours    the share of the processors that others take while a worker is timed
stopwatch     how long an operation of the judge itself takes
"""
