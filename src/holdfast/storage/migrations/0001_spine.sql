-- Workspaces, sessions, messages, runs, files, and the numbered log.
--
-- A body is the JSON of a domain type, as it is sent; columns contain only values that are searched. Every table but
-- `workspaces` carries the workspace's small key, so that ids need to be unique only within a workspace.
-- A place combines that key and a number in one integer, `key << 40 | number`: appending to a table that is ordered by
-- one integer changes a single page.

PRAGMA application_id = 1212957766; -- "HLDF"

CREATE TABLE workspaces (
    key     INTEGER PRIMARY KEY,
    id      TEXT NOT NULL UNIQUE,
    path    BLOB NOT NULL UNIQUE,       -- file names are bytes
    epoch   INTEGER NOT NULL,
    newest  INTEGER NOT NULL,           -- the last event number assigned
    held    INTEGER NOT NULL,           -- the number of events in the log
    clean   INTEGER NOT NULL,           -- 1: closed properly
    ticket  INTEGER NOT NULL,           -- the last batch of this epoch
    answers BLOB NOT NULL               -- and its answers
) STRICT;

CREATE TABLE sessions (
    ord        INTEGER PRIMARY KEY,
    workspace  INTEGER NOT NULL REFERENCES workspaces (key),
    id         TEXT NOT NULL,
    parent     TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    body       BLOB NOT NULL,
    UNIQUE (workspace, id)
) STRICT;

CREATE INDEX sessions_by_parent ON sessions (workspace, parent);

CREATE TABLE messages (
    ord       INTEGER PRIMARY KEY,      -- its position in the conversation: times may be equal
    workspace INTEGER NOT NULL,
    id        TEXT NOT NULL,
    session   TEXT NOT NULL,
    run_id    TEXT NOT NULL,
    body      BLOB NOT NULL,
    UNIQUE (workspace, id),
    FOREIGN KEY (workspace, session) REFERENCES sessions (workspace, id) ON DELETE CASCADE
) STRICT;

CREATE INDEX messages_by_session ON messages (workspace, session);
CREATE INDEX messages_by_run ON messages (workspace, run_id) WHERE run_id <> '';

-- Growth of a message since it was put, so that streaming does not rewrite the message.
CREATE TABLE growth (
    ord     INTEGER PRIMARY KEY,
    message INTEGER NOT NULL REFERENCES messages (ord) ON DELETE CASCADE,
    body    BLOB NOT NULL
) STRICT;

CREATE INDEX growth_by_message ON growth (message);

-- Ordered by number, so that accepting a run appends; `rank` is the queue order. A run that was not changed since it
-- was accepted has no body: its event contains it, and is kept as long as the run has no end.
CREATE TABLE runs (
    place     INTEGER PRIMARY KEY,
    workspace INTEGER NOT NULL,
    run_id    TEXT NOT NULL,
    session   TEXT NOT NULL,
    rank      INTEGER NOT NULL,
    folded    INTEGER NOT NULL,
    outcome   TEXT,
    body_hash BLOB NOT NULL,
    body      BLOB,                     -- NULL: see the event of this place
    UNIQUE (workspace, run_id)
) STRICT;

-- A run is in one of these. Accepting a run inserts into the short one, because clients wait for it.
CREATE INDEX runs_ended ON runs (workspace, session) WHERE outcome IS NOT NULL;
CREATE INDEX runs_open ON runs (workspace, session, rank, folded, outcome) WHERE outcome IS NULL;

-- A run ends once. The code checks this; the trigger enforces it.
CREATE TRIGGER runs_end_once BEFORE UPDATE ON runs WHEN OLD.outcome IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'the run has ended');
END;

-- Long prompts and attachments, apart from the rows that change at every step.
CREATE TABLE inputs (
    place       INTEGER PRIMARY KEY REFERENCES runs (place) ON DELETE CASCADE,
    prompt      TEXT NOT NULL,
    attachments BLOB NOT NULL
) STRICT;

CREATE TABLE events (
    place INTEGER PRIMARY KEY,
    at    INTEGER NOT NULL,             -- when it was stored, for the retention
    body  BLOB NOT NULL
) STRICT;

CREATE TABLE files (
    ord       INTEGER PRIMARY KEY,
    workspace INTEGER NOT NULL,
    session   TEXT NOT NULL,
    path      TEXT NOT NULL,
    version   INTEGER NOT NULL,
    body      BLOB NOT NULL,
    UNIQUE (workspace, session, path, version),
    FOREIGN KEY (workspace, session) REFERENCES sessions (workspace, id) ON DELETE CASCADE
) STRICT;

CREATE TABLE read_marks (
    workspace INTEGER NOT NULL,
    session   TEXT NOT NULL,
    path      TEXT NOT NULL,
    read_at   INTEGER NOT NULL,
    PRIMARY KEY (workspace, session, path),
    FOREIGN KEY (workspace, session) REFERENCES sessions (workspace, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Statistics of a full database for the query planner, written once instead of measured: few workspaces, many rows in
-- each. Without them the planner assumes that a search by workspace alone returns few rows.
ANALYZE;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('sessions', 'sqlite_autoindex_sessions_1', '10000 5000 1'),
    ('sessions', 'sessions_by_parent', '10000 5000 500'),
    ('messages', 'sqlite_autoindex_messages_1', '1000000 500000 1'),
    ('messages', 'messages_by_session', '1000000 500000 100'),
    ('messages', 'messages_by_run', '1000000 500000 20'),
    ('growth', 'growth_by_message', '1000 20'),
    ('runs', 'sqlite_autoindex_runs_1', '100000 50000 1'),
    ('runs', 'runs_ended', '100000 50000 20'),
    ('runs', 'runs_open', '100 50 10 1 1 1'),
    ('inputs', NULL, '1000'),
    ('events', NULL, '100000'),
    ('files', 'sqlite_autoindex_files_1', '10000 5000 100 10 1'),
    ('read_marks', 'read_marks', '10000 5000 100 1');
