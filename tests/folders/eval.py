"""A judge never imports this: it would end the process."""

raise SystemExit("eval.py was imported")
