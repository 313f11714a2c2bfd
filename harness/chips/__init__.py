"""Facts of chips that need not be in this machine: limits, sizes, and resources of compiled code.

    targets       a chip's registers, shared memory and waves ─► occupancy of a kernel on it
    code_object   assembly, PTX and compilers' logs           ─► each kernel's registers, spills, matrix instructions

Nothing here needs torch or a compiler.
"""
