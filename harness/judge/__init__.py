"""The judge: everything that decides. It never imports a submission and never unpickles what one sends.

evaluate, duel ─► trial ─► entrant    one submission: its workers, test cases, pilot, sittings
                           ─► calls   one call: deal, time, check
                              ─► inputs            secret seed ─► data, expected output
                              ─► clock, sandwich   pour, flush, stamps, snapshot, by session and stage
                              ─► check             snapshot against expectation ─► mismatch report, with hints
                              ─► whereabouts       where a call is that takes too long
"""
