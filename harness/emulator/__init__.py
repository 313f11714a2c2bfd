"""An AMD GPU in software: runs the code objects that compilers make, on numpy arrays.

    from harness.emulator import Allocation, run

    outcome = run(code_object, "scale", grid=(4, 1, 1), block=(256, 1, 1), kernargs=[..], memory=[..])
    outcome.clean, outcome.findings, outcome.not_emulated, outcome.instructions

    launch        a launch, once it is loaded, in batches ─► machine   waves, barriers, limits; executions counts
    program       a kernel's instructions, each made a step once
    code_object   ELF, descriptor, metadata (message_pack), lines
    decoding      bytes to instructions, by tinygrad's tables
    chips         those that are emulated: whose tables are theirs, and which instructions of them they lack
    pseudocode    AMD's pseudocode to numpy, of tokens, expressions, terms, calls and bitfields
    semantics     what an instruction does: the pseudocode or a correction, by handwritten, division and conversions
    vector, moves, scalar, matrix, dual, atomics, lanes   what each kind of instruction does
    memory, shared_memory                               allocations with bounds; LDS with races
    clocks, polls                                       order by flags and atomics; loads that wait for a flag
    access, lds, flat, direct                           loads and stores, by destination
    addresses, places, shapes                           where an access goes, what is there, what it moves
    banks, cache_lines                                  counts by addresses: LDS conflicts, lines of global memory
    state, start, operands, results, clamps             registers: their first contents, reads and writes
    arithmetic, number_formats                          the pseudocode's functions; floats of 8, 6 and 4 bits
    findings, witness, encounters                       faults; uses of values never written; both sides of a race
    native                                              the inner loops in C; numpy does the same without it

It needs tinygrad and pyelftools (`make setup-offline`). No other package of harness needs them. docs/emulator.md says
what is exact and what is not emulated. The emulator does not model time.
"""

from harness.emulator.decoding import available
from harness.emulator.findings import KernelFinding, LaunchOutcome
from harness.emulator.launch import run
from harness.emulator.memory import Allocation, of_array, of_pointer

__all__ = ["Allocation", "KernelFinding", "LaunchOutcome", "available", "of_array", "of_pointer", "run"]
