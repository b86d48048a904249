package statelog

import (
	"crypto/sha1" // #nosec G505 -- Redis' name for a script
	"encoding/hex"
)

// script is a Lua script that touches exactly one key. It does no arithmetic on state: Lua's numbers and their printing
// differ between servers.
type script struct{ body, sha string }

func newScript(body string) *script {
	sum := sha1.Sum([]byte(body)) // #nosec G401 -- Redis' name for a script
	return &script{body: body, sha: hex.EncodeToString(sum[:])}
}

// nowLua is Redis' clock as 16 digits (µs).
const nowLua = `
local t = redis.call('TIME')
local now = string.sub('0000000000' .. t[1], -10) .. string.sub('000000' .. t[2], -6)
`

var (
	// appendScript: ARGV 1 = where the last token known to the caller begins, 2 = that token ('' = none), 3 = length and
	// body of the frame, 4 = its token. Returns 0 if there is no log, the known token and all bytes after it, or (in a
	// table) the whole log if that token is not there: compacted, rolled back or replaced.
	appendScript = newScript(`
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end` + nowLua + `
redis.call('APPEND', KEYS[1], ARGV[3] .. now .. ARGV[4])
local r = redis.call('GETRANGE', KEYS[1], ARGV[1], -1)
if string.sub(r, 1, 16) == ARGV[2] then return r end
return { redis.call('GET', KEYS[1]) }
`)

	// compactScript: ARGV 1, 2 as above, 3 = snapshot frame of everything up to that token. Keeps what was appended after it.
	compactScript = newScript(`
local r = redis.call('GETRANGE', KEYS[1], ARGV[1], -1)
if string.sub(r, 1, 16) ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[3] .. string.sub(r, 17))
return 1
`)

	// openScript: ARGV 1 = header without its first field, and body. Returns the time of opening, which rises even if
	// the clock does not, and the header that was replaced.
	openScript = newScript(nowLua + `
local old = redis.call('GETRANGE', KEYS[1], 0, 35)
local opened = string.sub(old, 1, 16)
if opened >= now then now = string.format('%016.0f', tonumber(opened) + 1) end
redis.call('SET', KEYS[1], now .. ARGV[1])
return { now, old }
`)

	// moveScript: ARGV 1 = header that must be there, 2 = new header, 3 = '1' to replace the body too, 4 = body.
	// Returns 1, or in a table what is there instead.
	moveScript = newScript(`
if redis.call('GETRANGE', KEYS[1], 0, 35) ~= ARGV[1] then return { redis.call('GET', KEYS[1]) } end
if ARGV[3] == '1' then redis.call('SET', KEYS[1], ARGV[2] .. ARGV[4])
else redis.call('SETRANGE', KEYS[1], 0, ARGV[2]) end
return 1
`)

	// closeScript: ARGV 1 = time of opening and replica of the session that may be removed. Returns the session, or in a
	// table what is there instead.
	closeScript = newScript(`
local old = redis.call('GET', KEYS[1])
if not old or string.sub(old, 1, 24) ~= ARGV[1] then return { old } end
redis.call('DEL', KEYS[1])
return old
`)

	// buryScript removes a session of a dead replica. ARGV 1 = that replica.
	buryScript = newScript(`
if redis.call('GETRANGE', KEYS[1], 16, 23) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
`)
)
