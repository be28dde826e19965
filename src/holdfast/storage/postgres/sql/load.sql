-- The rows that a batch may touch. One statement consists of the sections that it needs, so all rows are of one moment.
-- Columns: kind, id, other id, four integers, a flag, two bodies.

-- name: workspace
SELECT 'workspace' AS kind, id, NULL::text AS other, epoch AS a, newest AS b, revision AS c, ticket AS d,
    is_closed AS flag, NULL::bytea AS body, NULL::bytea AS extra
FROM holdfast.workspaces WHERE key = $1

-- name: runs
SELECT 'run', run_id, session, rank, 0, 0, 0, false, body, prompt
FROM holdfast.runs WHERE workspace = $1 AND run_id = ANY (:runs::text[])

-- name: reserved_runs
SELECT 'reserved', run_id, NULL, 0, 0, 0, 0, false, NULL, NULL
FROM holdfast.removed_runs WHERE workspace = $1 AND run_id = ANY (:admitted::text[])

-- name: open_runs
SELECT 'run', run_id, session, rank, 0, 0, 0, false, body, prompt
FROM holdfast.runs WHERE workspace = $1 AND outcome IS NULL AND session = ANY (:queues::text[])

-- name: ahead
SELECT 'ahead', session, NULL, count(*), 0, 0, 0, false, NULL, NULL
FROM holdfast.runs WHERE workspace = $1 AND outcome IS NULL AND NOT is_folded AND session = ANY (:counted::text[])
GROUP BY session

-- name: sessions
SELECT 'session', id, NULL, ord, 0, 0, 0, false, body, NULL
FROM holdfast.sessions WHERE workspace = $1 AND id = ANY (:sessions::text[])

-- name: families
(WITH RECURSIVE family (id) AS (
    SELECT unnest(:families::text[]) COLLATE "C"
    UNION
    SELECT child.id FROM family JOIN holdfast.sessions AS child ON child.workspace = $1 AND child.parent = family.id
), ends AS (
    SELECT number, body FROM holdfast.events
    WHERE workspace = $1 AND is_end AND session IN (SELECT id FROM family)
)
SELECT 'family', id, NULL, ord, 0, 0, 0, false, body, NULL::bytea
FROM holdfast.sessions WHERE workspace = $1 AND id IN (SELECT id FROM family)
UNION ALL
SELECT 'run', run_id, session, rank, 0, 0, 0, false, body, prompt
FROM holdfast.runs WHERE workspace = $1 AND outcome IS NULL AND session IN (SELECT id FROM family)
UNION ALL
SELECT 'end', NULL, NULL, number, 0, 0, 0, false, body, NULL FROM ends)

-- name: messages
SELECT 'message', id, session, 0, 0, 0, 0, false, NULL, NULL
FROM holdfast.messages WHERE workspace = $1 AND id = ANY (:messages::text[])

-- name: whole_messages
SELECT 'message', m.id, m.session, 0, 0, 0, 0, true, m.body, NULL
FROM holdfast.messages AS m WHERE m.workspace = $1 AND m.id = ANY (:whole_messages::text[])
UNION ALL
SELECT 'session', s.id, NULL, s.ord, 0, 0, 0, false, s.body, NULL
FROM holdfast.sessions AS s WHERE s.workspace = $1 AND s.id IN (
    SELECT session FROM holdfast.messages WHERE workspace = $1 AND id = ANY (:whole_messages::text[]))

-- name: files
SELECT 'file', NULL, f.session, 0, 0, 0, 0, false, f.body, c.content
FROM unnest(:file_sessions::text[], :file_paths::bytea[]) AS wanted (session, path)
CROSS JOIN LATERAL (
    SELECT session, digest, body FROM holdfast.files
    WHERE workspace = $1 AND session = wanted.session AND path = wanted.path ORDER BY version DESC LIMIT 1) AS f
JOIN holdfast.contents AS c ON c.workspace = $1 AND c.digest = f.digest

-- name: requests
SELECT 'request', id, session, 0, 0, 0, 0, false, NULL, NULL
FROM holdfast.requests WHERE workspace = $1 AND id = ANY (:requests::text[])
