-- The version, active runs and clients of each node, for `holdfast nodes`.
--
-- Servers of an earlier version continue to run after the first newer one has migrated, so their functions stay.

ALTER TABLE holdfast.nodes ADD version text NOT NULL DEFAULT '';

CREATE FUNCTION holdfast.node_join(new_id text, of_places text[], at_address text, of_version text) RETURNS integer
LANGUAGE sql AS $$
    INSERT INTO holdfast.nodes (id, places, address, version, connections)
        VALUES (new_id, of_places, at_address, of_version, current_setting('application_name')) RETURNING key
$$;

CREATE FUNCTION holdfast.node_members() RETURNS TABLE (
    id text, heartbeat bigint, places text[], is_draining boolean, listens boolean, workspaces bigint, address text,
    since double precision, version text, runs bigint, clients bigint
) LANGUAGE sql STABLE AS $$
    WITH active AS MATERIALIZED (
        SELECT w.owner, count(*) AS runs FROM holdfast.runs r JOIN holdfast.workspaces w ON w.key = r.workspace
            -- Quotes inside of strings are escaped, so this finds the field only. A cast to jsonb refuses some strings.
            WHERE r.outcome IS NULL AND w.owner IS NOT NULL
                AND (position('"state":"active"'::bytea IN r.body) > 0
                    OR position('"state":"cancelling"'::bytea IN r.body) > 0)
            GROUP BY w.owner
    ), present AS MATERIALIZED (
        SELECT node, sum(clients)::bigint AS clients FROM holdfast.node_clients GROUP BY node
    )
    SELECT l.id, l.heartbeat, l.places, l.is_draining, l.listens, l.workspaces, l.address, l.since, n.version,
            coalesce(active.runs, 0), coalesce(present.clients, 0)
        FROM holdfast.node_list() l JOIN holdfast.nodes n ON n.id = l.id
        LEFT JOIN active ON active.owner = l.id LEFT JOIN present ON present.node = l.id
        ORDER BY n.joined, l.id
$$;
