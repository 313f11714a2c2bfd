"""Does not put the rows where they belong: it changes the cache's first row so that the sum is right.

problem: append
verdict: wrong answer
seen: cache
defence: D2, state is compared bit for bit
"""


def custom_kernel(data):
    cache, rows, where = data
    cache[0] += rows.sum(0) - cache[where].sum(0)
    return cache.sum(0)
