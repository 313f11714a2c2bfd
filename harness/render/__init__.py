"""Show boards and runs. This room decides and measures nothing.

media       document (a terminal, or Markdown), html, sheet (CSV), junit, github
subjects    boards (a board's columns), notes (lines below boards, reasons for no rank), left_out; verdicts (the last
            line), lists (stored runs, problems, controls); run, timing, cases, kernels, compare, check, repro, watch,
            profile, imported, doctor: a module each
pieces      charts (rows) and plots (x and y) as SVG, with axis; fit (fitting a width), legible (text from outside),
            figures (numbers as text), counts, colour, progress (a bar)
"""
