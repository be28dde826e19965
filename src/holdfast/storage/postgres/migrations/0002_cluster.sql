-- Nodes of a cluster and the owners of workspaces: see docs/decisions/0036-leases.md.
--
-- Each function is one request of a node and one transaction. -1 means that the node has no row: it was declared dead.

CREATE TABLE holdfast.nodes (
    key         integer GENERATED ALWAYS AS IDENTITY UNIQUE, -- of its advisory lock
    id          text COLLATE "C" PRIMARY KEY,
    heartbeat   bigint NOT NULL DEFAULT 0,
    places      text[] NOT NULL,
    address     text NOT NULL,
    connections text NOT NULL,  -- application_name of its connections
    is_draining boolean NOT NULL DEFAULT false,
    joined      timestamptz NOT NULL DEFAULT now() -- only shown, never compared
) WITH (fillfactor = 40);

ALTER TABLE holdfast.workspaces
    ADD owner text COLLATE "C" REFERENCES holdfast.nodes (id),
    ADD wanted boolean NOT NULL DEFAULT true,  -- without an owner, it needs one
    -- Earlier owners that were evicted by hint, with their last heartbeats: their tools may still run.
    ADD hinted_nodes text[] NOT NULL DEFAULT '{}',
    ADD hinted_heartbeats bigint[] NOT NULL DEFAULT '{}';

-- The columns of these indexes do not change with a write, so the updated row stays in its page.
CREATE INDEX workspaces_by_owner ON holdfast.workspaces (owner) WHERE owner IS NOT NULL;
CREATE INDEX workspaces_wanted ON holdfast.workspaces (place) WHERE owner IS NULL AND wanted;

CREATE FUNCTION holdfast.want_owner() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.wanted := true;
    RETURN NEW;
END $$;

-- An input to a workspace without an owner: no input has to know about ownership.
CREATE TRIGGER want_owner BEFORE UPDATE ON holdfast.workspaces FOR EACH ROW
    WHEN (NEW.owner IS NULL AND NOT NEW.wanted AND NEW.newest <> OLD.newest)
    EXECUTE FUNCTION holdfast.want_owner();

CREATE FUNCTION holdfast.node_join(new_id text, of_places text[], at_address text) RETURNS integer LANGUAGE sql AS $$
    INSERT INTO holdfast.nodes (id, places, address, connections)
        VALUES (new_id, of_places, at_address, current_setting('application_name')) RETURNING key
$$;

-- Not synced: a heartbeat that a crash loses looks like another one, and the outage has discarded all observations.
CREATE FUNCTION holdfast.node_heartbeat(me text) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE holdfast.nodes SET heartbeat = heartbeat + 1 WHERE id = me;
    RETURN CASE WHEN FOUND THEN 0 ELSE -1 END;
END $$;

-- One row for each node, and one without an id for each place with workspaces that need an owner.
CREATE FUNCTION holdfast.node_list() RETURNS TABLE (
    id text, heartbeat bigint, places text[], is_draining boolean, listens boolean, workspaces bigint, address text,
    since double precision
) LANGUAGE sql STABLE AS $$
    WITH locks AS MATERIALIZED (
        SELECT objid::bigint AS key FROM pg_locks
            WHERE locktype = 'advisory' AND classid = 1213039694 AND objsubid = 2 AND granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ), owned AS (
        SELECT owner, count(*) AS workspaces FROM holdfast.workspaces WHERE owner IS NOT NULL GROUP BY owner
    )
    SELECT n.id, n.heartbeat, n.places, n.is_draining, EXISTS (SELECT FROM locks WHERE locks.key = n.key),
            coalesce(owned.workspaces, 0), n.address,
            extract(epoch FROM clock_timestamp() - n.joined)::double precision
        FROM holdfast.nodes n LEFT JOIN owned ON owned.owner = n.id
    UNION ALL
    SELECT NULL, NULL, ARRAY[w.place], NULL, NULL, count(*), NULL, NULL FROM holdfast.workspaces w
        WHERE w.owner IS NULL AND w.wanted GROUP BY w.place
$$;

CREATE FUNCTION holdfast.free_workspaces(of_owner text, hinted text[], hinted_heartbeat bigint[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE holdfast.workspaces SET owner = NULL, wanted = true, epoch = epoch + 1, is_closed = true,
            hinted_nodes = hinted_nodes || hinted, hinted_heartbeats = hinted_heartbeats || hinted_heartbeat
        WHERE owner = of_owner
$$;

-- 1: evicted, 0: its heartbeat has changed, it is gone, or it owns something more at this moment.
CREATE FUNCTION holdfast.node_evict(me text, dead text, seen bigint, by_hint boolean) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    of_dead text;
BEGIN
    PERFORM FROM holdfast.nodes WHERE id = me FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM holdfast.nodes WHERE id = me) THEN 0 ELSE -1 END;
    END IF;
    SELECT connections INTO of_dead FROM holdfast.nodes WHERE id = dead AND heartbeat = seen FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    -- A statement of the dead node that waits may hold locks. Only connections of this role can be its own.
    IF of_dead LIKE 'holdfast %' AND of_dead <> current_setting('application_name') THEN
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name = of_dead AND usename = session_user AND datname = current_database();
    END IF;
    IF by_hint THEN
        PERFORM holdfast.free_workspaces(dead, ARRAY[dead], ARRAY[seen]);
    ELSE
        PERFORM holdfast.free_workspaces(dead, '{}', '{}');
    END IF;
    DELETE FROM holdfast.nodes WHERE id = dead;
    RETURN 1;
END $$;

-- Returns a row without an id if the node has no row.
CREATE FUNCTION holdfast.node_claim(me text, of_places text[], limits integer[], known text[])
RETURNS TABLE (id text, epoch bigint, hinted_nodes text[], hinted_heartbeats bigint[]) LANGUAGE plpgsql AS $$
DECLARE
    number integer;
BEGIN
    PERFORM FROM holdfast.nodes n WHERE n.id = me FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT NULL::text, NULL::bigint, NULL::text[], NULL::bigint[];
        RETURN;
    END IF;
    RETURN QUERY UPDATE holdfast.workspaces w SET epoch = w.epoch + 1
        WHERE w.owner = me AND w.id <> ALL (known)
        RETURNING w.id, w.epoch, w.hinted_nodes, w.hinted_heartbeats;
    FOR number IN 1 .. cardinality(of_places) LOOP
        RETURN QUERY UPDATE holdfast.workspaces w
            SET owner = me, wanted = false, epoch = w.epoch + 1, is_closed = false
            -- An array is computed once; a join could repeat the selection, which would exceed the limit.
            WHERE w.key = ANY (ARRAY(
                SELECT f.key FROM holdfast.workspaces f
                    WHERE f.place = of_places[number] AND f.owner IS NULL AND f.wanted
                    LIMIT limits[number] FOR UPDATE SKIP LOCKED
            ))
            RETURNING w.id, w.epoch, w.hinted_nodes, w.hinted_heartbeats;
    END LOOP;
END $$;

-- 1: the node does not own the workspace under this epoch any more, 0: it has an event after `processed`.
CREATE FUNCTION holdfast.node_release(me text, workspace text, of_epoch bigint, processed bigint) RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.workspaces SET owner = NULL, wanted = processed IS NULL, epoch = epoch + 1, is_closed = true
        WHERE id = workspace AND owner = me AND epoch = of_epoch AND newest = coalesce(processed, newest);
    IF FOUND THEN
        RETURN 1;
    END IF;
    PERFORM FROM holdfast.workspaces WHERE id = workspace AND owner = me AND epoch = of_epoch;
    RETURN CASE WHEN FOUND THEN 0 ELSE 1 END;
END $$;

CREATE FUNCTION holdfast.node_settle(workspace text, of_epoch bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE holdfast.workspaces SET hinted_nodes = '{}', hinted_heartbeats = '{}'
        WHERE id = workspace AND epoch = of_epoch AND hinted_nodes <> '{}'
$$;

CREATE FUNCTION holdfast.node_drain(me text) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.nodes SET is_draining = true WHERE id = me;
    RETURN CASE WHEN FOUND THEN 0 ELSE -1 END;
END $$;

CREATE FUNCTION holdfast.node_leave(me text) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM holdfast.nodes WHERE id = me FOR UPDATE;
    PERFORM holdfast.free_workspaces(me, '{}', '{}');
    DELETE FROM holdfast.nodes WHERE id = me;
    RETURN 0;
END $$;

-- Not synced and after the commit of what it is about: NOTIFY inside a commit serialises all commits.
CREATE FUNCTION holdfast.node_notify(channels text[], payloads text[]) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_notify(channel, payload) FROM unnest(channels, payloads) AS sent (channel, payload);
    RETURN 0;
END $$;
