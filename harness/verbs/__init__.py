"""What each verb does: a module a verb, under the verb's own name where it has work of its own. None prints; `render`
shows what they find.

    judge      eval · check, with checkup (what it finds) · verify · replay · repro · watch (eval --watch)
    look       leaderboard · show · compare · report · export · problems · schema · docs
    work       new · new_problem · import_ · forget · profile · doctor, with calibration, spread (--calibrate, --fleet)
    shared     recipe (repro and duels: how a stored run was made) · forewarning (a case too large to interpret)

Options and exit codes are in `cli`.
"""
