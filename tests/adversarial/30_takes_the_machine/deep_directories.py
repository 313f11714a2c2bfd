"""Makes 5,000 directories within each other, too deep to be counted or removed by their names.

verdict: runtime error
seen: a directory that the judge cannot look into
defence: D5, what cannot be counted is not allowed
"""

import os
import time

for _ in range(5_000):
    os.mkdir("deeper")
    os.chdir("deeper")


def custom_kernel(data):
    time.sleep(2)
    return data[0] * 2
