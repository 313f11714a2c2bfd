"""Everything that judge and worker share: memory that both map, messages, and the flush of a GPU's caches.

    judge ─┬─ protocol ────── JSON over a socket: requests, replies, file descriptors ──┬─ worker
           ├─ arena ───────── shared host memory: inputs, outputs                       │
           ├─ tree, objects ─ the data of a call apart from its tensors                 │
           ├─ device_arena ── shared GPU memory                                         │
           ├─ words ───────── words on which their streams on a GPU wait                 │
           └─ flusher ─────── empties a GPU's caches before a call         ┘

Nothing here imports more than torch: it is loaded in the process of the submission.
"""
