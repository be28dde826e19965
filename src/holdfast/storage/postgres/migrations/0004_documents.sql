-- Documents that all nodes share: see docs/decisions/0038-shared-documents.md.

CREATE TABLE holdfast.documents (
    name     text COLLATE "C" PRIMARY KEY,
    revision bigint NOT NULL,
    body     bytea -- NULL: removed
);

CREATE INDEX documents_by_revision ON holdfast.documents (revision);

-- One row, which every change locks until its commit: a reader that has seen a revision has seen all before it.
CREATE TABLE holdfast.document_revision (newest bigint NOT NULL);
INSERT INTO holdfast.document_revision VALUES (0);

-- The new revision, or 0 if the document has another revision than `expected` (0: it does not exist).
CREATE FUNCTION holdfast.document_put(of_name text, expected bigint, new_body bytea) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    UPDATE holdfast.document_revision SET newest = newest + 1 RETURNING newest INTO number;
    IF expected <> coalesce((SELECT revision FROM holdfast.documents WHERE name = of_name), 0) THEN
        RETURN 0;
    END IF;
    INSERT INTO holdfast.documents VALUES (of_name, number, new_body)
        ON CONFLICT (name) DO UPDATE SET revision = excluded.revision, body = excluded.body;
    RETURN number;
END $$;
