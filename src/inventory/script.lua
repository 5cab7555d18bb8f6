#!lua
-- The only writer of an item's keys: every guarded change is one run of this script, and Redis runs
-- one script at a time, so what is checked here still holds when it is written here.
--
-- The first line is for Redis 7 and later: it has Redis refuse the script before it runs when memory
-- is used up, the disk fails or the server is a replica, so that nothing is ever half written.
-- For the same reason everything is validated before the first write.
--
-- KEYS  stock, lucky, initial, orders, ledger, fence
-- ARGV  1 operation: reduce, start, adopt
--       2 token as "<cluster> <revision>"; empty: nothing guards this call, and no fence is checked
--       reduce: 3 instance, then for each order its id, quantity and user
--       start:  3 units
--
-- Keys:   stock, lucky, initial are whole numbers; ledger is the list of accepted order ids;
--         orders maps an id to its record; fence is a token.
-- Record: position, quantity, remaining, token, instance, user; tabs between them.
-- Answer: a status (ok, stale, foreign, unknown, damaged) and what belongs to it.

local STOCK, LUCKY, INITIAL, ORDERS, LEDGER, FENCE = unpack(KEYS)
local operation, token = ARGV[1], ARGV[2]

-- Lua counts in doubles: beyond this, whole numbers are no longer exact.
local LARGEST = 9007199254740991

local function whole(text)
  local number = string.find(text, '^%d+$') and tonumber(text)
  return number and number <= LARGEST and number
end

-- tostring() would turn 1e15 into "1e+15".
local function decimal(number)
  return string.format('%.0f', number)
end

local function damaged(key, what)
  return {'damaged', key .. ' ' .. what}
end

-- Compares revisions as text, since they may be larger than a double can tell apart.
local function below(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- A token's cluster (64 bits) and revision (63 bits), or nil.
local function parts(text)
  local cluster, revision = string.match(text, '^([0-9a-f]+) ([1-9]%d*)$')
  if cluster and #cluster <= 16 and not below('9223372036854775807', revision) then
    return cluster, revision
  end
end

local values = redis.call('MGET', STOCK, LUCKY, INITIAL, FENCE)
local stock, lucky, initial, fence = values[1], values[2], values[3], values[4]

-- MGET answers nil for a missing key and for a key that is no string.
local function hidden(key, value)
  return not value and redis.call('EXISTS', key) == 1
end

-- The fence, before anything else: a holder that was overtaken learns that first. An operator who
-- adopts a cluster may replace the fence of another cluster, but cannot lower one of the same.
if hidden(FENCE, fence) then return damaged(FENCE, 'is not a string') end
local theirs, highest
if fence then
  theirs, highest = parts(fence)
  if not theirs then return damaged(FENCE, 'is not a cluster and a revision') end
end
if fence and token ~= '' then
  local ours, revision = parts(token)
  if theirs == ours then
    if below(revision, highest) then return {'stale', fence} end
  elseif operation ~= 'adopt' then
    return {'foreign', fence}
  end
end
local raised = token ~= '' and token ~= fence

if operation == 'adopt' then
  if not fence and redis.call('EXISTS', STOCK) == 0 then return {'unknown'} end
  redis.call('SET', FENCE, token)
  return {'ok', fence}
end

if operation == 'start' then
  -- The fence stays: a holder from before the fresh start must not sell from it.
  redis.call('UNLINK', STOCK, LUCKY, INITIAL, ORDERS, LEDGER)
  redis.call('MSET', STOCK, ARGV[3], LUCKY, '0', INITIAL, ARGV[3])
  if raised then redis.call('SET', FENCE, token) end
  return {'ok', raised and token or fence}
end

if hidden(STOCK, stock) then return damaged(STOCK, 'is not a string') end
if hidden(LUCKY, lucky) then return damaged(LUCKY, 'is not a string') end
if hidden(INITIAL, initial) then return damaged(INITIAL, 'is not a string') end
if not stock then return {'unknown'} end
stock = whole(stock)
if not stock then return damaged(STOCK, 'is not a whole number from 0') end
lucky = whole(lucky or '0')
if not lucky then return damaged(LUCKY, 'is not a whole number from 0') end
if stock + lucky > LARGEST then return damaged(STOCK, 'and ' .. LUCKY .. ' are too large') end
if initial and not whole(initial) then return damaged(INITIAL, 'is not a whole number from 0') end

local position = redis.pcall('LLEN', LEDGER)
if type(position) ~= 'number' then return damaged(LEDGER, 'is not a list') end
local records = redis.pcall('HLEN', ORDERS)
if type(records) ~= 'number' then return damaged(ORDERS, 'is not a hash') end
if position ~= records then return damaged(LEDGER, 'and ' .. ORDERS .. ' differ in length') end

local instance = ARGV[3]
local ids = {}
for i = 4, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local known = redis.call('HMGET', ORDERS, unpack(ids))

-- Whether somebody set the stock by hand and this is the first batch since.
local writes = {}
if not initial then writes = {INITIAL, decimal(stock + lucky)} end

local answers = {'ok'}
local accepted = {}  -- by id, for an order that comes twice in one batch
local added = {}     -- ids, in the order of acceptance
local fields = {}    -- the same with their records
local sold = 0
local signature = '\t' .. token .. '\t' .. instance .. '\t'

for i, id in ipairs(ids) do
  local quantity, user = ARGV[3 * i + 2], ARGV[3 * i + 3]
  local record = known[i] or accepted[id]
  if record then
    -- The first answer again, unless the id was used for something else.
    local first_quantity, first_user =
      string.match(record, '^%d+\t(%d+)\t%d+\t[^\t]*\t[^\t]*\t([^\t]*)$')
    if not first_quantity then return damaged(ORDERS, 'has no order under ' .. id) end
    answers[i + 1] = first_quantity == quantity and first_user == user and record
  else
    local units = tonumber(quantity)
    if units > stock then
      -- No trace: the same id may ask again, and for less.
      answers[i + 1] = stock
    else
      stock = stock - units
      sold = sold + units
      position = position + 1
      record = decimal(position) .. '\t' .. quantity .. '\t' .. decimal(stock) .. signature .. user
      accepted[id] = record
      added[#added + 1] = id
      fields[#fields + 1] = id
      fields[#fields + 1] = record
      answers[i + 1] = record
    end
  end
end

-- From here on nothing can fail. Few, variadic commands: a batch is bounded by the caller, so that
-- unpack() stays far below what Lua's stack holds.
if sold > 0 then
  writes[#writes + 1] = STOCK
  writes[#writes + 1] = decimal(stock)
  writes[#writes + 1] = LUCKY
  writes[#writes + 1] = decimal(lucky + sold)
end
if raised then
  writes[#writes + 1] = FENCE
  writes[#writes + 1] = token
end
if #writes > 0 then redis.call('MSET', unpack(writes)) end
if sold > 0 then
  redis.call('HSET', ORDERS, unpack(fields))
  redis.call('RPUSH', LEDGER, unpack(added))
end
return answers
