-- Deleted sessions leave no content; answers to requests are numbered inputs.

-- Ids of runs whose session was deleted: they are never used again.
CREATE TABLE removed_runs (
    workspace INTEGER NOT NULL,
    run_id    TEXT NOT NULL,
    PRIMARY KEY (workspace, run_id)
) STRICT, WITHOUT ROWID;

-- Requests for permission and batches of questions without an answer: the first one that is stored closes them.
CREATE TABLE requests (
    workspace INTEGER NOT NULL,
    id        TEXT NOT NULL,
    session   TEXT NOT NULL,
    PRIMARY KEY (workspace, id)
) STRICT, WITHOUT ROWID;

-- Work that has to be done once after a migration, outside of a transaction; a row is deleted when it is done.
CREATE TABLE upkeep (
    task TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

INSERT INTO upkeep (task) VALUES ('remove content');

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('removed_runs', 'removed_runs', '10000 5000 1'),
    ('requests', 'requests', '10 5 1');
