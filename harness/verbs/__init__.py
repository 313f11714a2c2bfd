"""What each verb does: a module a verb, under the verb's own name where it has work of its own. None prints; `render`
shows what they find.

    judge      eval · check · verify · replay · repro · watch (eval --watch)
    look       leaderboard · show · compare · report · problems
    work       new · forget · profile · doctor, with calibration and spread (doctor --calibrate, --fleet)
    shared     recipe (repro and duels: how a stored run was made)

Options and exit codes are in `cli`.
"""
