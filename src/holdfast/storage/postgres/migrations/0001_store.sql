-- Workspaces, sessions, messages, runs, files, the numbered log, and the function that applies a batch.
--
-- A body is the JSON of a domain type, as it is sent; other columns hold only what is searched. Every table carries the
-- small key of its workspace, so that ids need to be unique only within a workspace. There are no foreign keys: `apply`
-- is the only writer, and the check of a reference would lock the row of the session at each message.
-- Ids are compared byte by byte, as in the other stores.

CREATE TABLE holdfast.workspaces (
    key       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id        text COLLATE "C" NOT NULL UNIQUE,
    place     text COLLATE "C" NOT NULL,  -- the disks from which the path can be reached
    path      bytea NOT NULL,             -- file names are bytes
    epoch     bigint NOT NULL DEFAULT 0,  -- grows with each owner; writes of earlier owners are refused
    is_closed boolean NOT NULL DEFAULT true,
    revision  bigint NOT NULL DEFAULT 0,  -- grows with each write: a batch applies to the state that it was decided on
    newest    bigint NOT NULL DEFAULT 0,  -- the last event number given
    held      bigint NOT NULL DEFAULT 0,  -- number of stored events
    ticket    bigint NOT NULL DEFAULT 0,  -- the owner's last batch,
    answers   bytea NOT NULL DEFAULT '',  -- its answers,
    answered  bigint NOT NULL DEFAULT 0,  -- and the newest number after it
    UNIQUE (place, path)
) WITH (fillfactor = 40); -- every batch updates the row: it stays in its page

CREATE TABLE holdfast.sessions (
    workspace  integer NOT NULL,
    id         text COLLATE "C" NOT NULL,
    ord        bigint GENERATED ALWAYS AS IDENTITY,
    parent     text COLLATE "C" NOT NULL,
    updated_at bigint NOT NULL,
    body       bytea NOT NULL,
    PRIMARY KEY (workspace, id)
) WITH (fillfactor = 70);

CREATE INDEX sessions_by_parent ON holdfast.sessions (workspace, parent);

CREATE TABLE holdfast.messages (
    workspace integer NOT NULL,
    id        text COLLATE "C" NOT NULL,
    ord       bigint GENERATED ALWAYS AS IDENTITY, -- the place in the conversation: times may be equal
    session   text COLLATE "C" NOT NULL,
    run_id    text COLLATE "C" NOT NULL,
    body      bytea NOT NULL,
    PRIMARY KEY (workspace, id)
);

CREATE INDEX messages_by_session ON holdfast.messages (workspace, session, ord);
CREATE INDEX messages_by_run ON holdfast.messages (workspace, run_id) WHERE run_id <> '';

-- Growth of a message since it was stored, so that streaming does not rewrite it.
CREATE TABLE holdfast.growth (
    workspace integer NOT NULL,
    message   text COLLATE "C" NOT NULL,
    ord       bigint GENERATED ALWAYS AS IDENTITY,
    body      bytea NOT NULL,
    PRIMARY KEY (workspace, message, ord)
);

-- `rank` is the order in which runs are to run. The prompt is apart from the body, which each step rewrites.
CREATE TABLE holdfast.runs (
    workspace   integer NOT NULL,
    run_id      text COLLATE "C" NOT NULL,
    number      bigint NOT NULL,
    session     text COLLATE "C" NOT NULL,
    rank        bigint NOT NULL,
    is_folded   boolean NOT NULL,
    outcome     text,
    body_hash   bytea NOT NULL,
    body        bytea NOT NULL,
    prompt      bytea NOT NULL,
    attachments bytea,
    brief       bytea,
    PRIMARY KEY (workspace, run_id)
) WITH (fillfactor = 70);

CREATE INDEX runs_by_number ON holdfast.runs (workspace, number);
CREATE INDEX runs_by_session ON holdfast.runs (workspace, session, number);
CREATE INDEX runs_open ON holdfast.runs (workspace, session) WHERE outcome IS NULL;

-- A run ends once. The code checks it first; the database enforces it.
CREATE FUNCTION holdfast.refuse_second_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the run has ended' USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE TRIGGER runs_end_once BEFORE UPDATE ON holdfast.runs
    FOR EACH ROW WHEN (OLD.outcome IS NOT NULL) EXECUTE FUNCTION holdfast.refuse_second_end();

-- Ids of runs whose session was deleted: they are never given out again.
CREATE TABLE holdfast.removed_runs (
    workspace integer NOT NULL,
    run_id    text COLLATE "C" NOT NULL,
    PRIMARY KEY (workspace, run_id)
);

-- Requests for permission and batches of questions without an answer: the first one that is stored closes them.
CREATE TABLE holdfast.requests (
    workspace integer NOT NULL,
    id        text COLLATE "C" NOT NULL,
    session   text COLLATE "C" NOT NULL,
    PRIMARY KEY (workspace, id)
);

CREATE TABLE holdfast.events (
    workspace integer NOT NULL,
    number    bigint NOT NULL,
    at        bigint NOT NULL,            -- when it was stored, for the retention
    session   text COLLATE "C" NOT NULL,  -- whose deletion empties it
    is_end    boolean NOT NULL,           -- the end of a run keeps its id and outcome
    body      bytea NOT NULL,
    PRIMARY KEY (workspace, number)
);

-- Versions of files. Equal contents are stored once.
CREATE TABLE holdfast.files (
    workspace integer NOT NULL,
    session   text COLLATE "C" NOT NULL,
    path      bytea NOT NULL,
    version   bigint NOT NULL,
    digest    bytea NOT NULL,
    body      bytea NOT NULL,
    PRIMARY KEY (workspace, session, path, version)
);

CREATE INDEX files_by_content ON holdfast.files (workspace, digest);

CREATE TABLE holdfast.contents (
    workspace integer NOT NULL,
    digest    bytea NOT NULL,
    content   bytea NOT NULL,
    PRIMARY KEY (workspace, digest)
);

CREATE TABLE holdfast.read_marks (
    workspace integer NOT NULL,
    session   text COLLATE "C" NOT NULL,
    path      bytea NOT NULL,
    body      bytea NOT NULL,
    PRIMARY KEY (workspace, session, path)
);

-- Delete sessions with everything that belongs to them. The ids of their runs stay reserved, and their events keep
-- their numbers: `emptied` replaces them, and `ends` replaces the ends of their runs.
CREATE FUNCTION holdfast.remove_sessions(
    of_workspace integer, removed text[], emptied bytea[], end_numbers bigint[], ends bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    digests bytea[];
BEGIN
    INSERT INTO holdfast.removed_runs
        SELECT of_workspace, run_id FROM holdfast.runs WHERE workspace = of_workspace AND session = ANY (removed)
        ON CONFLICT DO NOTHING;
    DELETE FROM holdfast.runs WHERE workspace = of_workspace AND session = ANY (removed);
    DELETE FROM holdfast.requests WHERE workspace = of_workspace AND session = ANY (removed);
    DELETE FROM holdfast.growth WHERE workspace = of_workspace AND message IN
        (SELECT id FROM holdfast.messages WHERE workspace = of_workspace AND session = ANY (removed));
    DELETE FROM holdfast.messages WHERE workspace = of_workspace AND session = ANY (removed);
    DELETE FROM holdfast.read_marks WHERE workspace = of_workspace AND session = ANY (removed);
    SELECT array_agg(DISTINCT digest) INTO digests
        FROM holdfast.files WHERE workspace = of_workspace AND session = ANY (removed);
    DELETE FROM holdfast.files WHERE workspace = of_workspace AND session = ANY (removed);
    DELETE FROM holdfast.contents AS c WHERE c.workspace = of_workspace AND c.digest = ANY (digests)
        AND NOT EXISTS (SELECT FROM holdfast.files AS f WHERE f.workspace = of_workspace AND f.digest = c.digest);
    DELETE FROM holdfast.sessions WHERE workspace = of_workspace AND id = ANY (removed);
    UPDATE holdfast.events AS e SET body = r.body
        FROM unnest(removed, emptied) AS r (session, body)
        WHERE e.workspace = of_workspace AND e.session = r.session AND NOT e.is_end;
    UPDATE holdfast.events AS e SET body = r.body
        FROM unnest(end_numbers, ends) AS r (number, body)
        WHERE e.workspace = of_workspace AND e.number = r.number;
END $$;

-- Apply one batch in one round trip and one transaction. It was decided on the state of `expected`; without an epoch it
-- is an input, which any server may store. Returns 0: applied; 1: the epoch is no longer the current one; 2: the state
-- has changed since, so the batch has to be decided again. Nothing is written unless it returns 0.
--
-- Deletions come first: a batch may delete a row and store another one with the same key.
CREATE FUNCTION holdfast.apply(
    of_workspace integer, of_epoch bigint, expected bigint, new_ticket bigint, new_answers bytea,
    is_synced boolean, stored_at bigint,
    event_sessions text[], event_ends boolean[], event_bodies bytea[],
    removed text[], emptied bytea[], end_numbers bigint[], end_bodies bytea[],
    reserved_runs text[], deleted_runs text[], deleted_messages text[], closed_requests text[],
    session_ids text[], session_parents text[], session_times bigint[], session_bodies bytea[],
    new_runs text[], new_numbers bigint[], new_sessions text[], new_hashes bytea[],
    new_prompts bytea[], new_attachments bytea[], new_briefs bytea[], new_bodies bytea[],
    run_ids text[], run_ranks bigint[], run_folds boolean[], run_outcomes text[], run_bodies bytea[],
    added_messages text[], added_sessions text[], added_runs text[], added_bodies bytea[],
    put_messages text[], put_runs text[], put_bodies bytea[],
    grown_messages text[], growth_bodies bytea[],
    file_sessions text[], file_paths bytea[], file_versions bigint[], file_digests bytea[], file_bodies bytea[],
    content_digests bytea[], contents bytea[],
    mark_sessions text[], mark_paths bytea[], mark_bodies bytea[],
    opened_requests text[], request_sessions text[]
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    current_epoch bigint;
BEGIN
    IF NOT is_synced THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    UPDATE holdfast.workspaces SET
        newest = newest + cardinality(event_bodies),
        held = held + cardinality(event_bodies),
        revision = revision + 1,
        ticket = coalesce(new_ticket, ticket),
        answers = coalesce(new_answers, answers),
        answered = CASE WHEN new_ticket IS NULL THEN answered ELSE newest + cardinality(event_bodies) END
    WHERE key = of_workspace AND revision = expected
        AND (of_epoch IS NULL OR (epoch = of_epoch AND NOT is_closed))
    RETURNING newest - cardinality(event_bodies) INTO before;
    IF NOT FOUND THEN
        SELECT epoch INTO current_epoch FROM holdfast.workspaces
            WHERE key = of_workspace AND (of_epoch IS NULL OR (epoch = of_epoch AND NOT is_closed));
        RETURN CASE WHEN FOUND THEN 2 ELSE 1 END;
    END IF;

    IF removed <> '{}' THEN
        PERFORM holdfast.remove_sessions(of_workspace, removed, emptied, end_numbers, end_bodies);
    END IF;
    IF reserved_runs <> '{}' THEN
        INSERT INTO holdfast.removed_runs SELECT of_workspace, id FROM unnest(reserved_runs) AS r (id)
            ON CONFLICT DO NOTHING;
    END IF;
    IF deleted_runs <> '{}' THEN
        DELETE FROM holdfast.runs WHERE workspace = of_workspace AND run_id = ANY (deleted_runs);
    END IF;
    IF deleted_messages <> '{}' THEN
        DELETE FROM holdfast.growth WHERE workspace = of_workspace AND message = ANY (deleted_messages);
        DELETE FROM holdfast.messages WHERE workspace = of_workspace AND id = ANY (deleted_messages);
    END IF;
    IF closed_requests <> '{}' THEN
        DELETE FROM holdfast.requests WHERE workspace = of_workspace AND id = ANY (closed_requests);
    END IF;

    IF event_bodies <> '{}' THEN
        INSERT INTO holdfast.events (workspace, number, at, session, is_end, body)
            SELECT of_workspace, before + e.position, stored_at, e.session, e.is_end, e.body
            FROM unnest(event_sessions, event_ends, event_bodies) WITH ORDINALITY
                AS e (session, is_end, body, position);
    END IF;
    IF session_ids <> '{}' THEN
        INSERT INTO holdfast.sessions (workspace, id, parent, updated_at, body)
            SELECT of_workspace, s.id, s.parent, s.updated_at, s.body
            FROM unnest(session_ids, session_parents, session_times, session_bodies) WITH ORDINALITY
                AS s (id, parent, updated_at, body, position) ORDER BY s.position
            ON CONFLICT (workspace, id) DO UPDATE SET updated_at = excluded.updated_at, body = excluded.body;
    END IF;
    IF new_runs <> '{}' THEN
        INSERT INTO holdfast.runs
            (workspace, run_id, number, session, rank, is_folded, body_hash, body, prompt, attachments, brief)
            SELECT of_workspace, r.run_id, r.number, r.session, r.number, false, r.body_hash, r.body, r.prompt,
                r.attachments, r.brief
            FROM unnest(new_runs, new_numbers, new_sessions, new_hashes, new_prompts, new_attachments, new_briefs,
                new_bodies) AS r (run_id, number, session, body_hash, prompt, attachments, brief, body);
    END IF;
    IF run_ids <> '{}' THEN
        UPDATE holdfast.runs AS r
            SET rank = c.rank, is_folded = c.is_folded, outcome = c.outcome, body = c.body
            FROM unnest(run_ids, run_ranks, run_folds, run_outcomes, run_bodies)
                AS c (run_id, rank, is_folded, outcome, body)
            WHERE r.workspace = of_workspace AND r.run_id = c.run_id;
    END IF;
    IF added_messages <> '{}' THEN
        INSERT INTO holdfast.messages (workspace, id, session, run_id, body)
            SELECT of_workspace, m.id, m.session, m.run_id, m.body
            FROM unnest(added_messages, added_sessions, added_runs, added_bodies) WITH ORDINALITY
                AS m (id, session, run_id, body, position) ORDER BY m.position;
    END IF;
    IF put_messages <> '{}' THEN
        DELETE FROM holdfast.growth WHERE workspace = of_workspace AND message = ANY (put_messages);
        UPDATE holdfast.messages AS m SET run_id = c.run_id, body = c.body
            FROM unnest(put_messages, put_runs, put_bodies) AS c (id, run_id, body)
            WHERE m.workspace = of_workspace AND m.id = c.id;
    END IF;
    IF grown_messages <> '{}' THEN
        INSERT INTO holdfast.growth (workspace, message, body)
            SELECT of_workspace, g.message, g.body
            FROM unnest(grown_messages, growth_bodies) WITH ORDINALITY AS g (message, body, position)
            ORDER BY g.position;
    END IF;
    IF file_sessions <> '{}' THEN
        INSERT INTO holdfast.contents (workspace, digest, content)
            SELECT of_workspace, c.digest, c.content FROM unnest(content_digests, contents) AS c (digest, content)
            ON CONFLICT DO NOTHING;
        INSERT INTO holdfast.files (workspace, session, path, version, digest, body)
            SELECT of_workspace, f.session, f.path, f.version, f.digest, f.body
            FROM unnest(file_sessions, file_paths, file_versions, file_digests, file_bodies)
                AS f (session, path, version, digest, body);
    END IF;
    IF mark_sessions <> '{}' THEN
        INSERT INTO holdfast.read_marks (workspace, session, path, body)
            SELECT of_workspace, m.session, m.path, m.body
            FROM unnest(mark_sessions, mark_paths, mark_bodies) AS m (session, path, body)
            ON CONFLICT (workspace, session, path) DO UPDATE SET body = excluded.body;
    END IF;
    IF opened_requests <> '{}' THEN
        INSERT INTO holdfast.requests (workspace, id, session)
            SELECT of_workspace, q.id, q.session FROM unnest(opened_requests, request_sessions) AS q (id, session)
            ON CONFLICT (workspace, id) DO UPDATE SET session = excluded.session;
    END IF;
    RETURN 0;
END $$;

-- Delete the oldest events that the retention does not cover, at most `per_pass` of them. Events since the accept of a
-- run that has not ended stay: recovery and clients that reconnect need them.
CREATE FUNCTION holdfast.prune(of_workspace integer, kept bigint, cutoff bigint, per_pass bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    excess bigint;
    first_kept bigint;
    unended bigint;
    pruned bigint;
BEGIN
    SELECT least(greatest(0, held - kept), per_pass) INTO excess FROM holdfast.workspaces WHERE key = of_workspace;
    SELECT min(number) INTO unended FROM holdfast.runs WHERE workspace = of_workspace AND outcome IS NULL;
    SELECT min(number) FILTER (WHERE position > per_pass OR (position > excess AND at >= cutoff)), max(number) + 1
        INTO first_kept, pruned
        FROM (SELECT number, at, row_number() OVER (ORDER BY number) AS position
            FROM holdfast.events WHERE workspace = of_workspace ORDER BY number LIMIT per_pass + 1) AS oldest;
    first_kept := least(coalesce(first_kept, pruned), unended);
    DELETE FROM holdfast.events WHERE workspace = of_workspace AND number < first_kept;
    GET DIAGNOSTICS pruned = ROW_COUNT;
    IF pruned > 0 THEN
        UPDATE holdfast.workspaces SET held = held - pruned WHERE key = of_workspace;
    END IF;
END $$;
