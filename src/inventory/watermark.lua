-- Part of every script of an item, behind its first line (the operator's inspection sends no watermark): compares the
-- store with the caller's watermark, which is what the store acknowledged to it last. An older copy of the
-- data, or an empty one, is below it: after a restart without the last writes, a failover to a lagging
-- replica, a restored backup.
--
-- When one caller's watermark shows a loss, nobody may sell: the script records the loss in the item's key `doubt`
-- and refuses every caller until a sale is started or the loss is accepted. Data that is restored whole comes
-- without that key.
--
-- KEYS  8 doubt
-- ARGV  1 the fence, 2 the sale, 3 the order and 4 that order's record, of the watermark; each may be empty,
--       which is not compared
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

local RECORD = '^%d+\t(%d+)\t%d+\t[^\t]*\t[^\t]*\t([^\t]*)$'

-- The same of the order. A record that is none is damage, and no older copy.
local function lacks_order(record)
  if not record then return 'order ' .. ARGV[3] .. ' is not in its ledger any more' end
  if record ~= ARGV[4] and string.match(record, RECORD) then
    return 'order ' .. ARGV[3] .. ' is not the one that was acknowledged'
  end
end

local function refused(what)
  return redis.error_reply('ROLLEDBACK ' .. what)
end

-- Writes this key and nothing else.
local function rolled_back(what)
  redis.call('SET', KEYS[8], what)
  return refused(what)
end

