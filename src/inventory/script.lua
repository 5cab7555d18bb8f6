-- The only writer of an item's keys. It follows `state.lua`. Redis runs one script at a time, so a condition that is
-- checked here still holds at the writes.
--
-- The shebang (Redis 7 and later) makes Redis refuse the whole script when memory is full, the disk fails or the server
-- is a replica, so that it cannot stop after some of its writes. For the same reason everything is validated before the
-- first write.
--
-- ARGV  5 operation: reduce, probe (whether reduce would work; writes nothing), change, start, forget, recover-cluster,
--         recover-store
--       6 token as "<cluster> <revision>"; empty: no fence is checked
--       start:  7 units, 8 terms in JSON, 9 id of the sale, 10 the sales that it may replace: their ids, with spaces
--         around each; *: any sale; !: any sale, and the orders of one without a name are deleted; empty: a sale without
--         orders; a new sale without a name then replaces no named one
--       forget: 7 id of the sale
--       reduce, and probe with one empty order: 7 whether to write in any case, so that a WAIT behind the call covers all
--         data that it read; 8 the writer of entries that no order asks for; then five for each order: its key; its
--         quantity or a word (confirm, cancel, return; or expire, which only has holds end whose time is over); its user;
--         the writer of its entry; the token of its first attempt without an answer, or nothing
--       change: 7 and 8 as in reduce; 9 its field in changes; 10 the change and its note in JSON; 11 the sales that it may
--         change, as in start; 12 and 13 the new times in microseconds, if they are given; 14 a text for `now`
--
-- Answer: the sale, the fence, whether the sale has holds, and a list. The list has for reduce the answer to each order:
--         its record, or a word with its details; for probe stock, lucky and the number of open holds; for a repeated
--         start a word; for a change its entry, whether it was made before, and the state.

local operation, token = ARGV[5], ARGV[6]

-- The most holds that one batch ends.
local MOST_DUE = 500

-- The most entries of the ledger that one batch counts, after an instance of the previous version wrote them.
local MOST_COUNTED = 1000

-- The most units of a sale.
local MOST_UNITS = 1000000000000

-- The start that the terms of a paused sale have, for the previous version.
local PAUSED, PAUSED_TEXT = 7258032000000000, '2199-12-31T00:00:00Z'

-- The most replaced sales that are kept, and the most deleted sales that are remembered: a remembered sale does not start again.
local MOST_SALES, MOST_DELETED = 1000, 10000

local running = id_of()

-- Without a permission for one of these commands, the script would stop after some of its writes: before a script runs, Redis
-- checks only the permissions for KEYS.
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

-- The fence comes first: a stale token is refused whatever else is wrong. An operator may replace the fence of another
-- cluster, but cannot lower a fence of the same cluster.
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

-- The name of a sale that begins now. Its time is later than the previous sale's, even if the clock was set back.
local function begins(how)
  local at = now()
  local _, before = beginning(sale or '')
  if before and before >= at then at = before + 1 end
  return how .. ' ' .. decimal(at) .. (token ~= '' and ' ' .. token or '')
end

-- Whether `other` has all fields of `one`.
local function within(one, other)
  for name, value in pairs(one) do
    if other[name] ~= value then return false end
  end
  return true
end

-- Whether the running sale is one of `sales`, and in the named version if one is named.
local function is_one_of(sales)
  local function has(name) return string.find(sales, ' ' .. name .. ' ', 1, true) end
  return running and (has(running) or has(running .. ':' .. decimal(terms and terms.version or 0)))
end

if operation == 'recover-cluster' then
  if not fence and redis.call('EXISTS', STOCK) == 0 then return unknown() end
  redis.call('SET', FENCE, token)
  return done({})
end

-- The number of replaced sales that are kept, and for each deleted sale its time of deletion, a space and its id.
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
  -- the previous version reads `began` and `ended` of every entry, and shows deleted sales too
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
  -- a damaged ledger counts as one with orders
  local entries = redis.pcall('LLEN', LEDGER)
  local has_orders = entries ~= 0
  running = stock and running or has_orders and (running or decimal(now())) or nil
  local is_same = stock and id == running
  -- lost data is given up only if the caller names the sale that it replaces
  wrong = (is_same or replaces == '') and lost()
  if wrong then return wrong end
  if is_same then
    local began = terms and (terms.start or terms)
    if not (began and within(began, new) and within(new, began)) then return refused('sale-conflict', running) end
    -- a write, so that a WAIT behind the call covers the first start
    redis.call('SET', SALE, sale)
    if raised then redis.call('SET', FENCE, token) end
    -- the answer has the fence of the first start
    token = string.match(sale, '^%l+ %d+ (.+)$') or fence or ''
    return done({'again'})
  end
  local kept = redis.pcall('HGET', SALES, id)
  if type(kept) == 'table' then return damaged(SALES, 'is not a hash') end
  if kept then return refused('sale-replaced', running or '') end
  if new.closes and new.closes <= now() then return refused('already-ended', running or '') end
  if replaces == '' then
    -- a late start without a name must not replace a sale that somebody prepared
    local is_prepared = running and terms and terms.named and not new.named
    if has_orders or is_prepared then return refused('sale-running', running) end
  elseif not is_forced and replaces ~= '*' and not is_one_of(replaces) then
    return refused('sale-mismatch', running or '')
  end
  -- A named sale is kept even without orders: its start may be repeated late.
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
  -- The fence stays: a holder from before this start must not sell units of the new sale.
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
  -- A new name for the present data: every instance sees a later sale, which excuses the loss. If all data is gone, the
  -- item then has no sale.
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

-- A key that is missing, or nil. Redis keeps no empty list, hash or set, so the other keys show which ones must exist.
local function missing()
  if not sale and (position > 0 or terms_text) then return SALE end
  if not terms_text and (ended > 0 or open_holds > 0 or buyers > 0) then return TERMS end
  if recorded == 0 then return (open_holds > 0 or buyers > 0) and ORDERS end
  if hold and open_holds == 0 then
    local units, length = string.match(redis.call('HGET', BUYERS, HELD) or '', COUNT)
    if (tonumber(units) or 0) > 0 and tonumber(length) == position or recorded > ended then return HOLDS end
  end
  return not lucky and LUCKY or not initial and INITIAL or per_user and buyers == 0 and BUYERS
end
wrong = missing()
if wrong then return damaged(wrong, 'is missing') end
stock, lucky = tonumber(stock), tonumber(lucky or '0')

-- the number of orders, and the keys to look up: those of the orders, or the field of the change
local orders = operation == 'change' and 0 or (#ARGV - 8) / 5
local keys = operation == 'change' and {ARGV[9]} or {}
for i = 1, orders do keys[i] = ARGV[5 * i + 4] end

-- Whether an order may have been accepted in an earlier sale: then it is not carried out in this one. A sale that was
-- `found` begins with its first batch, which may be the order's own.
local how, _, sale_cluster, sale_revision = beginning(sale or '')
local function is_of_an_earlier_sale(sent_under)
  if sent_under == '' or how == 'found' then return false end
  local cluster, revision = parts(sent_under)
  return cluster and cluster == sale_cluster and below(revision, sale_revision)
end
local known = redis.call('HMGET', ORDERS, unpack(keys))

-- units: the units of each user; false if the number is damaged
local changes, due_keys, due_records, due_changes, units = {}, {}, {}, {}, {}
if ended > 0 then changes = redis.call('HMGET', CHANGES, unpack(keys)) end
if open_holds > 0 then
  due_keys = redis.call('ZRANGEBYSCORE', HOLDS, '-inf', decimal(now()), 'LIMIT', 0, MOST_DUE)
end
if #due_keys > 0 then
  due_records = redis.call('HMGET', ORDERS, unpack(due_keys))
  due_changes = redis.call('HMGET', CHANGES, unpack(due_keys))
end
local users, count_then = {}, ''
if per_user then
  for i = 1, orders do users[i] = ARGV[5 * i + 6] end
  for _, record in ipairs(due_records) do
    local _, _, user = fields_of(record or '')
    if user then users[#users + 1] = user end
  end
end
if per_user or hold then
  local found = redis.call('HMGET', BUYERS, HELD, unpack(users))
  for i, user in ipairs(users) do units[user] = whole(found[i + 1] or '0') or false end
  count_then = found[1] or ''
end

if operation == 'probe' then return done({stock, lucky, open_holds}) end

-- The units that are held before this batch, and the length of the ledger at which they are counted. This batch counts
-- entries of the previous version, up to MOST_COUNTED.
local held_before, counted_to = 0, position
if hold and open_holds > 0 then
  local units_then, length_then = string.match(count_then, COUNT)
  held_before, counted_to = tonumber(units_then) or 0, tonumber(length_then) or 0
  if counted_to > position then held_before, counted_to = 0, 0 end
end
if counted_to < position then
  local of_orders = {}
  local entries = redis.call('LRANGE', LEDGER, counted_to, counted_to + MOST_COUNTED - 1)
  for _, entry in ipairs(entries) do
    local kind, units_ended = string.match(entry, '^\n(%l+)\t%d+\t(%d+)\t')
    if kind == 'confirmed' or kind == 'cancelled' or kind == 'expired' then
      held_before = held_before - tonumber(units_ended)
    else
      of_orders[#of_orders + 1] = entry
    end
  end
  local records = #of_orders > 0 and redis.call('HMGET', ORDERS, unpack(of_orders)) or {}
  for _, record in ipairs(records) do held_before = held_before + (tonumber(fields_of(record or '') or '') or 0) end
  counted_to = counted_to + #entries
end
local is_counted = counted_to == position

local function push(list, ...)
  for _, value in ipairs({...}) do list[#list + 1] = value end
end

-- the first batch of a stock that was set by hand
local writes = {}
if not initial then writes = {INITIAL, decimal(stock + lucky)} end
if not sale then
  sale = begins('found')
  push(writes, SALE, sale)
end

local answers = {}
local accepted, changed, back = {}, {}, {}  -- by key, for an order that occurs twice in a batch
local added, fields = {}, {}      -- keys and changes in the order of acceptance; keys with their records
local held, freed, delayed, new_changes, new_units, of_users = {}, {}, {}, {}, {}, {}
local sold, count = 0, 0          -- count: accepted orders
local confirmed = 0               -- units that this batch confirmed, less those that it took back
-- `%d` is a C long, which has 32 bits in some builds, and is much faster than `%.0f`. No ledger has 2^31 entries.
local numbers = stock + lucky < 2147483648 and '2\t%d\t%s\t%d' or '2\t%d\t%s\t%.0f'
local held_until = hold and decimal(now() + hold * 1000000) or ''
-- the fields of an entry before and behind its writer, and those of a record behind its writer
local before, behind = '\t' .. token .. '\t', '\t' .. decimal(now()) .. '\t'
local behind_record = behind .. held_until .. '\t'

local function take(user, quantity)
  stock = stock - quantity
  sold = sold + quantity
  if per_user and units[user] and user ~= '' then
    local has = units[user] + quantity
    if has < 0 then has = 0 end
    units[user], new_units[user] = has, has
  end
end

-- Ends a hold or takes back a confirmed order, and adds an entry about this to the ledger.
local function change(kind, key, quantity, user, writer)
  if kind == 'confirmed' then confirmed = confirmed + quantity else take(user, -quantity) end
  if kind == 'returned' then confirmed = confirmed - quantity end
  position = position + 1
  local entry = string.format('\n%s\t%d\t%s\t%s', kind, position, decimal(quantity), decimal(stock))
    .. before .. (writer or ARGV[8]) .. behind .. key
  added[#added + 1] = entry
  if kind == 'returned' then
    back[key] = entry
    push(new_changes, '\n' .. key, entry)
  else
    changed[key] = entry
    freed[#freed + 1] = key
    push(new_changes, key, entry)
  end
  return entry
end

for i, key in ipairs(due_keys) do
  local record = due_records[i]
  local quantity, hold_end, user = fields_of(record or '')
  if not record or due_changes[i] or hold_end == '' then
    freed[#freed + 1] = key
  elseif not quantity then
    -- a damaged record affects its order alone, whose units stay taken
    push(delayed, 'inf', key)
  elseif tonumber(hold_end) > now() then
    push(delayed, hold_end, key)
  else
    change('expired', key, tonumber(quantity), user)
  end
end

-- The answer to an order that has a record.
local function answer_known(key, word, user, writer, record, final)
  local quantity, hold_end, first_user = fields_of(record)
  if not quantity then return 'damaged\t' .. ORDERS .. ' has no order under ' .. key end
  if not final and hold_end ~= '' and tonumber(hold_end) <= now() then
    final = change('expired', key, tonumber(quantity), first_user)
  end
  local kind = final and kind_of(final)
  local over = final and kind ~= 'confirmed' and 'over\t' .. (kind == 'expired' and hold_end or '') .. '\t' .. final
  local is_held = not final and hold_end ~= ''
  local came_back = not over and not is_held
    and (back[key] or ended > 0 and redis.call('HGET', CHANGES, '\n' .. key))
  if came_back then over = 'over\t\t' .. came_back end
  if word ~= 'confirm' and word ~= 'cancel' and word ~= 'return' then
    -- the first answer again, unless the id was used for another order
    if quantity ~= word or first_user ~= user then return 'conflict' end
    return over or 'repeated\t' .. record
  end
  if word == 'return' then
    if came_back then return 'unchanged\t' .. came_back end
    if over then return over end
    -- without terms, the entry would look like damage to the previous version
    if is_held or not terms_text then return is_held and 'not-confirmed' or 'final' end
    return 'changed\t' .. change('returned', key, tonumber(quantity), user, writer)
  end
  local wanted = word == 'confirm' and 'confirmed' or 'cancelled'
  if is_held then return 'changed\t' .. change(wanted, key, tonumber(quantity), user, writer) end
  if kind == wanted and not came_back then return 'unchanged\t' .. final end
  return over or word == 'confirm' and 'repeated\t' .. record or 'final'
end

-- The answer, or `holds-due` if this batch ended the most holds that it may: the next batch may bring more units back.
local function unless_more_are_due(answer)
  return #due_keys == MOST_DUE and 'holds-due' or answer
end

-- The answer to an order for more units than are left. Held units may come back: behind the units left, the answer then
-- has the time until the first hold ends, and how long holds last. The previous version ignores both: they are no numbers.
local held_details
local function too_few(number)
  local answer = 'sold-out\t' .. decimal(stock)
  if not hold or is_counted and number > stock + held_before + sold - confirmed then return answer end
  if not held_details then
    local ends_in = first_end(decimal(now())) or (#held > 0 or #delayed > 0) and hold * 1000000
    if not ends_in then return answer end
    held_details = '\tw' .. decimal(ends_in) .. '\th' .. hold
  end
  return answer .. held_details
end

local closed = why_closed()

-- The refusal of a new order for another reason than too few units, or nil.
local function refusal(quantity, user)
  if closed then return closed end
  if per_user and user == '' then return 'user-required' end
  local has = units[user]
  if has == false then return 'damaged\t' .. BUYERS .. ' has no number under ' .. user end
  has = has or 0
  if per_order and quantity > per_order then return 'order-limit\t' .. per_order .. '\t' .. has end
  if per_user and has + quantity > per_user then
    return unless_more_are_due('user-limit\t' .. per_user .. '\t' .. has)
  end
end
local has_rules = closed or per_order or per_user

if operation == 'change' then
  -- a refusal raises the fence: an earlier attempt without an answer must not be carried out after it
  local function not_changed(code, what)
    if raised then redis.call('SET', FENCE, token) end
    return refused(code, what or running or '')
  end
  if changes[1] then
    if string.match(changes[1], '[^\t]*$') ~= ARGV[10] then return not_changed('change-conflict') end
  else
    local asked = parsed(ARGV[10]).change
    local add = asked.add or 0
    local units = (tonumber(initial) or stock + lucky + sold) + add
    if not is_one_of(ARGV[11]) then return not_changed('sale-mismatch') end
    -- Without terms, the entry would look like damage to the previous version. A sale that began without a limit for users
    -- did not count their units, and one that began without holds has no held units.
    if not terms_text or asked.per_user and not per_user or asked.hold_seconds and not hold
      or asked.starts_at and not (terms.opens and now() < terms.opens) then
      return not_changed('term-final')
    end
    -- a stock that was raised by hand can exceed `initial`
    if math.min(stock + add, units) < 0 then
      return not_changed('too-few-units', decimal(math.min(stock, units - add)))
    end
    if units > MOST_UNITS then return not_changed('too-many-units') end
    terms.start = terms.start or parsed(terms_text)
    terms.version = (terms.version or 0) + 1
    for _, name in ipairs({'per_order', 'per_user', 'hold_seconds', 'paused', 'starts_at', 'ends_at'}) do
      if asked[name] ~= nil then terms[name] = asked[name] or nil end
    end
    if asked.per_order == NO_LIMIT then terms.per_order = nil end
    if asked.starts_at then terms.opens = tonumber(ARGV[12]) or now() end
    if asked.ends_at then terms.closes = tonumber(ARGV[13]) or now() end
    if asked.starts_at == 'now' then terms.starts_at = ARGV[14] end
    if asked.ends_at == 'now' then
      terms.ends_at = ARGV[14]
    elseif (asked.ends_at or asked.starts_at) and terms.closes and terms.closes <= math.max(now(), terms.opens or 0) then
      return not_changed('already-ended')
    end
    terms.own_opens, terms.own_starts_at = nil, nil
    if terms.paused then
      terms.own_opens, terms.own_starts_at, terms.opens, terms.starts_at = terms.opens, terms.starts_at, PAUSED, PAUSED_TEXT
    end
    -- JSON by hand, since cjson would round times
    local function encoded(value)
      if type(value) == 'number' and value % 1 == 0 then return decimal(value) end
      if type(value) ~= 'table' then return cjson.encode(value) end
      local fields = {}
      for i, element in ipairs(value) do fields[i] = encoded(element) end
      if #fields > 0 then return '[' .. table.concat(fields, ',') .. ']' end
      for name, field in pairs(value) do fields[#fields + 1] = cjson.encode(name) .. ':' .. encoded(field) end
      table.sort(fields)
      return '{' .. table.concat(fields, ',') .. '}'
    end
    stock, initial, terms_text, position = stock + add, decimal(units), encoded(terms), position + 1
    push(added, string.format('\nchanged\t%d\t%s\t%s', position, decimal(add), decimal(stock))
      .. before .. ARGV[8] .. behind .. ARGV[10])
    push(new_changes, ARGV[9], added[#added])
    push(writes, INITIAL, initial, TERMS, terms_text)
  end
end

for i = 1, orders do
  local key, quantity, user, writer = keys[i], ARGV[5 * i + 5], ARGV[5 * i + 6], ARGV[5 * i + 7]
  local record = known[i] or accepted[key]
  if is_of_an_earlier_sale(ARGV[5 * i + 8]) then
    answers[i] = 'sale-replaced'
  elseif record then
    answers[i] = answer_known(key, quantity, user, writer, record, changed[key] or changes[i])
  else
    local number = quantity == '1' and 1 or tonumber(quantity)  -- parsing is slow, and most orders take one
    local refused_for = number and has_rules and refusal(number, user)
    if not number then
      answers[i] = 'unknown'
    elseif refused_for then
      answers[i] = refused_for
    elseif number > stock then
      -- nothing is recorded: a retry with the same id is a new attempt
      answers[i] = unless_more_are_due(too_few(number))
    else
      take(user, number)
      position = position + 1
      record = string.format(numbers, position, quantity, stock) .. before .. writer .. behind_record .. user
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

-- From here on nothing can fail. There are few commands with many arguments: the caller limits the batch, so unpack()
-- stays far below the limit of Lua's stack.
if #added > 0 then push(writes, STOCK, decimal(stock), LUCKY, decimal(lucky + sold)) end
if raised then push(writes, FENCE, token) end
if ARGV[7] ~= '' and #writes == 0 then writes = {SALE, sale} end
if #writes > 0 then redis.call('MSET', unpack(writes)) end
if #fields > 0 then redis.call('HSET', ORDERS, unpack(fields)) end
if #new_changes > 0 then redis.call('HSET', CHANGES, unpack(new_changes)) end
if #held > 0 then redis.call('ZADD', HOLDS, unpack(held)) end
if #delayed > 0 then redis.call('ZADD', HOLDS, unpack(delayed)) end
if #freed > 0 then redis.call('ZREM', HOLDS, unpack(freed)) end
for user, number in pairs(new_units) do push(of_users, user, string.format('%d', number)) end
if hold and recorded + count > 0 then
  local held_now = held_before
  if is_counted then held_now, counted_to = held_before + sold - confirmed, position end
  local count_now = decimal(math.max(0, held_now)) .. ' ' .. decimal(counted_to)
  if count_now ~= count_then then push(of_users, HELD, count_now) end
end
if #of_users > 0 then redis.call('HSET', BUYERS, unpack(of_users)) end
if #added > 0 then redis.call('RPUSH', LEDGER, unpack(added)) end
if operation == 'change' then
  lucky, fence = lucky + sold, token ~= '' and token or fence
  return done({changes[1] or added[#added], changes[1] and 1 or 0, state()})
end
return done(answers)
