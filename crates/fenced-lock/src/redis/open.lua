-- Opens a session. KEYS: session, last. ARGV: the channel of its process, TTL in milliseconds.
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return cluster(KEYS[2])
