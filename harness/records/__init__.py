"""Runs on disk, and what boards need of them.

store        one JSON file a run, and the sources: the truth
  index      a cache over them, in SQLite; it may be deleted at any time
    tables   its database, kept up to date with the files
    entry    a run as boards see it, and which run stands for a submission
whole_file   writes a file so that a reader sees all of it or nothing
"""
