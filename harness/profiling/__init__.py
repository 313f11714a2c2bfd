"""Where the time of a submission goes, as the vendor's own profiler sees it.

    profile(...) ─► program.py, under the profiler:  inputs ─► warm-up ─► [call] [call] [call]
        │                │                                               only what is in brackets is profiled
        │                ├─► program.json      when each call was made, or how the submission failed
        │                └─► printed.txt       what it and the profiler printed
        ├─ ncu            ─► profile.ncu-rep, kernels.csv               NVIDIA
        ├─ rocprof        ─► *_kernel_trace.csv, *_kernel_stats.csv, *_counter_collection.csv, *.pftrace      AMD
        ├─ torch_profiler ─► trace-N.json, operators.json               a processor, or a GPU without counters
        ├─ counting       ─► counts by kernel and source line            AMD, emulated
        └─► profile.json      the excerpt: what `--json` prints

    tool: which profiler fits a device. process: the profiled program, started and ended.

A profiler needs more of the machine than a sandbox allows: the submission runs with the rights of whoever profiles it,
who should know what is in it. Nothing here is measured by the judge's clock, and nothing is ranked.
"""
