package upstream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestMissingGrantsOfTheServiceAccountAreLoggedByName: an operator grants operations on topics by name, not by id.
func TestMissingGrantsOfTheServiceAccountAreLoggedByName(t *testing.T) {
	f := newFixture(t, newCluster(t, kfake.NumBrokers(1)))
	topic := f.topic("orders", 1)
	var log lockedBuilder
	c, err := New(Config{Seeds: f.cluster.ListenAddrs(), MetadataMaxAge: 100 * time.Millisecond}, zerolog.New(&log).Level(zerolog.InfoLevel))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(f.ctx)
	ran := make(chan struct{})
	go func() { defer close(ran); _ = c.Run(ctx) }()
	defer func() { stop(); <-ran }()
	denied := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	tail := c.Open(TP{topic.ID, 0}, ReadUncommitted)
	defer tail.Close()
	tail.Want(0)
	logged := func(parts ...string) {
		t.Helper()
		eventually(t, fmt.Sprint("logged: ", parts), func() bool {
			for line := range strings.Lines(log.text()) {
				if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
					return true
				}
			}
			return false
		})
	}
	logged(`"topic":"`+topic.Name+`"`, "READ on the topic is needed", "partition cannot be read")
	denied.Remove()
	f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	logged(`"topic":"`+topic.Name+`"`, "the service account needs READ on it")
}
