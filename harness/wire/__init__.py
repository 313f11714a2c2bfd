"""What the judge and the worker have in common: memory that both map, messages, and the flush before a call.

    judge ─┬─ protocol ────── JSON over a socket: requests, replies, file descriptors ──┬─ worker
           ├─ arena ───────── host memory of both: inputs, outputs                      │
           ├─ tree, objects ─ what of a call's data is no tensor                        │
           ├─ device_arena ── a GPU's memory of both                                    │
           └─ flusher ─────── empties the caches, whoever makes the call                ┘

Nothing here imports more than torch: it is loaded beside the submission.
"""
