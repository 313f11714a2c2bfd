"""What measured figures mean. Nothing here measures, and nothing needs torch.

stats        samples ─► latency, interval, ratio
roofline     cost and datasheet ─► floor: the least time that a device allows
fleet        scores on several cards ─► what the card adds to an interval
board        entries ─► ranks
speed        a ratio and the device's noise ─► faster, slower, same, ambiguous
doubt        the reasons not to compare two runs
comparison   two runs, or a duel's pairs ─► a finding for each case and for all
"""
