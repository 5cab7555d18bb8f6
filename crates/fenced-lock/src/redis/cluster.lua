-- Identifies the counter that gives the tickets, by this primary and the time at which it began to count. A failover, a restart
-- and an emptied store each change the identity. So a ticket that is given a second time makes another token.
local function cluster(last)
  local now = redis.call('TIME')
  -- a replica refuses this write, so no replica grants a lock
  redis.call('HSETNX', last, 'since', now[1] .. '.' .. now[2])
  local primary = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  return string.sub(redis.sha1hex(primary .. redis.call('HGET', last, 'since')), 1, 16)
end
