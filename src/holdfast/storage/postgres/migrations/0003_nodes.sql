-- Clients of each node, and what nodes read of the workspaces that are open on them.

CREATE TABLE holdfast.node_clients (
    node      text COLLATE "C" NOT NULL REFERENCES holdfast.nodes (id) ON DELETE CASCADE,
    workspace text COLLATE "C" NOT NULL,
    session   text COLLATE "C" NOT NULL, -- '' without one
    clients   integer NOT NULL,
    PRIMARY KEY (workspace, node, session)
);

CREATE INDEX node_clients_by_node ON holdfast.node_clients (node);

-- Replace the clients of a node in one workspace.
CREATE FUNCTION holdfast.node_set_clients(me text, of_workspace text, of_sessions text[], counts integer[])
RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM FROM holdfast.nodes WHERE id = me FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN -1;
    END IF;
    DELETE FROM holdfast.node_clients
        WHERE node = me AND workspace = of_workspace AND session <> ALL (of_sessions);
    INSERT INTO holdfast.node_clients (node, workspace, session, clients)
        SELECT me, of_workspace, session, number FROM unnest(of_sessions, counts) AS given (session, number)
        ON CONFLICT (workspace, node, session) DO UPDATE SET clients = excluded.clients;
    RETURN 0;
END $$;

-- One row for each workspace and each (node, session) with clients; without clients the last three columns are NULL.
CREATE FUNCTION holdfast.node_workspaces(ids text[]) RETURNS TABLE (
    id text, newest bigint, owner text, address text, node text, session text, clients integer
) LANGUAGE sql STABLE AS $$
    SELECT w.id, w.newest, w.owner, n.address, c.node, c.session, c.clients
        FROM unnest(ids) AS asked (id) JOIN holdfast.workspaces w ON w.id = asked.id
        LEFT JOIN holdfast.nodes n ON n.id = w.owner LEFT JOIN holdfast.node_clients c ON c.workspace = w.id
$$;

-- A client needs an owner for the workspace. 1: it has none yet, 0: it has one.
CREATE FUNCTION holdfast.node_want(of_workspace text) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.workspaces SET wanted = true WHERE id = of_workspace AND owner IS NULL AND NOT wanted;
    PERFORM FROM holdfast.workspaces WHERE id = of_workspace AND owner IS NULL;
    RETURN CASE WHEN FOUND THEN 1 ELSE 0 END;
END $$;

-- A node whose disk is now called `label`: its workspaces move there, unless the directory is known there as well.
CREATE FUNCTION holdfast.node_label_place(own text, label text) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.workspaces w SET place = label WHERE w.place = own AND w.owner IS NULL
        AND NOT EXISTS (SELECT FROM holdfast.workspaces other WHERE other.place = label AND other.path = w.path);
    RETURN 0;
END $$;
