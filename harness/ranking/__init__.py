"""What figures mean, once they are measured. Nothing here measures, and nothing needs torch.

stats        samples ─► latency, interval, ratio
roofline     cost and datasheet ─► floor: the least time that a device allows
fleet        scores on several cards ─► what the card adds to an interval
board        entries ─► ranks
speed        a ratio and the device's noise ─► faster, slower, same, ambiguous
doubt        what speaks against holding two runs against each other
comparison   two runs, or a duel's pairs ─► a finding of each case and of all
"""
