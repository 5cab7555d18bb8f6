-- The only writer of an item's keys. Redis runs one script at a time, so what is checked here still holds
-- when it is written here.
--
-- Loaded behind `watermark.lua`, which defines RECORD, below, parts, beginning, lacks, lacks_order, refused and
-- rolled_back.
--
-- The shebang (Redis 7 and later) makes Redis refuse the script before it runs when memory is full, the disk
-- fails or the server is a replica, so that nothing is half written. For the same reason everything is
-- validated before the first write.
--
-- KEYS  stock, lucky, initial, orders, ledger, fence, sale, doubt
-- ARGV  1 to 4 the watermark (see watermark.lua; only reduce and probe compare it)
--       5 operation: reduce, probe (whether reduce would work; writes nothing), start, recover-cluster,
--         recover-store
--       6 token as "<cluster> <revision>"; empty: no fence is checked
--       start:  7 units
--       reduce, and probe with an empty id: 7 whether to write in any case, so that a WAIT behind the call
--       covers all that it read; 8 instance, then for each order its id, quantity and user
--
-- Keys:   stock, lucky, initial are whole numbers; ledger is the list of accepted order ids;
--         orders maps an id to its record; fence is a token; sale identifies the sale; doubt is what an
--         instance missed after a roll-back.
-- Record: position, quantity, remaining, token, instance, user; tabs between them.
-- Answer: a status (ok, stale, foreign, unknown, damaged) and what belongs to it: to ok the sale, the
--         fence, and for reduce one answer an order, for probe
--         stock and lucky. Or the error ROLLEDBACK.

local STOCK, LUCKY, INITIAL, ORDERS, LEDGER, FENCE, SALE, ROLLBACK_DETECTED = unpack(KEYS)
local operation, token = ARGV[5], ARGV[6]

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

-- Redis checks the permission for a command when it runs: a missing one would leave half of the writes done.
local needed = {
  {'MSET', STOCK, '', LUCKY, '', INITIAL, '', SALE, '', FENCE, ''},
  {'HSET', ORDERS, '', ''}, {'RPUSH', LEDGER, ''}, {'SET', ROLLBACK_DETECTED, ''},
}
if operation == 'start' or operation == 'recover-store' then
  needed[5] = {'UNLINK', STOCK, LUCKY, INITIAL, ORDERS, LEDGER, ROLLBACK_DETECTED}
end
for _, command in ipairs(needed) do
  if not redis.acl_check_cmd(unpack(command)) then
    return redis.error_reply('NOPERM this user may not run ' .. command[1])
  end
end

local values = redis.call('MGET', STOCK, LUCKY, INITIAL, FENCE, SALE, ROLLBACK_DETECTED)
local stock, lucky, initial, fence, sale = values[1], values[2], values[3], values[4], values[5]
local rollback_detected = values[6]

-- MGET answers nil for a missing key and for a key that is no string.
local function hidden(key, value)
  return not value and redis.call('EXISTS', key) == 1
end

-- The fence comes first: a stale token is refused whatever else is wrong. An operator may replace the fence of
-- another cluster, but cannot lower one of the same cluster.
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
  elseif operation ~= 'recover-cluster' then
    return {'foreign', fence}
  end
end
local raised = token ~= '' and token ~= fence

-- The name of a sale that begins now. Its time is later than that of the sale before, also if the clock was
-- set back.
local function begins(how)
  local now = redis.call('TIME')
  local at = tonumber(now[1]) * 1000000 + tonumber(now[2])
  local _, before = beginning(sale or '')
  if before and before >= at then at = before + 1 end
  return how .. ' ' .. decimal(at) .. (token ~= '' and ' ' .. token or '')
end

if operation == 'recover-cluster' then
  if not fence and redis.call('EXISTS', STOCK) == 0 then return {'unknown'} end
  redis.call('SET', FENCE, token)
  return {'ok', sale, token}
end

if operation == 'start' then
  -- The fence stays: a holder from before the fresh start must not sell from it.
  if not raised then token = fence or '' end
  sale = begins('started')
  redis.call('UNLINK', STOCK, LUCKY, INITIAL, ORDERS, LEDGER, ROLLBACK_DETECTED)
  redis.call('MSET', STOCK, ARGV[7], LUCKY, '0', INITIAL, ARGV[7], SALE, sale)
  if raised then redis.call('SET', FENCE, token) end
  return {'ok', sale, token ~= '' and token}
end

if hidden(SALE, sale) then return damaged(SALE, 'is not a string') end
if sale and not beginning(sale) then return damaged(SALE, 'is not the name of a sale') end

if operation == 'recover-store' then
  -- A new name for the present data: for every instance it is a later sale, which excuses the loss. If all
  -- data is gone, the item has no sale any more.
  if not stock and not rollback_detected then return {'unknown'} end
  sale = begins('accepted')
  redis.call('MSET', SALE, sale, FENCE, token)
  redis.call('UNLINK', ROLLBACK_DETECTED)
  return {'ok', sale, token}
end

if rollback_detected then return refused(rollback_detected) end
local lost, is_later = lacks(fence, sale, stock or hidden(STOCK, stock))
if lost then return rolled_back(lost) end
local asks_for_order = ARGV[3] ~= '' and not is_later

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

local instance = ARGV[8]
local ids = {}
for i = 1, (#ARGV - 8) / 3 do ids[i] = ARGV[3 * i + 6] end
if asks_for_order then ids[#ids + 1] = ARGV[3] end
local known = redis.call('HMGET', ORDERS, unpack(ids))
if asks_for_order then
  lost = lacks_order(known[#ids])
  if lost then return rolled_back(lost) end
  ids[#ids] = nil
end

if operation == 'probe' then return {'ok', sale, fence, stock, lucky} end

-- The first batch of a stock that was set by hand.
local writes = {}
if not initial then writes = {INITIAL, decimal(stock + lucky)} end
if not sale then
  sale = begins('found')
  writes[#writes + 1] = SALE
  writes[#writes + 1] = sale
end

local answers = {'ok', sale, token ~= '' and token or fence}
local FIRST = #answers
local accepted = {}  -- by id, for an order that comes twice in one batch
local added, count = {}, 0  -- ids, in the order of acceptance
local fields = {}    -- the same with their records
local sold = 0
-- `%d` is a long: with 32 bits in some builds, and much faster than `%.0f`. No ledger is longer than that.
local numbers = stock < 2147483648 and '%d\t%s\t%d' or '%d\t%s\t%.0f'
local signature = '\t' .. token .. '\t' .. instance .. '\t'

for i = 1, #ids do
  local id, quantity, user = ids[i], ARGV[3 * i + 7], ARGV[3 * i + 8]
  local record = known[i] or accepted[id]
  if record then
    -- the first answer again, unless the id was used for another order
    local first_quantity, first_user = string.match(record, RECORD)
    if not first_quantity then
      -- a damaged record concerns its order alone
      answers[FIRST + i] = damaged(ORDERS, 'has no order under ' .. id)
    else
      answers[FIRST + i] = first_quantity == quantity and first_user == user and record
    end
  else
    local units = quantity == '1' and 1 or tonumber(quantity)  -- parsing is slow, and most take one
    if units > stock then
      -- no trace: a retry with the same id is a new attempt
      answers[FIRST + i] = stock
    else
      stock = stock - units
      sold = sold + units
      position = position + 1
      record = string.format(numbers, position, quantity, stock) .. signature .. user
      accepted[id] = record
      count = count + 1
      added[count], fields[2 * count - 1], fields[2 * count] = id, id, record
      answers[FIRST + i] = record
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
if ARGV[7] ~= '' and #writes == 0 then writes = {SALE, sale} end
if #writes > 0 then redis.call('MSET', unpack(writes)) end
if sold > 0 then
  redis.call('HSET', ORDERS, unpack(fields))
  redis.call('RPUSH', LEDGER, unpack(added))
end
return answers
