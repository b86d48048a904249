//go:build e2e

package conformance

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// kshare's own user does all that kshare does by itself with the few grants that the README asks for, and is refused
// nothing.
func TestServiceAccountNeedsNoMoreThanItsGrants(t *testing.T) {
	if native() {
		t.Skip("about kshare")
	}
	w := enter(t, setup{secured: true})
	upstream, err := kgo.NewClient(kgo.SeedBrokers(w.tg.kafka.Inner), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer upstream.Close()
	checkpoint := "kshare." + w.group
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	dead := "dlq." + w.main.name // which there is not yet
	w.set(w.group, deadLetterTopic, dead)
	w.produce(w.p(0), 3)
	m := w.member()
	m.takes("0-2x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 1), reject(2, 2))
	w.lagBecomes(w.p(0), 0)
	w.until("a dead letter", 30*time.Second, func() error {
		ends, err := kadm.NewClient(upstream).ListEndOffsets(ctx, dead)
		if err != nil {
			return err
		}
		var n int64
		ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
		if n != 1 {
			return fmt.Errorf("%d: %v", n, ends.Error())
		}
		return nil
	})
	w.until("a checkpoint of the start offset", 30*time.Second, func() error {
		offsets, err := kadm.NewClient(upstream).FetchOffsets(ctx, checkpoint)
		if err != nil {
			return err
		}
		if o, ok := offsets.Lookup(w.main.name, 0); !ok || o.At != 3 {
			return fmt.Errorf("%+v", o)
		}
		return nil
	})
	m.close()
	emptied(w)
	w.code("DeleteGroups", w.deleteGroup(2, w.group).ErrorCode, nil)
	w.until("the checkpoint to be gone", 30*time.Second, func() error {
		got, err := kadm.NewClient(upstream).DescribeGroups(ctx, checkpoint)
		if err != nil {
			return err
		}
		if state := got[checkpoint].State; state != "Dead" && got[checkpoint].Err != kerr.GroupIDNotFound {
			return fmt.Errorf("it is %s, %v", state, got[checkpoint].Err)
		}
		return nil
	})

	nobody := "nobody-" + w.unique()
	w.ordinarilyDenied(w.dialAs(nobody, w.node))
	var log []byte
	w.until("the authorizer's log", 10*time.Second, func() (err error) {
		log, err = os.ReadFile(w.tg.kafka.Nodes[0].Log)
		if err == nil && !strings.Contains(string(log), refusalOf(nobody)) {
			err = fmt.Errorf("%d bytes without a known refusal", len(log))
		}
		return err
	})
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, refusalOf(serviceUser)) {
			t.Errorf("upstream refused kshare: %s", line)
		}
	}
}

// refusalOf is how a broker logs that a user was refused something.
func refusalOf(user string) string { return fmt.Sprintf("Principal = User:%s is Denied", user) }
