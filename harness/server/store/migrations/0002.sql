-- Each acceptance looks for removed submissions of the same bytes; boards look for submissions that were taken off.
CREATE INDEX submissions_of_source ON submissions (competition_id, sha256);
CREATE INDEX submissions_removed ON submissions (removed_at) WHERE removed_at IS NOT NULL;
CREATE INDEX submissions_deleted ON submissions (deleted_at) WHERE deleted_at IS NOT NULL;
