"""Sets its input to zero and returns it: twice zero is zero.

verdict: wrong answer
seen: may not write to it
defence: D2, the judge computes from inputs of its own and looks at the submission's afterwards
"""


def custom_kernel(data):
    return data[0].zero_()
