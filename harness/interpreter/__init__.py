"""Triton kernels on the CPU, with the arithmetic of the hardware.

    TRITON_INTERPRET=1 ─► import triton ─► install() ─► import the submission ─► call it within cuda_on_cpu()
                                              │
        triton.runtime.interpreter            ▼                          what upstream gets wrong (see each module)
          InterpreterBuilder      ◄── arithmetic, microscaling, memory   bf16, fp8, NaN, dot_scaled, atomics
                                  ◄── extents                            loads and stores out of bounds
                                  ◄── element_order                      can_reorder: another order
          ReduceOps, ScanOps      ◄── reductions                         16-bit sums, argmax
          FunctionRewriter        ◄── source                             and/or/not, min/max, loop indices
          InterpretedFunction     ◄── launch, front_end, elementwise     argument types, loop bounds, compile errors
                                  ◄── promises                           a false tl.multiple_of
          Autotuner, driver       ◄── autotune, card_driver              needs a device to time on
          everything else         ◄── refused, by refusal                refused in one sentence
                                              │
                                              ▼
                              self_check: small kernels, run as any kernel is; InterpreterUnfit if one is wrong

`installation` is the entry point. `number_formats` has the formats that numpy lacks. The process that runs the
submission installs the interpreter before it imports the submission.

Tested with triton 3.6.0, 3.7.1 and 3.9.0, torch 2.13.0 and numpy 2.4. For other versions the self-check decides.

A kernel that Triton's front end refuses ends in Triton's CompilationError, as on a device. CannotInterpret is raised
for inline assembly, libdevice and other external functions, arithmetic on fp8, casts that Triton does not compile,
kernels without readable source, and every operation that this version's interpreter lacks.
"""
