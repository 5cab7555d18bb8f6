-- The fast path of the read of the stock and of one order, with which a sold-out sale answers every order: the
-- store is just at the watermark, or has a later fence of the same cluster. It avoids the cost of defining the
-- functions below. In any other case they check again and say what is wrong.
--
-- ARGV  5 the order

local found = redis.call('MGET', KEYS[1], KEYS[6], KEYS[7], KEYS[8])
local records = redis.call('HMGET', KEYS[4], ARGV[5], ARGV[3])
local fence = found[2]
local is_fine = fence == ARGV[1] or ARGV[1] == ''
if not is_fine and fence and #fence == #ARGV[1] and fence > ARGV[1] then
  local space = string.find(fence, ' ', 1, true)
  is_fine = space and string.sub(fence, 1, space) == string.sub(ARGV[1], 1, space)
end
if is_fine and found[1]
  and not found[4]
  -- a caller without a watermark would take the order into it, with its sale, which must be checked then
  and (found[3] == ARGV[2] or ARGV[2] == '' and not records[1])
  and (records[2] == ARGV[4] or ARGV[3] == '')
then
  return {found[1], records[1], found[3], fence}
end

