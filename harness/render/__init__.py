"""Showing boards and runs. Nothing here decides or measures anything.

media       document (a terminal, or Markdown), html, sheet (CSV), junit, github
subjects    tables (boards, verdicts, lists); a module each: boards, run, timing, compare, check, doctor ...
pieces      charts (rows) and plots (x and y) as SVG, fit (what a width takes), colour, axis, counts
"""
