-- What accepting asks for every time: whether the same bytes were removed; and what boards ask for: what was taken off.
CREATE INDEX submissions_of_source ON submissions (competition_id, sha256);
CREATE INDEX submissions_removed ON submissions (removed_at) WHERE removed_at IS NOT NULL;
CREATE INDEX submissions_deleted ON submissions (deleted_at) WHERE deleted_at IS NOT NULL;
