-- Tokens of nodes for requests that other nodes relay to them: see docs/decisions/0039-relay.md.
--
-- The database makes them, so that its log contains none, not even with the parameters of statements. A node gets a new
-- one whenever it joins. gen_random_uuid uses the strong random numbers of the system: 122 bits each.

ALTER TABLE holdfast.nodes
    ADD relay_token text NOT NULL DEFAULT replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');

-- Where requests for a workspace are relayed to: its owner. No row without one.
CREATE FUNCTION holdfast.relay_target(of_workspace text) RETURNS TABLE (node text, address text, token text)
LANGUAGE sql STABLE AS $$
    SELECT n.id, n.address, n.relay_token FROM holdfast.workspaces w JOIN holdfast.nodes n ON n.id = w.owner
        WHERE w.id = of_workspace
$$;

-- The token that a node accepts. No row if it is not a member.
CREATE FUNCTION holdfast.relay_token(me text) RETURNS TABLE (token text) LANGUAGE sql STABLE AS $$
    SELECT relay_token FROM holdfast.nodes WHERE id = me
$$;
