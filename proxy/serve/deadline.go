package serve

import (
	"context"
	"errors"
	"time"
)

// Clients give a share request up 5 s after its MaxWait, whatever Redis and upstream are doing, and close the connection.
const (
	// answerSlack is how long after MaxWait a request is answered at the latest.
	answerSlack = 4 * time.Second
	// opWait bounds one wait for Redis.
	opWait = 3 * time.Second
)

// errAnswerNow ends a request's context when its answer is due, as opposed to a client that has gone.
var errAnswerNow = errors.New("the answer is due")

// answerWithin bounds a request by its MaxWait and the slack.
func answerWithin(ctx context.Context, maxWait time.Duration) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, time.Now().Add(maxWait+answerSlack), errAnswerNow)
}

// clientGone tells whether the request's context ended because nobody waits for the answer.
func clientGone(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), errAnswerNow)
}

// storeContext is for waiting on ops that have gone out: the client's leaving does not end it, the answer's being due
// does.
func storeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	until := time.Now().Add(opWait)
	if due, ok := ctx.Deadline(); ok && due.Before(until) && !clientGone(ctx) {
		until = due
	}
	return context.WithDeadline(context.WithoutCancel(ctx), until)
}
