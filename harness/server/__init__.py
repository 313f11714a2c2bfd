"""A competition that others enter: popcorn-cli, our own client and the upload form send; one queue, one judge a card.

    popcorn ─┐                                                             ┌─► verdicts, kept   the run, stored
    board    ├─► guard ─► app ─► entry ─► store (queue) ─► dispatcher ─────┤
    client ──┘                                                             └─► narration ─► events ─► pages, streams

program       `serve`: one process; serving: what all of its parts are handed
app           the routes: `popcorn` (the interface of popcorn-cli), `board` (pages, data, feeds), errors as sentences
competition   configs/competitions, a YAML file each; standings: a competition's board; failures: of cards, at jobs
sessions      signing in; limits, descriptors, exhaustion: how much of what there may be, and where something ran out
removal       what is taken off boards; recall: a judge that is ended before its verdict; log: lines on stderr
"""
