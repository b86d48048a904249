package statelog

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// One channel carries the names of logs that other replicas' waiters should look at, and notices about the index. A
// message is lines: the sender's writer nonce, then names. Messages may be lost; the catch-up of watched logs covers that.
const (
	wakeChannel = "wake"
	indexNotice = "/index" // never a log's name: names do not begin with a slash
)

// wakes is who is interested in what is not a log.
type wakes struct {
	mu    sync.Mutex
	index map[*Watch]struct{}
	ready chan struct{} // closed when first subscribed
	once  sync.Once
}

func (w *wakes) init() {
	w.index = make(map[*Watch]struct{})
	w.ready = make(chan struct{})
}

// wakeCall makes the message of the next pipeline.
func (s *Store) wakeCall(names map[string]struct{}) *call {
	lines := make([]string, 1, 1+len(names))
	lines[0] = nonceName(s.writer)
	for name := range names {
		lines = append(lines, name)
	}
	s.stats.published.Add(1)
	return &call{args: []any{"PUBLISH", s.prefix + wakeChannel, strings.Join(lines, "\n")}, done: func(any, error) {}}
}

// listen keeps the subscription until ctx ends. The client reconnects it; after each (re)subscription messages may have
// been missed, so everything counts as stale.
func (s *Store) listen(ctx context.Context) {
	sub := s.client.Subscribe(ctx, s.prefix+wakeChannel)
	defer sub.Close()
	messages := sub.ChannelWithSubscriptions(redis.WithChannelSize(1024), redis.WithChannelHealthCheckInterval(time.Second))
	for {
		select {
		case <-ctx.Done():
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			switch m := m.(type) {
			case *redis.Subscription:
				s.resubscribed()
			case *redis.Message:
				s.heard(m.Payload)
			}
		}
	}
}

func (s *Store) resubscribed() {
	for _, f := range s.logFamilies() {
		for _, c := range f.all() {
			c.woken()
		}
	}
	s.pipe.kick()
	s.tellIndex()
	s.wake.once.Do(func() { close(s.wake.ready) })
}

// heard takes one message.
func (s *Store) heard(message string) {
	sender, names, _ := strings.Cut(message, "\n")
	if sender == nonceName(s.writer) {
		return // our own folds have told everybody here
	}
	for name := range strings.SplitSeq(names, "\n") {
		if name == indexNotice {
			s.tellIndex()
			continue
		}
		for _, f := range s.logFamilies() {
			if c := f.lookup(name); c != nil {
				c.woken()
			}
		}
	}
	s.pipe.kick()
}

func (s *Store) logFamilies() []*family {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.families
}

// AddToIndex adds a name to the set that all replicas share, and tells them if it is new.
func (s *Store) AddToIndex(ctx context.Context, name string) error {
	return s.changeIndex(ctx, "SADD", name)
}

// RemoveFromIndex removes a name from the set, and tells the replicas if it was there.
func (s *Store) RemoveFromIndex(ctx context.Context, name string) error {
	return s.changeIndex(ctx, "SREM", name)
}

func (s *Store) changeIndex(ctx context.Context, command, name string) error {
	values, err := s.roundTrip(ctx, []any{command, s.indexKey(), name})
	if err != nil {
		return fmt.Errorf("index, %q: %w", name, err)
	}
	if values[0] != int64(0) {
		s.pipe.publish(indexNotice)
		s.pipe.kick()
		s.tellIndex()
	}
	return nil
}

// Index returns the names in the set, in no order.
func (s *Store) Index(ctx context.Context) ([]string, error) {
	values, err := s.roundTrip(ctx, []any{"SMEMBERS", s.indexKey()})
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	return stringsOf(values[0]), nil
}

func (s *Store) indexKey() string { return s.prefix + "groups" }

// WatchIndex gives a token when the set may have changed. A message can be lost: read the set now and then all the same.
func (s *Store) WatchIndex() *Watch {
	w := newWatch()
	w.stop = func() {
		s.wake.mu.Lock()
		defer s.wake.mu.Unlock()
		delete(s.wake.index, w)
	}
	s.wake.mu.Lock()
	defer s.wake.mu.Unlock()
	s.wake.index[w] = struct{}{}
	return w
}

func (s *Store) tellIndex() {
	s.wake.mu.Lock()
	defer s.wake.mu.Unlock()
	for w := range s.wake.index {
		w.tell()
	}
}

// stringsOf reads a reply that is a list (RESP2) or a set (RESP3, which go-redis gives as a list too).
func stringsOf(v any) []string {
	list, _ := v.([]any)
	names := make([]string, 0, len(list))
	for _, e := range list {
		if name, ok := e.(string); ok {
			names = append(names, name)
		}
	}
	return names
}
