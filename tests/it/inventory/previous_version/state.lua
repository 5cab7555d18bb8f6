-- Part of every script of an item, behind its first line: reads the item's plain keys, and compares the store with the
-- caller's watermark, which is what the store acknowledged to it last. An older copy of the data, or an empty one, is
-- below it: after a restart without the last writes, a failover to a lagging replica, a restored backup.
--
-- When one caller's watermark shows a loss, nobody may sell: the script records the loss in the item's key `doubt`
-- and refuses every caller until a sale is started or the loss is accepted. Data that is restored whole comes
-- without that key.
--
-- ARGV  1 the fence, 2 the sale, 3 the latest order or the one that changed last, and 4 its record or its change, of the
--       watermark; each may be empty, which is not compared. 5 the operation of the script behind this one
--
-- Keys:   stock, lucky, initial are whole numbers; fence is a token; sale identifies the sale; doubt is what an
--         instance missed after a roll-back; terms is JSON; an order's key is its id, behind "<user>\t" if there is one;
--         orders maps it to its record, changes to its change; ledger is the list of the keys of the accepted orders and
--         of the changes; holds has the end of each open hold; buyers has the units of each user; sales has what is
--         known of each sale that was replaced, whose ledger and orders are in keys with "@<id>" behind the name. Of one
--         that was deleted, its id and times stay.
-- Sale:   how it began (started, accepted, found), when (microseconds), and under which token, if any.
--         A sale is `found` when its stock was set by hand: the first batch names it. It never counts as
--         later than another one, since an older copy of a stock set by hand looks just the same.
-- Record: 2, position, quantity, remaining, token, instance, time, end of the hold, user; tabs between them. Never changes.
-- Change: "\n" and confirmed, cancelled or expired; position, quantity, remaining, token, instance, time, key. Its
--         order's last one: there is no other.
-- Errors: what is refused is an error with a code: STALE and FOREIGN with the fence, UNKNOWNITEM, DAMAGED, ROLLEDBACK, and
--         for a sale the type of the problem with the id of the running sale.

local STOCK, LUCKY, INITIAL, ORDERS, LEDGER, FENCE, SALE, ROLLBACK_DETECTED, TERMS, CHANGES, HOLDS, BUYERS, SALES =
  unpack(KEYS)
local stock, lucky, initial, fence, sale, rollback_detected, terms_text =
  unpack(redis.call('MGET', STOCK, LUCKY, INITIAL, FENCE, SALE, ROLLBACK_DETECTED, TERMS))

-- Lua counts in doubles: beyond this, whole numbers are no longer exact.
local LARGEST = 9007199254740991

local function refused(code, what)
  return redis.error_reply(code .. ' ' .. what)
end

local function damaged(key, what)
  return refused('DAMAGED', key .. ' ' .. what)
end

local function unknown()
  return refused('UNKNOWNITEM', 'there is no stock')
end

local clock

-- Redis' time in microseconds, the same throughout a script.
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return clock
end

-- tostring() would turn 1e15 into "1e+15".
local function decimal(number)
  return string.format('%.0f', number)
end

local function whole(text)
  local number = string.find(text, '^%d+$') and tonumber(text)
  return number and number <= LARGEST and number
end

-- A JSON object or list as a table; nil if it is none.
local function parsed(text)
  local is_json, value = pcall(cjson.decode, text)
  return is_json and type(value) == 'table' and value or nil
end

-- Whether these are the terms of a sale. Another version may have fields of its own, and times up to the end of the year 9999,
-- which is the next year in doubles. Instances read times as 64 bits.
local function are_terms(terms)
  local function is_whole(value, least, most)
    return type(value) == 'number' and value >= least and value <= most and value % 1 == 0
  end
  local function is_up_to(value, most)
    return value == nil or is_whole(value, 1, most)
  end
  local function is_time(text, micros)
    if text == nil and micros == nil then return true end
    return type(text) == 'string' and string.find(text, '^%d%d%d%d%-') and is_whole(micros, 0, 2 ^ 63)
  end
  return type(terms.id) == 'string' and #terms.id <= 64 and string.find(terms.id, '^[%w._-]+$')
    and type(terms.named) == 'boolean' and is_whole(terms.initial, 0, LARGEST)
    and is_up_to(terms.per_order, 1000000) and is_up_to(terms.per_user, 1000000)
    and is_up_to(terms.hold_seconds, 86400)
    and is_time(terms.starts_at, terms.opens) and is_time(terms.ends_at, terms.closes)
end

-- Nil if they are damaged. A stock set by hand has none.
local terms = {}
if terms_text then
  terms = parsed(terms_text)
  if terms and not are_terms(terms) then terms = nil end
end

-- The id of the running sale, or nil. Without terms, it is the time of its beginning.
local function id_of()
  return terms and terms.id or string.match(sale or '', '^%l+ (%d+)')
end

-- Compares revisions as text, since they may be larger than a double can tell apart.
local function below(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- What `parse` returns, which parses each text once: tokens and names of sales come several times in a script.
local function once(parse)
  local results = {}
  return function(text)
    local found = results[text]
    if not found then
      found = {parse(text)}
      results[text] = found
    end
    return unpack(found)
  end
end

-- A token's cluster (64 bits) and revision (63 bits), or nil.
local parts = once(function(text)
  local cluster, revision = string.match(text, '^([0-9a-f]+) ([1-9]%d*)$')
  if cluster and #cluster <= 16 and not below('9223372036854775807', revision) then
    return cluster, revision
  end
end)

-- When a sale that was replaced was deleted, in microseconds, by its entry in `sales`; nil if it was not.
local function deleted_at(text)
  return string.match(text, '"deleted":(%d+)}$')
end

-- How a sale began, when, and its token's cluster and revision; or nil.
local beginning = once(function(sale)
  local how, at, token = string.match(sale .. ' ', '^(%l+) (%d+) (.*)$')
  if how and whole(at) then return how, tonumber(at), parts(string.sub(token, 1, -2)) end
end)

-- Whether sale `a` was begun after sale `b`, on purpose.
local function later(a, b)
  local how, at, cluster, revision = beginning(a)
  local _, other_at, other_cluster, other_revision = beginning(b)
  if how == 'found' then return false end
  if cluster and cluster == other_cluster and revision ~= other_revision then
    return below(other_revision, revision)
  end
  -- Without a token the server's clock must do.
  return at > other_at
end

-- MGET answers nil for a missing key and for a key that is no string.
local function hidden(key, value)
  return not value and redis.call('EXISTS', key) == 1
end

local function damaged_fence()
  if hidden(FENCE, fence) then return damaged(FENCE, 'is not a string') end
  if fence and not parts(fence) then return damaged(FENCE, 'is not a cluster and a revision') end
end

-- What is wrong with the plain keys, as an error; or nil.
local function damage()
  for key, value in pairs({[STOCK] = stock, [LUCKY] = lucky, [INITIAL] = initial}) do
    if hidden(key, value) or value and not whole(value) then return damaged(key, 'is not a whole number from 0') end
  end
  if (tonumber(stock) or 0) + (tonumber(lucky) or 0) > LARGEST then
    return damaged(STOCK, 'and ' .. LUCKY .. ' are too large')
  end
  local how = sale and beginning(sale)
  if hidden(SALE, sale) or sale and not how then return damaged(SALE, 'is not the name of a sale') end
  if hidden(TERMS, terms_text) or not terms then return damaged(TERMS, 'is not the terms of a sale') end
  if hidden(ROLLBACK_DETECTED, rollback_detected) then return damaged(ROLLBACK_DETECTED, 'is not a string') end
  -- A start writes all plain keys, and the first batch of a stock set by hand `initial`. In a sale that was accepted, the
  -- stock may have been set by hand since.
  if stock and (how == 'started' or how == 'found') then
    if not initial then return damaged(INITIAL, 'is missing') end
    if how == 'started' and not lucky then return damaged(LUCKY, 'is missing') end
    if how == 'started' and not terms_text then return damaged(TERMS, 'is missing') end
  end
  return damaged_fence()
end

local RECORD = '^2\t(%d+)\t(%d+)\t%d+\t[^\t]*\t[^\t]*\t%d+\t(%d*)\t([^\t]*)$'

-- Of an order's record: the quantity, the end of the hold (empty without one), the user; or nil if it is damaged.
local function fields_of(record)
  local position, quantity, hold_end, user = string.match(record, RECORD)
  if position and whole(position) and whole(quantity) and (hold_end == '' or whole(hold_end)) then
    return quantity, hold_end, user
  end
end

-- The kind of a change, or nil for what is none.
local function kind_of(entry)
  return string.match(entry, '^\n(%l+)\t')
end

-- What the plain keys lack of the watermark, or nil; and whether a later sale excuses all that is missing.
local function lacks()
  local fence_then, sale_then = ARGV[1], ARGV[2]
  if sale and not beginning(sale) then return end
  if sale_then ~= '' and sale ~= sale_then then
    if not sale then return 'its sale is gone' end
    if later(sale, sale_then) then return nil, true end
    return 'its sale is not the latest one that was started'
  end
  if fence_then ~= '' then
    if not fence then return 'its fence is gone, and was ' .. fence_then end
    local cluster, revision = parts(fence)
    local other_cluster, other_revision = parts(fence_then)
    -- Another cluster's fence was accepted; it cannot be compared.
    if cluster == other_cluster and cluster and below(revision, other_revision) then
      return 'its fence is ' .. revision .. ', and was ' .. other_revision
    end
  end
  if sale_then ~= '' and not stock then return 'its stock is gone' end
end

-- Whether the store lacks the order or the change of the watermark. A record that is none is damage, and no older copy.
local function lacks_order()
  local key, entry = ARGV[3], ARGV[4]
  if key == '' then return end
  local is_change = kind_of(entry)
  local found = redis.call('HGET', is_change and CHANGES or ORDERS, key)
  local what = (is_change and 'a change of order ' or 'order ') .. string.match(key, '[^\t]*$')
  if not found then return what .. ' is not in its ledger any more' end
  if found ~= entry and (fields_of(found) or kind_of(found)) then
    return what .. ' is not the one that was acknowledged'
  end
end

-- The error of a store that was rolled back, or nil. It writes the key `doubt` and nothing else.
local function lost()
  if rollback_detected then return refused('ROLLEDBACK', rollback_detected) end
  local what, is_excused = lacks()
  what = what or not is_excused and lacks_order()
  if what then
    redis.call('SET', ROLLBACK_DETECTED, what)
    return refused('ROLLEDBACK', what)
  end
end

-- The name of the ledger of this running sale: positions of before a loss that was accepted are none of it.
local function ledger_of(id)
  local how, at = beginning(sale or '')
  return how == 'accepted' and id .. '~' .. decimal(at) or id
end

-- Up to `most` orders whose holds have ended.
local function due(most)
  return redis.call('ZRANGEBYSCORE', HOLDS, '-inf', decimal(now()), 'LIMIT', 0, most)
end
