"""The HTTP interface that the stock popcorn-cli speaks: what it asks, and the answers that it understands.

accounts      who asks; registering, joining
submissions   boards, GPUs, submitting, one's own submissions, the ranked ones
streams       the same as one stream of events, for older clients
admin         what an administrator does with a token
answers       runs as the client reads them

Two generations are served, v1.3.23 and those of July 2026 on: see docs/server.md. Both ignore keys that they do not
know; `podium` is one such key, with what our own client wants to know beyond.
"""
