package demo

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"
)

// TestDemoAddsUpOnNativeShareGroups plays the demo against a cluster that has share groups of its own, which shows that the demo asks
// for nothing but what share groups promise.
func TestDemoAddsUpOnNativeShareGroups(t *testing.T) {
	defer goleak.VerifyNone(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.BrokerConfigs(map[string]string{
		"group.share.record.lock.duration.ms": "1500",
		"share.record.lock.sweep.interval.ms": "100",
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	seed := cluster.ListenAddrs()[0]
	var out bytes.Buffer
	err = Run(context.Background(), Options{
		Replicas: []Replica{{"1", seed}, {"2", seed}}, Out: &out, Records: 400, Rate: 100, Work: 10 * time.Millisecond, Lock: 1500 * time.Millisecond,
	})
	t.Log("\n" + out.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"produced 400 = accepted", "died holding", "late accepts refused", "delivery count 2"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the demo does not show %q", want)
		}
	}
}
