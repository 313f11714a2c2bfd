"""The confinement of the worker process: a submission can harm only itself.

    judge ─► keeper ─► (bubblewrap ─►) waiter ─► worker   keeper: kills every descendant, watches memory, tasks, disk
      │  leash             │                      │       bubblewrap: namespaces; mounts only the paths of `policy`
      │                    │              ┌───────┘       waiter: tells the leash when the worker stops or ends
      │                    │              └─ confinement.confine(): limits, a uid of its own, no capabilities,
      │                    │                 Landlock, seccomp; before any file of the submission is read
      └─ scratch/ ─────────┘
           lock            held while the judge lives; a later judge removes the leftovers of a killed one
           submission.py   read-only for the worker
           work/           the only place where the worker can write; it owns it

A new interpreter starts a worker. Unless bubblewrap starts it, it may instead be forked by `fork_server`, a process
that has imported torch and has run no submission. Then keeper and waiter are forks too (`forked`, `program`).

confinement     privileges, landlock, seccomp (with the numbers of syscalls): the rights that the worker gives up
enclosure       the judge's side of a confined process; footprint: its use of the machine; devices: its GPU

`tiers.strongest` tries which layers hold on this machine (`probe`). Covered: docs/sandbox.md. Not covered:
docs/security.md.

From this package the worker imports `confinement` and its imports, which need only the standard library. `confined`
runs any other module in the same confinement, such as a compiler beside a submission; `leavings` reads its results.
"""
