"""Replies with half a million digits, which takes the judge time to read.

verdict: integrity violation
seen: reply has [0-9,]+ bytes
defence: D6, a reply is short, and is read when the clock has stopped
"""

import sys

outputs = sys.modules["harness.worker.outputs"].Outputs
describe = outputs.describe


def describe_at_length(self, output):
    described = describe(self, output)
    described["outputs"][0]["stride"] = [int("9" * 4300)] * 120
    return described


outputs.describe = describe_at_length
sys.set_int_max_str_digits(0)


def custom_kernel(data):
    return data[0] * 2
