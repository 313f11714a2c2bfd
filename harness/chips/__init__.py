"""What is known of chips that need not be here: limits and sizes, and what compiled code says of itself.

    targets       a chip's registers, shared memory and waves ─► occupancy of a kernel on it
    code_object   assembly, PTX and compilers' logs           ─► each kernel's registers, spills, matrix instructions

Nothing here needs torch or a compiler.
"""
