-- Part of every script of an item, behind its first line (the operator's inspection sends no watermark): compares the
-- store with the caller's watermark, which is what the store acknowledged to it last. An older copy of the
-- data, or an empty one, is below it: after a restart without the last writes, a failover to a lagging
-- replica, a restored backup.
--
-- When one caller's watermark shows a loss, nobody may sell: the script records the loss in the item's key `doubt`
-- and refuses every caller until a sale is started or the loss is accepted. Data that is restored whole comes
-- without that key.
--
-- KEYS  4 orders, 8 doubt, 10 changes, 11 holds
-- ARGV  1 the fence, 2 the sale, 3 the latest order or the one that changed last, and 4 its record or its change, of the
--       watermark; each may be empty, which is not compared
--
-- Sale:   how it began (started, accepted, found), when (microseconds), and under which token, if any.
--         A sale is `found` when its stock was set by hand: the first batch names it. It never counts as
--         later than another one, since an older copy of a stock set by hand looks just the same.

-- Compares revisions as text, since they may be larger than a double can tell apart.
local function below(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- A token's cluster (64 bits) and revision (63 bits), or nil.
local function parts(text)
  local cluster, revision = string.match(text, '^([0-9a-f]+) ([1-9]%d*)$')
  if cluster and #cluster <= 16 and not below('9223372036854775807', revision) then
    return cluster, revision
  end
end

-- How a sale began, when, and its token's cluster and revision; or nil.
local function beginning(sale)
  local how, at, token = string.match(sale, '^(%l+) (%d+) ?(.*)$')
  if how and #at <= 16 then return how, tonumber(at), parts(token) end
end

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

-- What of the watermark the store lacks, or nil; and whether a later sale excuses it.
local function lacks(fence, sale, stock)
  if sale and not beginning(sale) then return end
  if ARGV[2] ~= '' and sale ~= ARGV[2] then
    if not sale then return 'its sale is gone' end
    if later(sale, ARGV[2]) then return nil, true end
    return 'its sale is not the latest one that was started'
  end
  if ARGV[1] ~= '' then
    if not fence then return 'its fence is gone, and was ' .. ARGV[1] end
    local cluster, revision = parts(fence)
    local other_cluster, other_revision = parts(ARGV[1])
    -- Another cluster's fence was accepted; it cannot be compared.
    if cluster == other_cluster and cluster and below(revision, other_revision) then
      return 'its fence is ' .. revision .. ', and was ' .. other_revision
    end
  end
  if ARGV[2] ~= '' and not stock then return 'its stock is gone' end
end

local RECORD = '^2\t%d+\t(%d+)\t%d+\t[^\t]*\t[^\t]*\t%d+\t(%d*)\t([^\t]*)$'
local OLD_RECORD = '^%d+\t(%d+)\t%d+\t[^\t]*\t[^\t]*\t([^\t]*)$'

-- Of an order's record: the quantity, the end of the hold (empty without one), the user; or nil.
local function fields_of(record)
  local quantity, held_until, user = string.match(record, RECORD)
  if quantity then return quantity, held_until, user end
  -- written by an earlier version
  quantity, user = string.match(record, OLD_RECORD)
  return quantity, '', user
end

-- The kind of a change, or nil for what is none.
local function kind_of(entry)
  return string.match(entry, '^\n(%l+)\t')
end

-- The records of these orders. A sale of an earlier version (without terms) has them under their ids alone.
local function records_of(keys, has_terms)
  local found = redis.call('HMGET', KEYS[4], unpack(keys))
  if not has_terms then
    for i, key in ipairs(keys) do
      local user, id = string.match(key, '^([^\t]*)\t(.*)$')
      if user and not found[i] then
        local record = redis.call('HGET', KEYS[4], id)
        local _, _, theirs = fields_of(record or '')
        found[i] = theirs == user and record
      end
    end
  end
  return found
end

-- What the store has in place of the order or change of the watermark.
local function remembered(has_terms)
  if kind_of(ARGV[4]) then return redis.call('HGET', KEYS[10], ARGV[3]) end
  return records_of({ARGV[3]}, has_terms)[1]
end

-- Whether it lacks that. A record that is none is damage, and no older copy.
local function lacks_order(record)
  local what = (kind_of(ARGV[4]) and 'a change of order ' or 'order ') .. string.match(ARGV[3], '[^\t]*$')
  if not record then return what .. ' is not in its ledger any more' end
  if record ~= ARGV[4] and (fields_of(record) or kind_of(record)) then
    return what .. ' is not the one that was acknowledged'
  end
end

-- What the store lacks of the watermark, or nil.
local function lacks_any(fence, sale, stock, has_terms)
  local lost, is_later = lacks(fence, sale, stock)
  if not lost and not is_later and ARGV[3] ~= '' then return lacks_order(remembered(has_terms)) end
  return lost
end

local function refused(what)
  return redis.error_reply('ROLLEDBACK ' .. what)
end

-- Writes this key and nothing else.
local function rolled_back(what)
  redis.call('SET', KEYS[8], what)
  return refused(what)
end

-- The terms of the running sale as a table: nil if they are damaged. A sale of an earlier version has none.
local function parsed(text)
  if not text then return {} end
  local is_json, terms = pcall(cjson.decode, text)
  return is_json and type(terms) == 'table' and terms or nil
end

-- The id of the running sale, or nil. Without terms, it is the time of its beginning.
local function id_of(terms, sale)
  return terms and terms.id or string.match(sale or '', '^%l+ (%d+)')
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

-- Up to `most` orders whose holds have ended.
local function due(most)
  return redis.pcall('ZRANGEBYSCORE', KEYS[11], '-inf', decimal(now()), 'LIMIT', 0, most)
end
