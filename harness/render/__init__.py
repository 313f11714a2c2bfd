"""Show boards and runs. This room decides and measures nothing.

media       document (a terminal, or Markdown), html, sheet (CSV), junit, github
subjects    tables (one board's tables, verdicts, lists), boards (a problem's boards, made of those), left_out
            run, timing, cases, kernels, compare, check, repro, watch, profile, imported, doctor: a module each
pieces      charts (rows) and plots (x and y) as SVG, with axis; fit (fitting a width), legible (text from outside),
            figures (numbers as text), counts, colour, progress (a bar)
"""
