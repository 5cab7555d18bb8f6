-- Part of every script that only reads, behind the check functions.
--
-- KEYS  stock, lucky, initial, orders, ledger, fence, sale, doubt

local STOCK, LUCKY, INITIAL, ORDERS, LEDGER, FENCE, SALE, ROLLBACK_DETECTED = unpack(KEYS)

local function get(key) return redis.call('GET', key) end

local stock, fence, sale, rollback_detected = get(STOCK), get(FENCE), get(SALE), get(ROLLBACK_DETECTED)
local lost, is_later
if rollback_detected then
  lost = refused(rollback_detected)
else
  lost, is_later = lacks(fence, sale, stock)
  if not lost and not is_later and ARGV[3] ~= '' then
    lost = lacks_order(redis.call('HGET', ORDERS, ARGV[3]))
  end
  lost = lost and rolled_back(lost)
end

local function state()
  return {stock, get(LUCKY), get(INITIAL), fence, redis.call('LLEN', LEDGER), sale}
end
