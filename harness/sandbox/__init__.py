"""What stands around the worker process, so that a submission can hurt nobody but itself.

    judge ─► keeper ─► (bubblewrap ─►) waiter ─► worker   keeper: kills every descendant, watches memory, tasks, disk
      │  leash             │                      │       bubblewrap: namespaces; only what `policy` names is mounted
      │                    │              ┌───────┘       waiter: reports to the leash when the worker stops or ends
      │                    │              └─ confinement.confine(): limits, a uid of its own, no capabilities,
      │                    │                 Landlock, seccomp; before anything of the submission's is read
      └─ scratch/ ─────────┘
           lock            held while the judge lives; a later judge removes what a killed one left
           submission.py   read-only for the worker
           work/           the only place where the worker can write; it owns it

A worker is started by a new interpreter, or unless bubblewrap starts it forked by `fork_server`, a process that has
imported torch and has run no submission; keeper and waiter then are forks, too (`forked`, `program`).

confinement     privileges, landlock, seccomp (by syscalls' numbers): what the worker gives up
enclosure       a confined process, seen from the judge; footprint: what it takes of the machine; devices: its GPU

`tiers.strongest` says which layers hold on this machine, by trying them (`probe`). Covered: docs/sandbox.md. Not
covered: docs/security.md.

Of this package the worker imports `confinement` and what that imports, none of which needs more than the standard
library. `confined` runs any other module so, a compiler beside a submission for one; `leavings` reads what it left.
"""
