"""Showing boards and runs: one module a medium. Nothing here decides or measures anything."""
