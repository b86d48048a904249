package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"kshare/proxy/upstream"
	"kshare/sharestate/statelog"
)

// missing is what start-up still waits for, by the key that names it, for the log and /readyz.
type missing struct {
	mu  sync.Mutex
	why map[string]string
}

func newMissing() *missing {
	return &missing{why: map[string]string{"upstream": "no answer yet", "redis": "no answer yet"}}
}

func (m *missing) set(key string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.why, key)
		return
	}
	m.why[key] = err.Error()
}

// String names each missing thing with the reason; empty when nothing is missing.
func (m *missing) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(m.why)) {
		parts = append(parts, key+": "+m.why[key])
	}
	return strings.Join(parts, "; ")
}

// refusal is a login or a right that is denied: most likely a mistake of the operator, which is said at once and loudly, but
// passwords get renewed and rights granted while kshare waits.
type refusal struct{ key, problem string }

func (e *refusal) Error() string { return e.problem }

const (
	attempt  = time.Second            // longest wait for one answer
	patience = 500 * time.Millisecond // between attempts
	quick    = 10                     // log lines at one a second; after these, one in ten seconds
)

// await returns once upstream and Redis have both answered. It gives up only for what waiting cannot cure.
func (r *replica) await(ctx context.Context) error {
	done := make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() { r.reportMissing(ctx, done) })
	defer reporting.Wait()
	defer close(done)
	both, trying := errgroup.WithContext(ctx)
	both.Go(func() error { return r.retry(trying, "redis", r.checkRedis) })
	both.Go(func() error { return r.retry(trying, "upstream", r.checkUpstream) })
	return both.Wait()
}

// retry repeats check until it succeeds, finds a mistake of the operator, or ctx ends.
func (r *replica) retry(ctx context.Context, key string, check func(context.Context) error) error {
	for said := false; ; {
		try, cancel := context.WithTimeout(ctx, attempt)
		err := check(try)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case asConfigError(err):
			return err
		}
		r.missing.set(key, err)
		if err == nil {
			return nil
		}
		if refused := (*refusal)(nil); errors.As(err, &refused) && !said {
			said = true
			r.log.Error().Str("key", refused.key).Msg(err.Error())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(patience):
		}
	}
}

func (r *replica) checkRedis(ctx context.Context) error {
	warnings, err := statelog.CheckServer(ctx, r.redis)
	if err == nil {
		err = statelog.CheckRights(ctx, r.redis, r.c.RedisPrefix)
	}
	switch {
	case errors.Is(err, statelog.ErrEvicts):
		return &configError{key: "redis", problem: strings.TrimPrefix(err.Error(), "statelog: ")}
	case errors.Is(err, statelog.ErrRights):
		return &refusal{"redis", fmt.Sprintf("%s: %s; grant what the README lists under Redis", r.c.Redis, strings.TrimPrefix(err.Error(), "statelog: "))}
	case statelog.LoginRefused(err):
		return &refusal{"redis", fmt.Sprintf("%s refuses the login: %s; check %s", r.c.Redis, without(err, statelog.ErrUnavailable), r.c.redisKeys())}
	case errors.As(err, new(redis.Error)):
		return fmt.Errorf("%s refuses: %s", r.c.Redis, without(err, statelog.ErrUnavailable))
	case err != nil:
		return fmt.Errorf("%s does not answer: %s", r.c.Redis, without(err, statelog.ErrUnavailable)+redisHint(string(r.c.Redis), err))
	}
	if r.c.origin["redis"] == originEmbedded {
		return nil // is not made to last, which dev says
	}
	for _, w := range warnings {
		r.warnOfRedis(w)
	}
	r.redisSays = warnings
	return nil
}

func (r *replica) warnOfRedis(text string) { r.log.Warn().Str("key", "redis").Msg(text) }

// redisHint asks what a server may be that was reached and did not speak as Redis does.
func redisHint(url string, err error) string {
	var op *net.OpError
	switch {
	case distrusted(err):
		return "; check redis-tls-ca"
	case errors.As(err, &op) && op.Op == "dial":
		return ""
	case strings.HasPrefix(url, "rediss:"):
		return ", is it a TLS port of Redis? redis:// is for plaintext"
	}
	return ", is it a plaintext port of Redis? rediss:// is for TLS"
}

// distrusted says whether the certificate that a server showed is of no authority that kshare trusts.
func distrusted(err error) bool {
	return errors.As(err, new(x509.UnknownAuthorityError))
}

func (r *replica) checkUpstream(ctx context.Context) error {
	if err := r.upstream.WaitReady(ctx); err == nil {
		return nil
	}
	err := r.upstream.Healthy()
	if err == nil {
		return nil // it has answered just now
	}
	seeds := strings.Join(r.c.Upstream, ",")
	if errors.Is(err, upstream.ErrLogin) {
		return &refusal{"login-mechanism", fmt.Sprintf("%s: %s; check %s", seeds, without(err, upstream.ErrUnavailable), r.c.loginKeys())}
	}
	text := without(err, upstream.ErrUnavailable)
	if errors.As(err, new(*kgo.ErrFirstReadEOF)) { // whose own text does not know the names of kshare's settings
		text = "it closes the connection at the first request, is it a broker's listener, with TLS only where upstream-tls is set, and SASL only where login-mechanism is?"
	}
	switch {
	case distrusted(err):
		text += "; check upstream-tls-ca"
	case errors.As(err, new(tls.RecordHeaderError)), strings.Contains(text, "tls alert record"): // kgo has no error of its own for a TLS port
		text += "; check upstream-tls"
	}
	return fmt.Errorf("%s does not answer: %s", seeds, text)
}

// without is an error's text less what the sentence around it says already.
func without(err, said error) string { return strings.TrimPrefix(err.Error(), said.Error()+": ") }

// reportMissing logs what start-up waits for, one line a second at most.
func (r *replica) reportMissing(ctx context.Context, done <-chan struct{}) {
	pause := time.Second
	for lines := 0; ; lines++ {
		if lines >= quick {
			pause = 10 * time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-done:
			return
		case <-time.After(pause):
		}
		if text := r.missing.String(); text != "" {
			r.log.Warn().Msg("waiting for " + text)
		}
	}
}
