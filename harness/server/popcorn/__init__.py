"""The HTTP interface of the stock popcorn-cli: its requests, and the answers that it understands.

    accounts      the account behind a request; registering, joining
    submissions   boards, GPUs, submitting, a person's own submissions, the ranked ones
    streams       submitting with a stream of events, for older clients
    admin         an administrator's requests, with a token
    answers       runs as the client reads them

Two generations are served, v1.3.23 and those from July 2026 on: see docs/server.md. Both ignore unknown keys. `podium`
is such a key, with further facts for Podium's own client.
"""
