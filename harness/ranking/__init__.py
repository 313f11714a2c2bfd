"""What figures mean, once they are measured. Nothing here measures, and nothing needs torch.

stats        samples ─► latency, interval, ratio
roofline     cost and datasheet ─► floor: the least time that a device allows
board        entries ─► ranks
comparison   two runs, or a duel's pairs ─► faster, slower, same, ambiguous
"""
