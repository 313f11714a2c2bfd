"""An AMD GPU in software: runs the code objects that compilers make, on numpy arrays.

    from harness.emulator import Allocation, run

    outcome = run(code_object, "scale", grid=(4, 1, 1), block=(256, 1, 1), kernargs=[..], memory=[..])
    outcome.clean, outcome.findings, outcome.not_emulated, outcome.instructions

    launch        a launch, in batches ─► machine   waves, barriers, limits; executions counts
    program       a kernel's instructions, each made a step once
    code_object   ELF, descriptor, metadata, lines      decoding    bytes to instructions, by tinygrad's tables
    chips         which of the tables' instructions a chip lacks
    pseudocode    AMD's pseudocode to numpy, of tokens, expressions, terms, calls and bitfields
    semantics     what an instruction does: the pseudocode or a correction, by handwritten, division and conversions
    vector, moves, scalar, matrix, dual, atomics, lanes   what each kind of instruction does
    memory, shared_memory                               allocations with bounds; LDS with races
    clocks, polls                                       what flags and atomics order; which loads wait for a flag
    access, lds, flat, direct                           loads and stores, by where they go
    addresses, places, shapes                           where an access goes, what lies there, what it moves
    banks, cache_lines                                  by addresses: conflicts in LDS, lines of global memory
    state, start, operands, results, clamps             registers: as a wave begins, as they are read and written
    arithmetic, number_formats                          what the pseudocode's functions do; floats of 8, 6 and 4 bits
    findings, witness, encounters                       what is wrong; what nobody wrote and is used; sides of a race
    native                                              the inner loops in C, which numpy does as well

It needs tinygrad and pyelftools (`make setup-offline`); nothing else imports this package. docs/emulator-limits.md
says what is exact and what is not emulated. It tells nothing of time.
"""

from harness.emulator.decoding import available
from harness.emulator.findings import KernelFinding, LaunchOutcome
from harness.emulator.launch import run
from harness.emulator.memory import Allocation, of_array, of_pointer

__all__ = ["Allocation", "KernelFinding", "LaunchOutcome", "available", "of_array", "of_pointer", "run"]
