-- Who numbers the tickets: this primary, since it began to count. A failover, a restart and a store that was emptied
-- each make it another one, so that a number that comes twice is not the same token.
local function cluster(last)
  local now = redis.call('TIME')
  -- a replica refuses this, so it grants nothing
  redis.call('HSETNX', last, 'since', now[1] .. '.' .. now[2])
  local primary = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  return string.sub(redis.sha1hex(primary .. redis.call('HGET', last, 'since')), 1, 16)
end
