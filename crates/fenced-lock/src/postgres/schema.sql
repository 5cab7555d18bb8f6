-- The tables of the locks. The library makes them when they are missing and it may: this text is one transaction.
-- An operator who makes them gives a role that takes locks these rights:
--   GRANT USAGE ON SCHEMA fenced_lock TO app;
--   GRANT SELECT, INSERT, UPDATE ON fenced_lock.names TO app;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON fenced_lock.leases TO app;
--   GRANT SELECT, INSERT, DELETE ON fenced_lock.claims TO app;
-- Advisory locks need the first two.

-- two clients that make them at once would disturb each other
SELECT pg_advisory_xact_lock(hashtextextended('fenced_lock.schema', 0));

CREATE SCHEMA IF NOT EXISTS fenced_lock;

-- The last ticket on each name. A row stays for ever: the tokens of its name must not begin anew.
CREATE TABLE IF NOT EXISTS fenced_lock.names (
    name text COLLATE "C" PRIMARY KEY,
    last bigint NOT NULL
) WITH (fillfactor = 50);

-- A lease that has expired counts until its row is deleted, and only then do its claims go.
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
