"""Profile a submission with the vendor's own profiler: where its time goes.

    profile(...) ─► program.py, under the profiler:  inputs ─► warm-up ─► [call] [call] [call]
        │                │                                               only the calls in brackets are profiled
        │                ├─► program.json      when each call was made, or how the submission failed
        │                └─► printed.txt       the output of the submission and the profiler
        ├─ ncu            ─► profile.ncu-rep, kernels.csv               NVIDIA
        ├─ rocprof        ─► *_kernel_trace.csv, *_kernel_stats.csv, *_counter_collection.csv, *.pftrace      AMD
        ├─ torch_profiler ─► trace-N.json, operators.json               a CPU, or a GPU without counters
        ├─ counting       ─► counts by kernel and source line            AMD, emulated
        └─► profile.json      the excerpt, which `--json` prints

    tool: which profiler fits a device. process: starts and ends the profiled program.

A profiler needs more access to the machine than a sandbox allows. So the submission runs with the user's own rights,
and the user should know its code. Nothing here is measured by the judge's clock, and nothing is ranked.
"""
