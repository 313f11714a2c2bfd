"""A competition server. popcorn-cli, Podium's own client and the upload form submit; one queue feeds one judge for each
card.

    popcorn ─┐                                                             ┌─► verdicts, stored_run
    board    ├─► guard ─► app ─► admission ─► store (queue) ─► dispatcher ─┤
    client ──┘                                                             └─► narration ─► events ─► pages, streams

    program       `serve`: one process; serving: the value that all parts of the server share
    app           the routes: `popcorn` (the interface of popcorn-cli), `board` (pages, data, feeds), and errors
    competition   configs/competitions, a YAML file each; standings: a competition's board; failures: cards that failed
    sessions      signing in; limits, descriptors: how much is allowed; exhaustion: whether the system ran out of it
    removal       submissions taken off boards; recall: judges ended before their verdict; log: lines on stderr
"""
