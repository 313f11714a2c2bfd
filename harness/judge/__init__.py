"""The judge: everything that decides. It never imports a submission and never unpickles what one sends.

evaluate, duel ─► trial ─► entrant    one submission: its workers, test cases, pilot, sittings
                           ─► calls   one call: deal, time, check
                              ─► inputs            secret seed ─► data, expected output
                              ─► clock, sandwich   pour, flush, stamps, snapshot, by session and stage
                              ─► checked_call      snapshot against expectation ─► mismatch report, with hints
                              ─► whereabouts       where a call is that takes too long

the call      session (the exchange with one worker), stage (its memory), reply, structure, printed, worker_program
the clock     clocks (which one), clock (a CPU's), sandwich and hold (a GPU's), worker_clock (where neither works),
              null_calls, clock_calibration and null_worker (what timing itself takes), pace, sitting, timed_process,
              bounds, anchor
the answer    reference, inputs, seeds, secret_cases, selection; difference (one tensor), checked_call, tally and
              ratios (all calls), mismatch, ranges and hints (the report), death (how a process ended)
the run       measured (latencies, the score), marks (labels; why it is not ranked), ending (the verdict, in words)
limits        deadline (the evaluation's and a process's; a single call's is `Limits.call_s`, kept by session)
other forms   foreign (which one), gpumode, kernelbench, guest (limits on their code), conditions (what that code draws
              and finds in memory), checker and opaque (who decides), opinion (what a folder's checker says), copies,
              canaries, scope, baselines; emulation, profiled
at hand       assembly, spare; examination (the test cases), precompilation (compiling ahead); exemplar (which wrong
              case is shown), mistakes (a problem's own)
"""
