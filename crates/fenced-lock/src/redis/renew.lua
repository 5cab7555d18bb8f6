-- Renews a session. KEYS: session, the queues that it holds. ARGV: TTL in milliseconds, its claim in each queue. Answers for
-- each queue: 0 if the claim does not hold the lock; 1 if it holds the lock and is alone; 2 if others wait.
if redis.call('PEXPIRE', KEYS[1], ARGV[1]) == 0 then
  return redis.error_reply('LEASEGONE the session does not exist')
end
local standing = {}
for i = 2, #KEYS do
  local front = redis.call('ZRANGE', KEYS[i], 0, 1)
  standing[i - 1] = front[1] == ARGV[i] and #front or 0
end
return standing
