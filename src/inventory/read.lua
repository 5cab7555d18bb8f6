-- The reads of an item, each at one moment: no start of a sale can come between. Follows `state.lua`.
--
-- It is not declared as read-only, since Redis would then run it on a replica, whose data may be old. It also runs when
-- memory is full.
--
-- ARGV  5 operation:
--       ledger: a page of a ledger. 6 first and 7 last index, 8 the sale of the ledger (empty: the running one), 9 the
--         name of the ledger to which the first index belongs, if it is known
--       lookup: the units left, the held units, and some orders with their changes. From 6 on the orders' keys
--       sales: the running sale and the sales that were replaced
--       stock: the state
--       inspect: the state, the latest entry of the ledger and the data that an instance missed, also without stock and
--         after a roll-back

local operation = ARGV[5]
local wrong = damage() or operation ~= 'inspect' and lost()
if wrong then return wrong end
if not stock and (operation == 'lookup' or operation == 'stock') then return unknown() end
local running = stock and id_of() or ''
local name = running ~= '' and ledger_of(running) or ''

-- Every answer begins with whether the sale has holds.
local function answer(content)
  return {terms.hold_seconds and 1 or 0, content}
end

-- Entries of a ledger, and the records of those entries that are orders.
local function with_records(entries, orders)
  return {entries, #entries > 0 and redis.call('HMGET', orders, unpack(entries)) or {}}
end

if operation == 'ledger' then
  local first, last, wanted, of = tonumber(ARGV[6]), ARGV[7], ARGV[8], ARGV[9]
  local id, suffix = running, ''
  if wanted ~= '' and wanted ~= id then
    local kept = redis.call('HGET', SALES, wanted)
    if not kept or deleted_at(kept) then return refused('unknown-sale', running) end
    id, suffix, name = wanted, '@' .. wanted, (parsed(kept) or {}).ledger or wanted
  elseif not stock then
    return unknown()
  end
  local ledger = LEDGER .. suffix
  if of ~= '' and of ~= name or first > redis.call('LLEN', ledger) then return refused('sale-replaced', running) end
  return answer({id, name, with_records(redis.call('LRANGE', ledger, first, last), ORDERS .. suffix)})
end

if operation == 'lookup' then
  local keys = {unpack(ARGV, 6)}
  local hold, held = terms.hold_seconds, false
  local ends_in = hold and first_end('-inf')
  local is_due = ends_in and ends_in <= 0
  -- if holds are due, the next batch says how many units are held
  if ends_in and not is_due then held = {held_units(1, redis.call('LLEN', LEDGER)), decimal(ends_in), hold} end
  local records, fields = redis.call('HMGET', ORDERS, unpack(keys)), {}
  for i, key in ipairs(keys) do
    if records[i] then fields[#fields + 1], fields[#fields + 2] = key, '\n' .. key end
  end
  local found = #fields > 0 and redis.call('HMGET', CHANGES, unpack(fields)) or {}
  local changes, of_found = {}, 0
  for i in ipairs(keys) do
    changes[i] = false
    if records[i] then
      of_found = of_found + 2
      changes[i] = found[of_found] or found[of_found - 1]
    end
  end
  return answer({
    {stock, is_due and 1 or 0, terms.per_order or false, held, why_closed() or false}, sale, fence, running, records, changes})
end

if operation == 'sales' then
  local kept = {}
  for _, text in ipairs(redis.call('HVALS', SALES)) do
    if not deleted_at(text) then kept[#kept + 1] = text end
  end
  return answer({state(), kept})
end

if operation == 'stock' then return answer(state()) end
return answer({state(), with_records(redis.call('LRANGE', LEDGER, -1, -1), ORDERS), rollback_detected})
