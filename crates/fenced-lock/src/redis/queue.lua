-- The queue of one name.
--
-- KEYS: 1 queue, the claims by their tickets; 2 makers, the time and the label of each claim; 3 last, the last ticket.
-- A claim is `SESSION-NUMBER`. The script derives the keys of sessions from the claims, so they are not among KEYS, and all
-- keys must be on one server.
-- ARGV: 1 what to do, 2 the name, 3 the claim; for `put` also: 4 `wait`, `try` or `after`, 5 the label, 6 the claim to release
-- first (`after`); for `list`: 4 the last rank.
local queue, makers, last = KEYS[1], KEYS[2], KEYS[3]
local todo, name, claim = ARGV[1], ARGV[2], ARGV[3]

local WAITING, GRANTED, GONE = 0, 1, 2

local function session(of)
  return '{fenced-lock}:session:' .. string.match(of, '^[^-]*')
end

-- The channel of the claim's process; false if its session has ended.
local function channel(of)
  return redis.call('GET', session(of))
end

local function remove(which)
  redis.call('HDEL', makers, which)
  return redis.call('ZREM', queue, which)
end

local function at(rank)
  return redis.call('ZRANGE', queue, rank, rank)[1]
end

-- Removes claims whose sessions have ended, until the first two claims are alive: when the first one is then removed, its
-- successor is alive. Returns false if more claims are left than one run should remove, because everybody waits while a script
-- runs.
local function sweep()
  local rank, removed = 0, 0
  while rank < 2 do
    local claim = at(rank)
    if not claim then
      return true
    elseif channel(claim) then
      rank = rank + 1
    elseif removed == 1000 then
      return false
    else
      remove(claim)
      removed = removed + 1
    end
  end
  return true
end

local function count()
  return redis.call('ZCARD', queue)
end

local function now_ms()
  local now = redis.call('TIME')
  return math.floor(now[1] * 1000 + now[2] / 1000)
end

-- {status, ticket or PTTL of the holder, cluster, whether others wait}
local function standing()
  local ticket = redis.call('ZSCORE', queue, claim)
  if not ticket then
    return {GONE, 0, '0', 0}
  end
  local head = at(0)
  if head == claim then
    return {GRANTED, tonumber(ticket), cluster(last), count() > 1 and 1 or 0}
  end
  return {WAITING, redis.call('PTTL', session(head)), '0', 0}
end

local function put(how, label, held)
  if not redis.call('ZSCORE', queue, claim) then
    if how == 'try' and count() > 0 then
      return false
    end
    if how == 'after' and remove(held) == 0 then
      return false
    end
    local ticket = redis.call('HINCRBY', last, 'ticket', 1)
    -- a format would cut the label at a NUL
    redis.call('HSET', makers, claim, string.format('%.0f ', now_ms()) .. label)
    redis.call('ZADD', queue, ticket, claim)
  end
  return standing()
end

-- Returns 1 if the claim and its session existed.
local function release()
  local is_alive = channel(claim)
  local removed = remove(claim)
  return is_alive and removed or 0
end

-- {cluster, {{claim, ticket, age in milliseconds, label}, ..}}
local function list(last_rank)
  local entries, now = {}, now_ms()
  local members = redis.call('ZRANGE', queue, 0, last_rank, 'WITHSCORES')
  for i = 1, #members, 2 do
    local which, maker = members[i], redis.call('HGET', makers, members[i])
    if channel(which) then
      local made_at, label = string.match(maker or '', '^(%d+) (.*)$')
      local age = made_at and math.max(now - made_at, 0)
      entries[#entries + 1] = {which, tonumber(members[i + 1]), age or false, label or false}
    end
  end
  return {cluster(last), entries}
end

local head_before, count_before = at(0), count()
local answer
if not sweep() then
  answer = redis.error_reply('MORE claims have to be removed: ask again')
elseif (todo == 'put' or todo == 'ask') and not channel(claim) then
  answer = redis.error_reply('LEASEGONE the session does not exist')
elseif todo == 'put' then
  answer = put(ARGV[4], ARGV[5], ARGV[6])
elseif todo == 'ask' then
  answer = standing()
elseif todo == 'release' then
  answer = release()
elseif todo == 'list' then
  answer = list(ARGV[4])
end

-- The holder is told when it becomes the holder, and when others begin or cease to wait. A message can get lost, so the holder
-- is told again when a waiter asks or gives up, and when a try finds no other claim. A process that does not know the claim then
-- withdraws it.
local head = at(0)
if not head then
  -- drop the records of claims that left the queue without this script
  redis.call('DEL', makers)
elseif head ~= claim and channel(head) then
  local is_news = head ~= head_before or (count() > 1) ~= (count_before > 1)
  if is_news or todo == 'ask' or (todo == 'release' and count() < count_before) or (todo == 'put' and count() == 1) then
    local news = {head, redis.call('ZSCORE', queue, head), cluster(last), count() > 1 and 1 or 0, name}
    -- where this user may not publish, the message counts as lost
    redis.pcall('PUBLISH', channel(head), table.concat(news, ' '))
  end
end
return answer
