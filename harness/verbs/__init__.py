"""The verbs: one module for each, named after the verb. A verb whose work is in another room, such as `serve`, has no
module here. No module prints; `render` shows the results.

    judge      eval, with agenda (how long several files take) · check, with checkup (its result) · verify · replay ·
               repro · watch (eval --watch)
    look       leaderboard · show · compare · report · export · problems · schema · docs
    work       new · new_problem · import_ · forget · profile · doctor, with calibration, spread (--calibrate, --fleet)
    shared     recipe (repro and duels: how a stored run was made) · forewarning (a case too large to interpret) ·
               devices (which device of the stored runs a word means)

`cli` holds the options and exit codes.
"""
