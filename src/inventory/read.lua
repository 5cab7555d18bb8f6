-- Part of every script that only reads, behind the check functions.
--
-- KEYS  as in script.lua

local STOCK, LUCKY, INITIAL, ORDERS, LEDGER, FENCE, SALE, ROLLBACK_DETECTED, TERMS, CHANGES, HOLDS, _, SALES = unpack(KEYS)

local function get(key) return redis.call('GET', key) end

local stock, fence, sale, rollback_detected = get(STOCK), get(FENCE), get(SALE), get(ROLLBACK_DETECTED)
local terms_text = get(TERMS)
local terms = parsed(terms_text) or {}
local lost
if rollback_detected then
  lost = refused(rollback_detected)
else
  lost = lacks_any(fence, sale, stock, terms_text)
  lost = lost and rolled_back(lost)
end

local function state()
  local entries = redis.call('LLEN', LEDGER)
  return {
    {stock, get(LUCKY), get(INITIAL), fence, entries, sale},
    {redis.call('HLEN', ORDERS), redis.call('ZCARD', HOLDS), terms_text}}
end
