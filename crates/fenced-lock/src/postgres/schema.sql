-- The tables of the locks. The library runs this text, as one transaction, if they are missing and it has the right to. An
-- operator who runs it must give these rights to a role that takes locks:
--   GRANT USAGE ON SCHEMA fenced_lock TO app;
--   GRANT SELECT, INSERT, UPDATE ON fenced_lock.names TO app;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON fenced_lock.leases TO app;
--   GRANT SELECT, INSERT, DELETE ON fenced_lock.claims TO app;
-- Advisory locks need the first two.

-- two clients that make the tables at once would disturb each other
SELECT pg_advisory_xact_lock(hashtextextended('fenced_lock.schema', 0));

CREATE SCHEMA IF NOT EXISTS fenced_lock;

-- The last ticket on each name. A row is never deleted: the tokens of its name must not begin anew.
CREATE TABLE IF NOT EXISTS fenced_lock.names (
    name text COLLATE "C" PRIMARY KEY,
    last bigint NOT NULL
) WITH (fillfactor = 50);

-- An expired lease counts until its row is deleted; its claims are deleted with it.
CREATE TABLE IF NOT EXISTS fenced_lock.leases (
    id bigint PRIMARY KEY,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The queues: the claim with the lowest ticket on a name holds it.
CREATE TABLE IF NOT EXISTS fenced_lock.claims (
    name text COLLATE "C" NOT NULL,
    ticket bigint NOT NULL,
    lease bigint NOT NULL REFERENCES fenced_lock.leases ON DELETE CASCADE,
    number bigint NOT NULL,
    label text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, ticket),
    UNIQUE (lease, number)
);
