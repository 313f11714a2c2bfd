"""Evaluations on many machines: a Ray cluster places them, and the judge is the same as of `eval`.

    eval --cluster ─► link ═► driver ─► placement ── Judging, an actor ──► job ─► harness.library.judges ─► the run
                                           │  attempts: which result counts            on one card of one node
                                           └─ pins: which nodes may judge   ◄── facts: what a node has

engine       Ray itself, imported late: nothing else needs it
facts        what a machine has: cards, versions, the sandbox, the hash of the code
pins         what a job asks of a node, and where a node differs
parcel       a problem's files, sent by their hash
job          the actor: the judge as a process of its own
attempts     which result of a job counts
driver       the process that speaks with Ray, which Ray ends where its head is lost
link         the way to that process, and to another one where it is lost
placement    jobs placed, and tried again where they are lost
prospects    whether a job that waits may begin, and why it may not
watching     one job's attempts, watched
spread       the same submissions on every card: `doctor --calibrate --fleet`
batch        all submissions of an evaluation at once
node         `podium node`: starts and stops Ray here
census       `podium cluster`: the nodes, and what is wrong with them

It needs no server. Ray holds no truth: what it forgets is judged again.
"""
