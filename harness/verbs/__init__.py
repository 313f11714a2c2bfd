"""What each verb does: a module a verb, under the verb's own name. None prints; `render` shows what they find.

    judge      eval · check · verify · replay · repro · watch (eval --watch)
    look       leaderboard · show · compare · report · problems
    work       new · forget · profile · doctor, with calibration (doctor --calibrate)

Options and exit codes are in `cli`.
"""
