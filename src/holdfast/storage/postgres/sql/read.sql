-- The reads of the ledger. Each is one statement, so its rows are of one moment.

-- name: key
SELECT key FROM holdfast.workspaces WHERE id = $1

-- name: open
INSERT INTO holdfast.workspaces (id, place, path, epoch, is_closed) VALUES ($1, $2, $3, 1, false)
ON CONFLICT (place, path) DO UPDATE SET
    epoch = workspaces.epoch + 1, is_closed = false, ticket = 0, answers = '', answered = 0
RETURNING key, id, epoch, newest

-- name: join
WITH created AS (
    INSERT INTO holdfast.workspaces (id, place, path) VALUES ($1, $2, $3) ON CONFLICT (place, path) DO NOTHING
    RETURNING key, id, epoch, newest
), found AS (
    SELECT key, id, epoch, newest FROM created
    UNION ALL
    SELECT key, id, epoch, newest FROM holdfast.workspaces WHERE place = $2 AND path = $3
)
SELECT id, epoch, newest, (SELECT min(number) FROM holdfast.events WHERE workspace = found.key) AS oldest
FROM found LIMIT 1

-- name: close
UPDATE holdfast.workspaces SET is_closed = true WHERE key = $1 AND epoch = $2 RETURNING 0

-- name: settle
UPDATE holdfast.workspaces SET revision = revision + 1 WHERE key = $1 RETURNING 0

-- name: last_batch
UPDATE holdfast.workspaces SET revision = revision + 1 WHERE key = $1 AND epoch = $2
RETURNING ticket, answers, answered

-- name: unfinished
SELECT path FROM holdfast.workspaces AS w WHERE place = $1
    AND EXISTS (SELECT FROM holdfast.runs WHERE workspace = w.key AND outcome IS NULL) ORDER BY key

-- name: bounds
SELECT newest, (SELECT min(number) FROM holdfast.events WHERE workspace = $1) AS oldest
FROM holdfast.workspaces WHERE key = $1

-- name: events
SELECT number, at, body FROM holdfast.events WHERE workspace = $1 AND number > $2 ORDER BY number LIMIT $3

-- name: inputs
SELECT w.epoch, e.number, e.body FROM holdfast.workspaces w LEFT JOIN LATERAL (
    SELECT number, body FROM holdfast.events WHERE workspace = w.key AND number > $2 ORDER BY number LIMIT $3
) e ON true WHERE w.key = $1 ORDER BY e.number

-- name: prompts
SELECT run_id, prompt FROM holdfast.runs WHERE workspace = $1 AND run_id = ANY ($2::text[])

-- name: snapshot
SELECT 'workspace' AS kind, epoch AS a, newest AS b, NULL::text AS id, NULL::bytea AS body, NULL::bytea AS extra
FROM holdfast.workspaces WHERE key = $1
UNION ALL
SELECT 'session', ord, 0, NULL, body, NULL FROM holdfast.sessions WHERE workspace = $1
UNION ALL
SELECT 'run', number, 0, NULL, body, prompt FROM holdfast.runs WHERE workspace = $1 AND outcome IS NULL
UNION ALL
(SELECT 'run', number, 0, NULL, body, prompt FROM holdfast.runs WHERE workspace = $1 AND outcome IS NOT NULL
ORDER BY number DESC LIMIT $3)
UNION ALL
SELECT 'message', ord, 0, id, body, NULL FROM holdfast.messages WHERE workspace = $1 AND session = $2
UNION ALL
SELECT 'growth', g.ord, 0, g.message, g.body, NULL FROM holdfast.messages AS m
JOIN holdfast.growth AS g ON g.workspace = $1 AND g.message = m.id WHERE m.workspace = $1 AND m.session = $2

-- name: sessions
SELECT body FROM holdfast.sessions WHERE workspace = $1 AND parent = '' ORDER BY updated_at DESC, ord DESC

-- name: session
SELECT body FROM holdfast.sessions WHERE workspace = $1 AND id = $2

-- name: messages
SELECT 'message' AS kind, ord AS a, id, body FROM holdfast.messages WHERE workspace = $1 AND session = $2
UNION ALL
SELECT 'growth', g.ord, g.message, g.body FROM holdfast.messages AS m
JOIN holdfast.growth AS g ON g.workspace = $1 AND g.message = m.id WHERE m.workspace = $1 AND m.session = $2

-- name: messages_of_run
SELECT 'message' AS kind, ord AS a, id, body FROM holdfast.messages
WHERE workspace = $1 AND run_id = $2 AND run_id <> ''
UNION ALL
SELECT 'growth', g.ord, g.message, g.body FROM holdfast.messages AS m
JOIN holdfast.growth AS g ON g.workspace = $1 AND g.message = m.id
WHERE m.workspace = $1 AND m.run_id = $2 AND m.run_id <> ''

-- name: run
SELECT body, prompt, body_hash, attachments, brief FROM holdfast.runs WHERE workspace = $1 AND run_id = $2

-- name: briefing
WITH run AS MATERIALIZED (
    SELECT session, body, prompt, body_hash, attachments, brief FROM holdfast.runs
    WHERE workspace = $1 AND run_id = $2
)
SELECT 'run' AS kind, 0::bigint AS a, NULL::text AS id, body, prompt, body_hash, attachments, brief FROM run
UNION ALL
SELECT 'session', 0, NULL, s.body, NULL, NULL, NULL, NULL FROM run
JOIN holdfast.sessions AS s ON s.workspace = $1 AND s.id = run.session
UNION ALL
SELECT 'message', m.ord, m.id, m.body, NULL, NULL, NULL, NULL FROM run
JOIN holdfast.messages AS m ON m.workspace = $1 AND m.session = run.session
UNION ALL
SELECT 'growth', g.ord, g.message, g.body, NULL, NULL, NULL, NULL FROM run
JOIN holdfast.messages AS m ON m.workspace = $1 AND m.session = run.session
JOIN holdfast.growth AS g ON g.workspace = $1 AND g.message = m.id

-- name: open_runs
SELECT body, prompt FROM holdfast.runs WHERE workspace = $1 AND outcome IS NULL ORDER BY rank

-- name: runs
SELECT body, prompt FROM holdfast.runs WHERE workspace = $1 AND number < $2 ORDER BY number DESC LIMIT $3

-- name: runs_of_session
SELECT body, prompt FROM holdfast.runs WHERE workspace = $1 AND number < $2 AND session = $4
ORDER BY number DESC LIMIT $3

-- name: files
SELECT f.body, c.content FROM holdfast.files AS f
JOIN holdfast.contents AS c ON c.workspace = $1 AND c.digest = f.digest
WHERE f.workspace = $1 AND f.session = $2 ORDER BY f.path, f.version

-- name: read_mark
SELECT body FROM holdfast.read_marks WHERE workspace = $1 AND session = $2 AND path = $3

-- name: read_marks
SELECT body FROM holdfast.read_marks WHERE workspace = $1 AND session = $2

-- name: stats
SELECT key, path FROM holdfast.workspaces WHERE $1::text IS NULL OR id = $1 ORDER BY path

-- name: stats_sessions
SELECT body FROM holdfast.sessions WHERE workspace = $1

-- name: stats_messages
SELECT body FROM holdfast.messages WHERE workspace = $1 ORDER BY ord

-- name: stats_runs
SELECT outcome, body FROM holdfast.runs WHERE workspace = $1

-- name: own
UPDATE holdfast.workspaces SET revision = revision + 1, is_closed = false, ticket = 0, answers = '', answered = 0
WHERE id = $1 AND epoch = $2 AND owner IS NOT NULL RETURNING key, path, newest

-- name: record
SELECT id, place, path, epoch, newest, (SELECT min(number) FROM holdfast.events WHERE workspace = w.key) AS oldest
FROM holdfast.workspaces AS w WHERE id = $1
