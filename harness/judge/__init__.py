"""The judge decides everything. It never imports a submission and never unpickles data from one.

evaluate, duel ─► trial ─► entrant    one submission: its workers, test cases, pilot, sittings
                           ─► calls   one call: deal, time, check
                              ─► inputs            secret seed ─► data, expected output
                              ─► clock, sandwich   pour, flush, stamps, snapshot, with session and stage
                              ─► checked_call      snapshot against expectation ─► mismatch report, with hints
                              ─► whereabouts       the place in the code where a slow call is

one call      session (the exchange with one worker), stage (its memory), caches, reply, seen, structure, printed,
              worker_program
the clock     clocks (the choice), clock (CPU), sandwich and hold (GPU), worker_clock (where neither works),
              null_calls, clock_calibration, null_worker and offsets (the fixed cost of timing), pace, sitting,
              timed_process, bounds, anchor
the answer    reference, inputs, seeds, secret_cases, selection; difference (one tensor), checked_call, tally,
              ratios and cells (all calls), wrong_together, mismatch, blame, ranges and hints (the report), death (how a
              process ended)
the run       measured (latencies, the score), marks (labels; why it is not ranked), ending (the verdict, in words)
limits        deadline (an evaluation's and a process's; that of a single call is `Limits.call_s`, kept by session),
              share (of a GPU's memory)
other forms   foreign (the choice), gpumode, kernelbench, guest (limits on their code), conditions (the random numbers
              and fresh memory of that code), checker and opaque (who decides), opinion (a folder's own checker),
              copies, canaries, scope, baselines; emulation, profiled
around it     assembly, spare; examination (the test cases), precompilation (compiling ahead); exemplar (which wrong
              case is shown), mistakes (a problem's known mistakes)
"""
