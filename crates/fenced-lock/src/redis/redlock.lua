-- One node of Redlock. KEYS: names of locks. ARGV: 1 what to do, 2 TTL in milliseconds, then the value for each name. Answers
-- for each name: 1 if it was done; 0 if the key has another value; 2 if the key did not exist (`set` then sets it).
local done = {}
for i = 1, #KEYS do
  local value = redis.call('GET', KEYS[i])
  if value == ARGV[2 + i] then
    if ARGV[1] == 'delete' then
      redis.call('DEL', KEYS[i])
    else
      redis.call('PEXPIRE', KEYS[i], ARGV[2])
    end
    done[i] = 1
  elseif value then
    done[i] = 0
  else
    if ARGV[1] == 'set' then
      redis.call('SET', KEYS[i], ARGV[2 + i], 'PX', ARGV[2])
    end
    done[i] = 2
  end
end
return done
