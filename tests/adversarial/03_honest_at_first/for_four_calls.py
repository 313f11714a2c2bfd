"""Computes what is tested and the first timed calls; from then on returns its last answer again.

verdict: wrong answer
seen: a benchmark case is wrong
defence: D2, timed calls are checked as well
timed: true
"""

calls = 0
answer = None


def custom_kernel(data):
    global answer, calls
    x = data[0]
    calls += x.shape[0] == 64
    if calls <= 4:
        answer = x * 2
    return answer
