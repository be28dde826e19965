-- Read marks contain the digest of the content; equal contents of file versions are stored once.

ALTER TABLE read_marks ADD COLUMN digest TEXT NOT NULL DEFAULT '';

CREATE TABLE contents (
    key       INTEGER PRIMARY KEY,
    workspace INTEGER NOT NULL,
    digest    BLOB NOT NULL,
    content   TEXT NOT NULL,
    UNIQUE (workspace, digest)
) STRICT;

-- NULL: an older row, whose body contains the content.
ALTER TABLE files ADD COLUMN content INTEGER REFERENCES contents (key);

CREATE INDEX files_by_content ON files (content) WHERE content IS NOT NULL;

-- The name of the trigger is part of the schema of existing databases and cannot change.
CREATE TRIGGER contents_nobody_needs AFTER DELETE ON files WHEN OLD.content IS NOT NULL
BEGIN
    DELETE FROM contents WHERE key = OLD.content AND NOT EXISTS (SELECT 1 FROM files WHERE content = OLD.content);
END;

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('contents', 'sqlite_autoindex_contents_1', '10000 5000 1'),
    ('files', 'files_by_content', '10000 2');
