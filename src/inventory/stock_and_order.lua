-- The beginning of the look at the stock and at one order, which a sold-out sale answers every order
-- with: the usual case, in which the store has just what was acknowledged, or a later fence of the same
-- cluster. It needs none of the functions below, and making them costs more than this. In any other case
-- they look again, and say what is wrong.
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
  -- who remembers nothing will remember an order's answer, with its sale, which must be checked then
  and (found[3] == ARGV[2] or ARGV[2] == '' and not records[1])
  and (records[2] == ARGV[4] or ARGV[3] == '')
then
  return {found[1], records[1], found[3], fence}
end

