"""Show boards and runs. This room decides and measures nothing.

media       document (a terminal, or Markdown), html, sheet (CSV), junit, github
subjects    boards (a board's columns), notes (what is said below, and why not ranked), left_out; verdicts (the last
            line), lists (stored runs, problems, controls); run, timing, cases, kernels, compare, check, repro, watch,
            profile, imported, doctor: a module each
pieces      charts (rows) and plots (x and y) as SVG, with axis; fit (what a width takes), legible (text from outside),
            figures (numbers as they are shown), counts, colour, progress (a bar)
"""
