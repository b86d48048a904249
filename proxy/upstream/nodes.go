package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// nodes is what the last metadata answer said of the cluster itself.
type nodes struct {
	log   zerolog.Logger
	ready chan struct{} // closed at the first answer

	mu        sync.Mutex
	clusterID string
	list      []Node // never changed, only replaced
	err       error  // of the last try
	since     time.Time
	logged    time.Time
	refused   bool // it is said already that the login fails
	listeners []func([]Node)

	telling sync.Mutex // listeners are called one at a time, in order
}

func newNodes(log zerolog.Logger) *nodes {
	return &nodes{log: log, ready: make(chan struct{}), err: fmt.Errorf("%w: nothing heard yet, is it a Kafka broker, and plaintext or TLS as upstream-tls says?", ErrUnavailable)}
}

// ClusterID is upstream's cluster id; empty before the first answer.
func (c *Client) ClusterID() string {
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	return c.nodes.clusterID
}

// Nodes are upstream's nodes by rising id. Not to be written to.
func (c *Client) Nodes() []Node {
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	return c.nodes.list
}

// OnNodes has f called with the nodes now, if they are known, and whenever they change. Calls do not overlap; f must
// not wait for the Client.
func (c *Client) OnNodes(f func([]Node)) {
	n := c.nodes
	n.telling.Lock()
	defer n.telling.Unlock()
	n.mu.Lock()
	n.listeners = append(n.listeners, f)
	list := n.list
	n.mu.Unlock()
	if list != nil {
		f(list)
	}
}

// WaitReady returns nil once upstream has answered for the first time. Run must be going.
func (c *Client) WaitReady(ctx context.Context) error {
	select {
	case <-c.nodes.ready:
		return nil
	case <-c.ended:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", c.nodes.healthy(), ctx.Err())
	}
}

// RefreshNodes asks upstream for its nodes now, together with others who ask at the same time; for when a client's
// answer names a node that Nodes does not.
func (c *Client) RefreshNodes(ctx context.Context) error {
	_, err := c.topics.ask(ctx, nil, nil)
	return err
}

func (n *nodes) healthy() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// failed notes a failed look at the metadata. It logs at most once a second.
func (n *nodes) failed(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if n.err == nil || n.since.IsZero() {
		n.since = now
	}
	n.err = err
	if errors.Is(err, ErrLogin) {
		if !n.refused {
			n.refused = true
			n.log.Error().Err(err).Msg("upstream refuses kshare's login, nothing can be read until that is put right; check the login keys")
		}
		return
	}
	if now.Sub(n.logged) >= time.Second {
		n.logged = now
		n.log.Warn().Err(err).Str("for", now.Sub(n.since).Round(time.Second).String()).Msg("upstream does not answer")
	}
}

// update takes the cluster part of a metadata answer. An answer of another cluster is refused: nothing that kshare has
// stored would fit it.
func (n *nodes) update(resp *kmsg.MetadataResponse) error {
	list := make([]Node, 0, len(resp.Brokers))
	for _, b := range resp.Brokers {
		list = append(list, Node{ID: b.NodeID, Host: b.Host, Port: b.Port, Rack: b.Rack})
	}
	slices.SortFunc(list, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	id := ""
	if resp.ClusterID != nil {
		id = *resp.ClusterID
	}
	switch {
	case len(list) == 0:
		return fmt.Errorf("%w: metadata names no nodes", ErrUnavailable)
	case id == "":
		return fmt.Errorf("%w: metadata has no cluster id", ErrUnavailable)
	}

	n.telling.Lock()
	defer n.telling.Unlock()
	n.mu.Lock()
	if n.clusterID != "" && n.clusterID != id {
		was := n.clusterID
		n.mu.Unlock()
		return fmt.Errorf("%w: the seeds lead to cluster %q now, and kshare was started on %q: restart it if that is meant", ErrUnavailable, id, was)
	}
	if n.clusterID == "" {
		n.clusterID = id
		close(n.ready)
	} else if n.err != nil {
		n.log.Info().Msg("upstream answers again")
	}
	n.err, n.refused = nil, false
	changed := !slices.EqualFunc(n.list, list, sameNode)
	if changed {
		n.list = list
	}
	listeners := slices.Clone(n.listeners)
	n.mu.Unlock()
	if changed {
		n.log.Info().Int("nodes", len(list)).Str("cluster", id).Msg("upstream's nodes")
		for _, f := range listeners {
			f(list)
		}
	}
	return nil
}

func sameNode(a, b Node) bool {
	return a.ID == b.ID && a.Host == b.Host && a.Port == b.Port &&
		(a.Rack == nil) == (b.Rack == nil) && (a.Rack == nil || *a.Rack == *b.Rack)
}
