-- The first part of every script of an item: reads the item's plain keys, and compares the store with the caller's watermark, the
-- data that the store last acknowledged to the caller. A store is below the watermark if it is empty or has an older copy of the
-- data: after a restart without the last writes, a failover to a lagging replica, or the restore of a backup.
--
-- When one caller's watermark shows a loss, nobody may sell: the script records the loss in the item's key `doubt`, and refuses
-- every caller until a sale is started or an operator accepts the loss. A restored complete backup has no such key.
--
-- ARGV  1 to 4 the watermark: the fence, the sale, the order of the latest entry, and that entry (a record or a change); an
--       empty one is not compared. In 3 and 4, orders and entries of other instances may follow, with a byte 30 between
--       them. 5 the operation of the script that follows
--
-- Keys:   stock, lucky, initial are whole numbers; fence is a token; sale identifies the sale; doubt is the data that an
--         instance missed after a roll-back; terms is JSON. An order's key is its id, behind "<user>\t" if it has a user.
--         orders maps this key to the order's record, changes to its change. ledger lists the keys of the accepted orders,
--         and the changes. holds has the end of each open hold. buyers has the units of each user, and under "\theld",
--         which is no user, the held units and the length of the ledger at which they were counted. sales describes each
--         replaced sale; of a deleted sale it keeps the id and the times. The ledger and the orders of a replaced sale are
--         in keys with "@<id>" behind the name.
-- Sale:   how it began (started, accepted, found), when (microseconds), and under which token, if there was one. A sale is
--         `found` when its stock was set by hand: the first batch names it. It never counts as later than another sale,
--         since an older copy of a stock set by hand looks just the same.
-- Record: 2, position, quantity, remaining, token, writer, time, end of the hold, user; tabs between them. Never changes.
-- Change: "\n" and confirmed, cancelled, expired or returned; position, quantity, remaining, token, writer, time, key. An
--         order has at most one of the first three, under its key. A confirmed order, or one without a hold, may have the
--         fourth, under "\n" and its key. A change of the sale has the same form: changed, with the units added as the
--         quantity, and in place of the key the call in JSON; it is under "\n\t" and the key of the call. Terms then have
--         the version (the number of changes) and the terms of the start. While the sale is paused, they also have its own
--         start, and their usual start is so late that to the previous version the sale has not started.
-- Writer: the instance; behind a # the number of the buyer's request, if it has one; behind an @ the instance that held
--         the lock, if it is another one.
-- Errors: a refusal is an error with a code: STALE and FOREIGN with the fence, UNKNOWNITEM, DAMAGED, ROLLEDBACK; and about
--         a sale the type of the problem, with the id of the running sale.

local STOCK, LUCKY, INITIAL, ORDERS, LEDGER, FENCE, SALE, ROLLBACK_DETECTED, TERMS, CHANGES, HOLDS, BUYERS, SALES =
  unpack(KEYS)
local stock, lucky, initial, fence, sale, rollback_detected, terms_text =
  unpack(redis.call('MGET', STOCK, LUCKY, INITIAL, FENCE, SALE, ROLLBACK_DETECTED, TERMS))

-- Lua counts in doubles: beyond this, whole numbers are no longer exact.
local LARGEST = 9007199254740991

-- The largest limit, which limits nothing; and the longest hold.
local NO_LIMIT, MOST_HOLD_SECONDS = 1000000, 86400

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

-- tostring() would write 1e15 as "1e+15"
local function decimal(number)
  return string.format('%.0f', number)
end

local function whole(text)
  local number = string.find(text, '^%d+$') and tonumber(text)
  return number and number <= LARGEST and number
end

-- A JSON object or list as a table; nil for any other text.
local function parsed(text)
  local is_json, value = pcall(cjson.decode, text)
  return is_json and type(value) == 'table' and value or nil
end

-- Whether these are the terms of a sale. Another version may have more fields, and times up to the end of the year
-- 9999, which doubles round up to the next year. Instances read times as 64 bits.
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
    and is_up_to(terms.per_order, NO_LIMIT) and is_up_to(terms.per_user, NO_LIMIT)
    and is_up_to(terms.hold_seconds, MOST_HOLD_SECONDS)
    and is_time(terms.starts_at, terms.opens) and is_time(terms.ends_at, terms.closes)
    and is_time(terms.own_starts_at, terms.own_opens) and is_up_to(terms.version, LARGEST)
    and (terms.start == nil or type(terms.start) == 'table')
end

-- nil if the terms are damaged; empty for a stock set by hand, which has no terms
local terms = {}
if terms_text then
  terms = parsed(terms_text)
  if terms and not are_terms(terms) then terms = nil end
  if terms and terms.paused then terms.opens, terms.starts_at = terms.own_opens, terms.own_starts_at end
end

-- The id of the running sale, or nil. Without terms, the id is the time at which the sale began.
local function id_of()
  return terms and terms.id or string.match(sale or '', '^%l+ (%d+)')
end

-- Whether revision `a` is smaller than `b`. Compares text, since doubles cannot tell large revisions apart.
local function below(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- `parse` with a memory: a script reads the same tokens and names of sales several times.
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

-- The time at which a replaced sale was deleted, in microseconds, from its entry in `sales`; nil if it was not deleted.
local function deleted_at(text)
  -- the end alone: to look for it in the whole text takes Redis ten times as long
  return string.match(string.sub(text, -32), '"deleted":(%d+)}$')
end

-- How a sale began, when, and the cluster and revision of its token; or nil.
local beginning = once(function(sale)
  local how, at, token = string.match(sale .. ' ', '^(%l+) (%d+) (.*)$')
  if how and whole(at) then return how, tonumber(at), parts(string.sub(token, 1, -2)) end
end)

-- Whether sale `a` was begun on purpose after sale `b`.
local function later(a, b)
  local how, at, cluster, revision = beginning(a)
  local _, other_at, other_cluster, other_revision = beginning(b)
  if how == 'found' then return false end
  if cluster and cluster == other_cluster and revision ~= other_revision then
    return below(other_revision, revision)
  end
  -- without two tokens of one cluster, the server's clock decides
  return at > other_at
end

-- Whether a key exists but is no string. MGET answers nil for it, as for a missing key.
local function hidden(key, value)
  return not value and redis.call('EXISTS', key) == 1
end

local function damaged_fence()
  if hidden(FENCE, fence) then return damaged(FENCE, 'is not a string') end
  if fence and not parts(fence) then return damaged(FENCE, 'is not a cluster and a revision') end
end

-- The error of damaged plain keys, or nil.
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
  -- A start writes all plain keys; the first batch of a stock set by hand writes `initial`. After a loss was accepted,
  -- the stock may have been set by hand.
  if stock and (how == 'started' or how == 'found') then
    if not initial then return damaged(INITIAL, 'is missing') end
    if how == 'started' and not lucky then return damaged(LUCKY, 'is missing') end
    if how == 'started' and not terms_text then return damaged(TERMS, 'is missing') end
  end
  return damaged_fence()
end

local RECORD = '^2\t(%d+)\t(%d+)\t%d+\t[^\t]*\t[^\t]*\t%d+\t(%d*)\t([^\t]*)$'

-- The quantity, the end of the hold (empty without one) and the user of an order's record; nil if the record is damaged.
local function fields_of(record)
  local position, quantity, hold_end, user = string.match(record, RECORD)
  if position and whole(position) and whole(quantity) and (hold_end == '' or whole(hold_end)) then
    return quantity, hold_end, user
  end
end

-- The kind of a change; nil for anything else.
local function kind_of(entry)
  return string.match(entry, '^\n(%l+)\t')
end

-- The part of the watermark that the plain keys lack, or nil; and whether a later sale excuses the loss.
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
    -- the fence of another cluster was accepted: it cannot be compared
    if cluster == other_cluster and cluster and below(revision, other_revision) then
      return 'its fence is ' .. revision .. ', and was ' .. other_revision
    end
  end
  if sale_then ~= '' and not stock then return 'its stock is gone' end
end

-- The loss of this order or change, or nil. A malformed record is damage, not an older copy.
local function lacks_entry(key, entry)
  local is_change = kind_of(entry)
  local found = redis.call('HGET', is_change and CHANGES or ORDERS, key)
  local what = is_change and (is_change == 'changed' and 'change ' or 'a change of order ') or 'order '
  what = what .. string.match(key, '[^\t]*$')
  if not found then return what .. ' is not in its ledger any more' end
  if found ~= entry and (fields_of(found) or kind_of(found)) then
    return what .. ' is not the one that was acknowledged'
  end
end

-- The first loss of an order or change of the watermark, or nil.
local function lacks_order()
  local entries = string.gmatch(ARGV[4], '[^\30]+')
  for key in string.gmatch(ARGV[3], '[^\30]+') do
    local what = lacks_entry(key, entries())
    if what then return what end
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

-- The name of the running sale's ledger. It changes when a loss is accepted, since earlier positions do not fit the
-- remaining ledger.
local function ledger_of(id)
  local how, at = beginning(sale or '')
  return how == 'accepted' and id .. '~' .. decimal(at) or id
end

-- The field of `buyers` with the count of the held units. The previous version reads only the fields of users. It adds
-- entries to the ledger without counting, and the count then is of a shorter ledger.
local HELD = '\theld'
local COUNT = '^(%d+) (%d+)$'

-- The time in microseconds until a hold ends: the first end at `from` or later; nil if there is none. At most the
-- time of the longest possible hold, since a clock may have been set back. The hold of a damaged order never ends.
local function first_end(from)
  local first = redis.call('ZRANGEBYSCORE', HOLDS, from, decimal(LARGEST), 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return first and math.min(tonumber(first) - now(), MOST_HOLD_SECONDS * 1000000)
end

-- The answer to every new order while the sale accepts none, or nil.
local function why_closed()
  if terms.closes and now() >= terms.closes then return 'ended\t' .. decimal(terms.closes) end
  if terms.paused then return 'paused' end
  if terms.opens and now() < terms.opens then
    return 'not-started\t' .. decimal(terms.opens) .. '\t' .. decimal(terms.opens - now())
  end
end

-- The units that are held; false until the next batch counts the present ledger.
local function held_units(open_holds, length)
  if open_holds == 0 then return 0 end
  local count = redis.pcall('HGET', BUYERS, HELD)
  local units, counted_to = string.match(type(count) == 'string' and count or '', COUNT)
  return tonumber(counted_to) == length and units
end

-- The state of the item. A stock set by hand has no `lucky` and `initial` before its first batch.
local function state()
  local units = decimal((tonumber(stock) or 0) + (tonumber(lucky) or 0))
  local length, open_holds = redis.call('LLEN', LEDGER), redis.call('ZCARD', HOLDS)
  return {
    stock, lucky or '0', initial or units, fence, sale, terms_text,
    length, redis.call('HLEN', ORDERS), open_holds, held_units(open_holds, length), decimal(now())}
end
