"""Runs on disk, and the facts about them that boards need.

store        one JSON file a run, and the sources: the truth
  index      a cache over them, in SQLite; it may be deleted at any time
    tables   its database, kept up to date with the files
    entry    a run as boards see it, and which run stands for a submission
    scan     one look at the folders of runs: which files are there, and which changed since they were read
run_file     a run file: its bytes, and the run in it
whole_file   writes a file so that a reader sees all of it or nothing
calibration_file  reads and writes a calibration in a file of its own
"""
