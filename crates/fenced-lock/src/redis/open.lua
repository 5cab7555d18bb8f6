-- Opens a session. KEYS: session, last. ARGV: the channel of its process, TTL in milliseconds.
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return redis.error_reply('TAKEN another session has this id')
end
return cluster(KEYS[2])
