"""The judge: everything that decides. It never imports a submission and never unpickles what one sends.

evaluate ─► inputs    secret seed ─► data, expected output ─► arena
         ─► session   one worker process: spawn, ask, kill
         ─► check     snapshot against expectation ─► mismatch report
"""
