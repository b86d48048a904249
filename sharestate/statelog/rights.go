package statelog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Rights are the rules that kshare's user in Redis needs, for ACL SETUSER: the keys and the channel that begin with the
// prefix, and single commands. SELECT comes on top where the URL names a database, CLIENT SETNAME where it has a client_name.
func Rights(prefix string) []string {
	rules := []string{"resetkeys", "~" + prefix + ":*", "resetchannels", "&" + prefix + ":*", "-@all"}
	for _, command := range rightsCommands {
		rules = append(rules, "+"+command)
	}
	return rules
}

var rightsCommands = []string{
	"ping", "info", "time", "eval", "evalsha", "get", "set", "getrange", "setrange", "append", "exists", "del",
	"sadd", "srem", "scard", "smembers", "publish", "subscribe",
}

// ErrRights: the user lacks some of the [Rights].
var ErrRights = errors.New("statelog: Redis denies what kshare needs")

// rightsScript is only to be run: of a command that a script may not call Redis does not tell the name.
var rightsScript = newScript("return 1")

// CheckRights tries each command that a [Store] uses, on a key and the channel of that prefix, and leaves nothing behind. An
// error that wraps [ErrRights] names what was denied; one that wraps [ErrUnavailable] means that Redis does not answer.
func CheckRights(ctx context.Context, client redis.UniversalClient, prefix string) error {
	key := fmt.Sprintf("%s:{rights-%s}", prefix, nonceName(randomNonce()))
	commands := [][]any{
		{"TIME"}, {"EXISTS", key}, {"SREM", key, "x"}, {"SCARD", key}, {"SMEMBERS", key},
		{"GET", key}, {"GETRANGE", key, 0, 1}, {"SETRANGE", key, 0, ""}, {"DEL", key},
		{"EVALSHA", rightsScript.sha, 1, key}, {"EVAL", rightsScript.body, 1, key},
		{"SET", key, "x", "PX", 1000, "NX"}, {"DEL", key},
		{"PUBLISH", prefix + ":rights", ""},
	}
	denied, err := tryAll(ctx, client, commands)
	if err != nil {
		return err
	}
	if len(denied) == 0 { // so what these make can be removed again
		if denied, err = tryAll(ctx, client, [][]any{{"SADD", key, "x"}, {"DEL", key}, {"APPEND", key, "x"}, {"DEL", key}}); err != nil {
			return err
		}
	}
	sub := client.Subscribe(ctx, prefix+":rights")
	defer sub.Close()
	switch _, err := sub.Receive(ctx); {
	case err != nil && !refused(err):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case err != nil:
		denied = append(denied, err.Error())
	}
	if len(denied) > 0 {
		// Redis 7.0 and older name no key and no channel, so what is denied on the wrong ones reads alike
		slices.Sort(denied)
		return fmt.Errorf("%w: %s", ErrRights, strings.Join(slices.Compact(denied), "; "))
	}
	return nil
}

// tryAll returns what Redis says of commands that it denies.
func tryAll(ctx context.Context, client redis.UniversalClient, commands [][]any) (denied []string, err error) {
	for _, r := range sendAll(ctx, client, commands) {
		switch {
		case r.err == nil, redis.HasErrorPrefix(r.err, "NOSCRIPT"):
		case refused(r.err) && !away(r.err):
			denied = append(denied, r.err.Error())
		default:
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, r.err)
		}
	}
	return denied, nil
}
