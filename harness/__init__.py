"""Podium: a judge, a clock and a leaderboard for attention kernels.

    cli ─► judge, render ─► ranking, store, stats, roofline ─► model, errors
             │
             └─ arena + protocol ─► worker   (the sandboxed process that runs the submission)

Importing this package imports no torch; neither do the verbs that only read results.
"""

__version__ = "0.1.0"
