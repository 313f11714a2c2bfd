-- SERIAL_KEY stands for the type of an automatic primary key, which differs between SQLite and PostgreSQL.
-- Times are ISO 8601 in UTC with microseconds, all of one length, so that they sort as text.

CREATE TABLE users (
    id SERIAL_KEY,
    name TEXT NOT NULL UNIQUE,          -- lower case
    created_at TEXT NOT NULL,
    blocked_because TEXT
);

-- Only a hash of a client's id is stored. A client without a user waits for approval.
CREATE TABLE clients (
    sha256 TEXT PRIMARY KEY,
    user_id BIGINT REFERENCES users (id),
    provider TEXT NOT NULL,
    created_at TEXT NOT NULL
);

CREATE TABLE sessions (
    sha256 TEXT PRIMARY KEY,
    user_id BIGINT NOT NULL REFERENCES users (id),
    expires_at TEXT NOT NULL
);

-- A competition is defined by its file. This table gives it a number and records that an administrator took it down.
CREATE TABLE competitions (
    id SERIAL_KEY,
    name TEXT NOT NULL UNIQUE,
    created_at TEXT NOT NULL,
    deleted_at TEXT
);

CREATE TABLE invites (
    code TEXT NOT NULL,
    competition_id BIGINT NOT NULL REFERENCES competitions (id),
    created_at TEXT NOT NULL,
    user_id BIGINT REFERENCES users (id),  -- who has used it
    used_at TEXT,
    PRIMARY KEY (code, competition_id)
);

CREATE TABLE members (
    user_id BIGINT NOT NULL REFERENCES users (id),
    competition_id BIGINT NOT NULL REFERENCES competitions (id),
    joined_at TEXT NOT NULL,
    PRIMARY KEY (user_id, competition_id)
);

CREATE TABLE submissions (
    id SERIAL_KEY,
    competition_id BIGINT NOT NULL REFERENCES competitions (id),
    user_id BIGINT NOT NULL REFERENCES users (id),
    file_name TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    source BYTEA NOT NULL,
    mode TEXT NOT NULL,                 -- test, benchmark, leaderboard, profile
    gpu TEXT NOT NULL,                  -- as the competition spells it
    submitted_at TEXT NOT NULL,
    deleted_at TEXT,                    -- by its author
    removed_at TEXT,                    -- by an administrator
    removed_because TEXT
);
CREATE INDEX submissions_of_user ON submissions (user_id, id);
CREATE INDEX submissions_of_competition ON submissions (competition_id, id);

-- The queue. A job is inserted with its submission and its first state. Pending jobs are claimed in the order of ids.
CREATE TABLE jobs (
    id SERIAL_KEY,
    submission_id BIGINT NOT NULL UNIQUE REFERENCES submissions (id),
    gpu TEXT NOT NULL,
    state TEXT NOT NULL,                -- pending, running, succeeded, failed, timed_out, hacked
    attempt INTEGER NOT NULL DEFAULT 0, -- the number of attempts
    started_at TEXT,                    -- the last attempt
    ended_at TEXT,
    heartbeat_at TEXT,
    progress TEXT,                      -- one line: the current step
    error TEXT                          -- one sentence, if the job did not succeed
);
CREATE INDEX jobs_by_state ON jobs (state, gpu, id);

CREATE TABLE states (
    job_id BIGINT NOT NULL REFERENCES jobs (id),
    at TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    detail TEXT
);
CREATE INDEX states_of_job ON states (job_id, at);

-- The facts of a run that boards need, and its file under results/. The id is made from job and attempt.
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    job_id BIGINT NOT NULL REFERENCES jobs (id),
    attempt INTEGER NOT NULL,
    path TEXT NOT NULL,
    verdict TEXT NOT NULL,
    message TEXT NOT NULL,
    unranked TEXT,
    score_ns DOUBLE PRECISION,
    low_ns DOUBLE PRECISION,
    high_ns DOUBLE PRECISION,
    device TEXT NOT NULL,
    device_name TEXT NOT NULL,
    started_at TEXT NOT NULL,
    ended_at TEXT NOT NULL,
    UNIQUE (job_id, attempt)
);
