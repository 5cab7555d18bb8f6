-- The only writer of an item's keys, behind `state.lua`. Redis runs one script at a time, so what is checked here still
-- holds when it is written here.
--
-- The shebang (Redis 7 and later) makes Redis refuse the script before it runs when memory is full, the disk
-- fails or the server is a replica, so that nothing is half written. For the same reason everything is
-- validated before the first write.
--
-- ARGV  5 operation: reduce, probe (whether reduce would work; writes nothing), start, forget, recover-cluster,
--         recover-store
--       6 token as "<cluster> <revision>"; empty: no fence is checked
--       start:  7 units, 8 terms in JSON, 9 id of the sale, 10 which sales it may replace: their ids, with spaces around
--         each; or *: any; !: any, and the orders of a sale without a name are deleted; empty: a sale without orders, and a
--         named sale only if the new one is named too
--       forget: 7 id of the sale
--       reduce, and probe with an empty id: 7 whether to write in any case, so that a WAIT behind the call
--         covers all that it read; 8 instance; 9 token of an earlier call with some of the orders that was not answered;
--         then for each order its key, its quantity or a word (confirm, cancel; or expire, which ends the holds that are
--         due and belongs to no order), and its user
--
-- Answer: the sale, the fence, whether the sale has holds, and a list. For reduce, the list has the answer to each order:
--         its record, or a word with its details; for probe, stock, lucky and the number of open holds; for a repeated
--         start, a word.

local operation, token = ARGV[5], ARGV[6]

-- How many holds one batch ends at most.
local MOST_DUE = 500

-- How many replaced sales are kept, and how many of those that were deleted are remembered, so that none starts again.
local MOST_SALES, MOST_DELETED = 1000, 10000

local running = id_of()

-- Redis checks the permissions for KEYS before the script runs, but that for a command only when the command runs: if one is
-- missing then, half of the writes are done.
local needed = {{'MSET', STOCK, ''}, {'SET', FENCE, ''}, {'HSET', ORDERS, '', ''}, {'RPUSH', LEDGER, ''}}
if operation == 'start' or operation == 'recover-store' or operation == 'forget' then
  local kept = '@' .. (running or '')
  needed = {
    needed[1], needed[2], needed[3], {'HDEL', SALES, ''}, {'HVALS', SALES}, {'UNLINK', STOCK}, {'RENAME', ORDERS, ORDERS .. kept},
    {'RENAME', LEDGER, LEDGER .. kept}}
elseif terms and terms.hold_seconds then
  needed[5], needed[6] = {'ZADD', HOLDS, '0', ''}, {'ZREM', HOLDS, ''}
end
for _, command in ipairs(needed) do
  if not redis.acl_check_cmd(unpack(command)) then
    return refused('NOPERM', 'this user may not run ' .. command[1])
  end
end

-- The fence comes first: a stale token is refused whatever else is wrong. An operator may replace the fence of
-- another cluster, but cannot lower one of the same cluster.
local wrong = damaged_fence()
if wrong then return wrong end
if fence and token ~= '' then
  local theirs, highest = parts(fence)
  local ours, revision = parts(token)
  if theirs == ours then
    if below(revision, highest) then return refused('STALE', fence) end
  elseif operation ~= 'recover-cluster' then
    return refused('FOREIGN', fence)
  end
end
local raised = token ~= '' and token ~= fence

local function done(values)
  return {sale, token ~= '' and token or fence, terms and terms.hold_seconds and 1 or 0, values}
end

-- The name of a sale that begins now. Its time is later than that of the sale before, also if the clock was
-- set back.
local function begins(how)
  local at = now()
  local _, before = beginning(sale or '')
  if before and before >= at then at = before + 1 end
  return how .. ' ' .. decimal(at) .. (token ~= '' and ' ' .. token or '')
end

-- Whether `other` has all that `one` has.
local function within(one, other)
  for name, value in pairs(one) do
    if other[name] ~= value then return false end
  end
  return true
end

if operation == 'recover-cluster' then
  if not fence and redis.call('EXISTS', STOCK) == 0 then return unknown() end
  redis.call('SET', FENCE, token)
  return done({})
end

-- How many replaced sales are kept; and of each that was deleted, when, a space and its id.
local function kept_sales()
  local kept, deleted = 0, {}
  for _, text in ipairs(redis.call('HVALS', SALES)) do
    local at = deleted_at(text)
    if at then
      deleted[#deleted + 1] = string.format('%16s %s', at, string.match(text, '"id":"([^"]*)"') or '')
    else
      kept = kept + 1
    end
  end
  return kept, deleted
end

if operation == 'forget' then
  if stock and ARGV[7] == running then return refused('not-replaced', running) end
  local kept = redis.call('HGET', SALES, ARGV[7])
  if not kept or deleted_at(kept) then return refused('unknown-sale', running or '') end
  local _, deleted = kept_sales()
  table.sort(deleted)
  for i = 1, #deleted - MOST_DELETED + 1 do
    redis.call('HDEL', SALES, string.match(deleted[i], '[^ ]*$'))
  end
  -- the last version reads `began` and `ended` of all, and shows these
  local sale = parsed(kept) or {}
  redis.call('HSET', SALES, ARGV[7], string.format(
    '{"id":%s,"began":%s,"ended":%s,"deleted":%s}', cjson.encode(ARGV[7]), decimal(tonumber(sale.began) or 0),
    decimal(tonumber(sale.ended) or 0), decimal(now())))
  redis.call('UNLINK', ORDERS .. '@' .. ARGV[7], LEDGER .. '@' .. ARGV[7])
  return done({})
end

if operation == 'start' then
  local new, id, replaces = parsed(ARGV[8]), ARGV[9], ARGV[10]
  local is_forced = replaces == '!'
  -- damage counts as orders
  local entries = redis.pcall('LLEN', LEDGER)
  local has_orders = entries ~= 0
  running = stock and running or has_orders and (running or decimal(now())) or nil
  local is_same = stock and id == running
  -- a loss is given up only by who says so
  wrong = (is_same or replaces == '') and lost()
  if wrong then return wrong end
  if is_same then
    if not (terms and within(terms, new) and within(new, terms)) then return refused('sale-conflict', running) end
    -- a write, so that a WAIT behind the call covers the first one
    redis.call('SET', SALE, sale)
    if raised then redis.call('SET', FENCE, token) end
    -- with the fence of the first time
    token = string.match(sale, '^%l+ %d+ (.+)$') or fence or ''
    return done({'again'})
  end
  local kept = redis.pcall('HGET', SALES, id)
  if type(kept) == 'table' then return damaged(SALES, 'is not a hash') end
  if kept then return refused('sale-replaced', running or '') end
  if new.closes and new.closes <= now() then return refused('already-ended', running or '') end
  if replaces == '' then
    -- a start without a name that comes late must not replace what somebody prepared
    local is_prepared = running and terms and terms.named and not new.named
    if has_orders or is_prepared then return refused('sale-running', running) end
  elseif not is_forced and replaces ~= '*' and not string.find(replaces, ' ' .. (running or '') .. ' ', 1, true) then
    return refused('sale-mismatch', running or '')
  end
  -- A name is kept also without orders: the start of that sale may be repeated late.
  if running and (terms and terms.named or has_orders and not is_forced) then
    if redis.call('HLEN', SALES) >= MOST_SALES and kept_sales() >= MOST_SALES then
      return refused('too-many-sales', running)
    end
    local orders = redis.pcall('HLEN', ORDERS)
    local _, began = beginning(sale or '')
    local function number(value) return decimal(type(value) ~= 'table' and whole(value or '') or 0) end
    for _, key in ipairs({ORDERS, LEDGER}) do
      if redis.call('EXISTS', key) == 1 then redis.call('RENAME', key, key .. '@' .. running) end
    end
    redis.call('HSET', SALES, running, string.format(
      '{"id":%s,"ledger":%s,"began":%s,"ended":%s,"stock":%s,"lucky":%s,"initial":%s,"orders":%s,"entries":%s,"terms":%s}',
      cjson.encode(running), cjson.encode(ledger_of(running)), decimal(began or 0), decimal(now()), number(stock),
      number(lucky), number(initial), number(orders), number(entries), terms and terms_text or 'null'))
  end
  -- The fence stays: a holder from before the fresh start must not sell from it.
  if not raised then token = fence or '' end
  sale, terms = begins('started'), new
  redis.call('UNLINK', STOCK, LUCKY, INITIAL, ORDERS, LEDGER, ROLLBACK_DETECTED, TERMS, CHANGES, HOLDS, BUYERS)
  redis.call('MSET', STOCK, ARGV[7], LUCKY, '0', INITIAL, ARGV[7], SALE, sale, TERMS, ARGV[8])
  if raised then redis.call('SET', FENCE, token) end
  return done({})
end

wrong = damage()
if wrong then return wrong end

if operation == 'recover-store' then
  -- A new name for the present data: for every instance it is a later sale, which excuses the loss. If all
  -- data is gone, the item has no sale any more.
  if not stock and not rollback_detected then return unknown() end
  sale = begins('accepted')
  redis.call('MSET', SALE, sale, FENCE, token)
  redis.call('UNLINK', ROLLBACK_DETECTED)
  return done({})
end

local lengths = {}
for i, of in ipairs({
  {'LLEN', LEDGER, 'list'}, {'HLEN', ORDERS, 'hash'}, {'HLEN', CHANGES, 'hash'}, {'ZCARD', HOLDS, 'sorted set'},
  {'HLEN', BUYERS, 'hash'}}) do
  lengths[i] = redis.pcall(of[1], of[2])
  if type(lengths[i]) ~= 'number' then return damaged(of[2], 'is not a ' .. of[3]) end
end
local position, recorded, ended, open_holds, buyers = unpack(lengths)
if position ~= recorded + ended then
  return damaged(LEDGER, 'and ' .. ORDERS .. ' with ' .. CHANGES .. ' differ in length')
end
wrong = lost()
if wrong then return wrong end
if not stock then return unknown() end
local per_order, per_user, hold = terms.per_order, terms.per_user, terms.hold_seconds

-- The key that is missing, or nil. Redis keeps no empty list, hash or set, so what else there is tells.
local function missing()
  if not sale and (position > 0 or terms_text) then return SALE end
  if not terms_text and (ended > 0 or open_holds > 0 or buyers > 0) then return TERMS end
  if recorded == 0 then return (open_holds > 0 or buyers > 0) and ORDERS end
  return not lucky and LUCKY or not initial and INITIAL or per_user and buyers == 0 and BUYERS
    or hold and recorded > ended and open_holds == 0 and HOLDS
end
wrong = missing()
if wrong then return damaged(wrong, 'is missing') end
stock, lucky = tonumber(stock), tonumber(lucky or '0')

local instance = ARGV[8]
local keys = {}
for i = 1, (#ARGV - 9) / 3 do keys[i] = ARGV[3 * i + 7] end

-- An order that may have been accepted in an earlier sale is not carried out in this one as well. A sale that was found,
-- since its stock was set by hand, begins with its first batch, which can be that of the order itself.
local how, _, sale_cluster, sale_revision = beginning(sale or '')
local sent_cluster, sent_revision = parts(ARGV[9])
if how ~= 'found' and sent_cluster and sent_cluster == sale_cluster and below(sent_revision, sale_revision) then
  return refused('sale-replaced', running or '')
end
local known = redis.call('HMGET', ORDERS, unpack(keys))

-- units: of each user; false if they are damaged
local changes, due_keys, due_records, due_changes, units = {}, {}, {}, {}, {}
if ended > 0 then changes = redis.call('HMGET', CHANGES, unpack(keys)) end
if open_holds > 0 then due_keys = due(MOST_DUE) end
if #due_keys > 0 then
  due_records = redis.call('HMGET', ORDERS, unpack(due_keys))
  due_changes = redis.call('HMGET', CHANGES, unpack(due_keys))
end
if per_user then
  local users = {}
  for i = 1, #keys do users[i] = ARGV[3 * i + 9] end
  for _, record in ipairs(due_records) do
    local _, _, user = fields_of(record or '')
    if user then users[#users + 1] = user end
  end
  local found = redis.call('HMGET', BUYERS, unpack(users))
  for i, user in ipairs(users) do units[user] = whole(found[i] or '0') or false end
end

if operation == 'probe' then return done({stock, lucky, open_holds}) end

local function push(list, ...)
  for _, value in ipairs({...}) do list[#list + 1] = value end
end

-- The first batch of a stock that was set by hand.
local writes = {}
if not initial then writes = {INITIAL, decimal(stock + lucky)} end
if not sale then
  sale = begins('found')
  push(writes, SALE, sale)
end

local answers = {}
local accepted, changed = {}, {}  -- by key, for an order that comes twice in one batch
local added, fields = {}, {}      -- keys and changes in the order of acceptance; keys with their records
local held, freed, delayed, new_changes, new_units = {}, {}, {}, {}, {}
local sold, count = 0, 0          -- count: accepted orders
-- `%d` is a long: with 32 bits in some builds, and much faster than `%.0f`. No ledger is longer than that.
local numbers = stock + lucky < 2147483648 and '2\t%d\t%s\t%d' or '2\t%d\t%s\t%.0f'
local held_until = hold and decimal(now() + hold * 1000000) or ''
local signature = '\t' .. token .. '\t' .. instance .. '\t' .. decimal(now()) .. '\t'
local record_signature = signature .. held_until .. '\t'

local function take(user, quantity)
  stock = stock - quantity
  sold = sold + quantity
  if per_user and units[user] and user ~= '' then
    local has = units[user] + quantity
    if has < 0 then has = 0 end
    units[user], new_units[user] = has, has
  end
end

-- Ends a hold, and adds that to the ledger.
local function change(kind, key, quantity, user)
  if kind ~= 'confirmed' then take(user, -quantity) end
  position = position + 1
  local entry = string.format('\n%s\t%d\t%s\t%s', kind, position, decimal(quantity), decimal(stock)) .. signature .. key
  changed[key] = entry
  added[#added + 1] = entry
  freed[#freed + 1] = key
  push(new_changes, key, entry)
  return entry
end

for i, key in ipairs(due_keys) do
  local record = due_records[i]
  local quantity, hold_end, user = fields_of(record or '')
  if not record or due_changes[i] or hold_end == '' then
    freed[#freed + 1] = key
  elseif not quantity then
    -- a damaged record concerns its order alone, which keeps its units
    push(delayed, 'inf', key)
  elseif tonumber(hold_end) > now() then
    push(delayed, hold_end, key)
  else
    change('expired', key, tonumber(quantity), user)
  end
end

-- What an order gets whose record is there.
local function answer_known(key, word, user, record, final)
  local quantity, hold_end, first_user = fields_of(record)
  -- a damaged record concerns its order alone
  if not quantity then return 'damaged\t' .. ORDERS .. ' has no order under ' .. key end
  if not final and hold_end ~= '' and tonumber(hold_end) <= now() then
    final = change('expired', key, tonumber(quantity), first_user)
  end
  local kind = final and kind_of(final)
  local over = final and kind ~= 'confirmed' and 'over\t' .. (kind == 'expired' and hold_end or '') .. '\t' .. final
  if word ~= 'confirm' and word ~= 'cancel' then
    -- the first answer again, unless the id was used for another order
    if quantity ~= word or first_user ~= user then return 'conflict' end
    return over or 'repeated\t' .. record
  end
  local wanted = word == 'confirm' and 'confirmed' or 'cancelled'
  if not final and hold_end ~= '' then return 'changed\t' .. change(wanted, key, tonumber(quantity), user) end
  if kind == wanted then return 'unchanged\t' .. final end
  return over or word == 'confirm' and 'repeated\t' .. record or 'final'
end

-- What the holds that are left give back may do: the next batch ends them.
local function unless_more_are_due(answer)
  return #due_keys == MOST_DUE and 'holds-due' or answer
end

-- Why a new order is refused whatever is left, or nil.
local function refusal(quantity, user)
  if terms.opens and now() < terms.opens then
    return 'not-started\t' .. decimal(terms.opens) .. '\t' .. decimal(terms.opens - now())
  end
  if terms.closes and now() >= terms.closes then return 'ended\t' .. decimal(terms.closes) end
  if per_user and user == '' then return 'user-required' end
  local has = units[user]
  if has == false then return 'damaged\t' .. BUYERS .. ' has no number under ' .. user end
  has = has or 0
  if per_order and quantity > per_order then return 'order-limit\t' .. per_order .. '\t' .. has end
  if per_user and has + quantity > per_user then
    return unless_more_are_due('user-limit\t' .. per_user .. '\t' .. has)
  end
end
local has_rules = terms.opens or terms.closes or per_order or per_user

for i = 1, #keys do
  local key, quantity, user = keys[i], ARGV[3 * i + 8], ARGV[3 * i + 9]
  local record = known[i] or accepted[key]
  if record then
    answers[i] = answer_known(key, quantity, user, record, changed[key] or changes[i])
  else
    local number = quantity == '1' and 1 or tonumber(quantity)  -- parsing is slow, and most take one
    local refused_for = number and has_rules and refusal(number, user)
    if not number then
      answers[i] = 'unknown'
    elseif refused_for then
      answers[i] = refused_for
    elseif number > stock then
      -- no trace: a retry with the same id is a new attempt
      answers[i] = unless_more_are_due('sold-out\t' .. decimal(stock))
    else
      take(user, number)
      position = position + 1
      record = string.format(numbers, position, quantity, stock) .. record_signature .. user
      accepted[key] = record
      added[#added + 1] = key
      count = count + 1
      fields[2 * count - 1], fields[2 * count] = key, record
      if hold then held[2 * count - 1], held[2 * count] = held_until, key end
      answers[i] = record
    end
  end
end
if lucky + sold < 0 then return damaged(LUCKY, 'is less than the units that come back') end

-- From here on nothing can fail. Few, variadic commands: a batch is bounded by the caller, so that
-- unpack() stays far below what Lua's stack holds.
if #added > 0 then push(writes, STOCK, decimal(stock), LUCKY, decimal(lucky + sold)) end
if raised then push(writes, FENCE, token) end
if ARGV[7] ~= '' and #writes == 0 then writes = {SALE, sale} end
if #writes > 0 then redis.call('MSET', unpack(writes)) end
if #fields > 0 then redis.call('HSET', ORDERS, unpack(fields)) end
if #new_changes > 0 then redis.call('HSET', CHANGES, unpack(new_changes)) end
if #held > 0 then redis.call('ZADD', HOLDS, unpack(held)) end
if #delayed > 0 then redis.call('ZADD', HOLDS, unpack(delayed)) end
if #freed > 0 then redis.call('ZREM', HOLDS, unpack(freed)) end
if next(new_units) then
  local of_users = {}
  for user, number in pairs(new_units) do push(of_users, user, string.format('%d', number)) end
  redis.call('HSET', BUYERS, unpack(of_users))
end
if #added > 0 then redis.call('RPUSH', LEDGER, unpack(added)) end
return done(answers)
