-- A batch without some safeguards.
--
-- KEYS  stock, lucky, orders, ledger, fence
-- ARGV  1 token, or nothing; 2 whether a known id gets its first answer; 3 whether lucky and ledger are written here;
--       4 instance, then for each order its id, quantity and user
-- Answer: ok, the units sold, the new ids and records, and for each order its record or the stock that did
--         not suffice; or stale or foreign, and the fence; or unknown.

local STOCK, LUCKY, ORDERS, LEDGER, FENCE = unpack(KEYS)
local token, has_ids, is_atomic, instance = ARGV[1], ARGV[2] ~= '', ARGV[3] ~= '', ARGV[4]

local fence = redis.call('GET', FENCE)
if fence and token ~= '' then
  local theirs, highest = string.match(fence, '^(%x+) (%d+)$')
  local ours, revision = string.match(token, '^(%x+) (%d+)$')
  if ours ~= theirs then return {'foreign', fence, {}, {}} end
  if tonumber(revision) < tonumber(highest) then return {'stale', fence, {}, {}} end
end
local stock = tonumber(redis.call('GET', STOCK) or '')
if not stock then return {'unknown', '', {}, {}} end
local position = redis.call('LLEN', LEDGER)
local time = redis.call('TIME')
local signature = string.format('%s\t%s\t%s%06d\t\t', token, instance, time[1], time[2])

local answers, fields, accepted, sold = {}, {}, {}, 0
for i = 5, #ARGV, 3 do
  local id, quantity, user = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local record = has_ids and (accepted[id] or redis.call('HGET', ORDERS, id))
  if record then
    answers[#answers + 1] = record
  elseif tonumber(quantity) > stock then
    answers[#answers + 1] = string.format('%.0f', stock)
  else
    stock = stock - tonumber(quantity)
    sold = sold + tonumber(quantity)
    position = position + 1
    record = string.format('2\t%.0f\t%s\t%.0f\t%s%s', position, quantity, stock, signature, user)
    accepted[id] = record
    fields[#fields + 1] = id
    fields[#fields + 1] = record
    answers[#answers + 1] = record
  end
end

if token ~= '' then redis.call('SET', FENCE, token) end
if sold > 0 then
  redis.call('SET', STOCK, string.format('%.0f', stock))
  if is_atomic then
    redis.call('INCRBY', LUCKY, sold)
    redis.call('HSET', ORDERS, unpack(fields))
    for i = 1, #fields, 2 do redis.call('RPUSH', LEDGER, fields[i]) end
  end
end
return {'ok', string.format('%.0f', sold), fields, answers}
