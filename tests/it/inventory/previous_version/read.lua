-- The reads of an item, each at one moment: no start of a sale can come between. Behind `state.lua`.
--
-- It is not declared as read-only, since Redis would then run it on a replica, whose data may be old. It
-- runs also when memory is full.
--
-- ARGV  5 operation:
--       ledger: a page of a ledger. 6 first and 7 last index, 8 the sale whose ledger it is (empty: the running one), 9 the
--         ledger that the index is of, if known
--       lookup: the stock and what became of some orders. From 6 on their keys
--       sales: the sale that runs and those that it replaced
--       latest: the state, and the latest entries of the ledger. 6 how many
--       inspect: the same of all that there is, also after a roll-back

local operation = ARGV[5]
local wrong = damage() or operation ~= 'inspect' and lost()
if wrong then return wrong end
if not stock and (operation == 'lookup' or operation == 'latest') then return unknown() end
local running = stock and id_of() or ''
local name = running ~= '' and ledger_of(running) or ''

-- The first part of every answer is whether the sale has holds.
local function answer(content)
  return {terms.hold_seconds and 1 or 0, content}
end

-- A stock set by hand has no `lucky` and `initial` before its first batch.
local function state()
  local units = decimal((tonumber(stock) or 0) + (tonumber(lucky) or 0))
  return {
    stock, lucky or '0', initial or units, fence, sale, terms_text,
    redis.call('LLEN', LEDGER), redis.call('HLEN', ORDERS), redis.call('ZCARD', HOLDS)}
end

-- These entries of a ledger, and the records of those that are orders.
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
  local is_due = terms.hold_seconds and #due(1) > 0
  return answer({
    {stock, is_due and 1 or 0, terms.per_order or false}, sale, fence, running,
    redis.call('HMGET', ORDERS, unpack(keys)), redis.call('HMGET', CHANGES, unpack(keys))})
end

if operation == 'sales' then
  local kept = {}
  for _, text in ipairs(redis.call('HVALS', SALES)) do
    if not deleted_at(text) then kept[#kept + 1] = text end
  end
  return answer({state(), kept})
end

local most = tonumber(ARGV[6])
local entries = most > 0 and redis.call('LRANGE', LEDGER, -most, -1) or {}
return answer({state(), name, with_records(entries, ORDERS), rollback_detected})
