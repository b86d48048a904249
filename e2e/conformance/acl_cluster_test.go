//go:build e2e

package conformance

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// offCoordinatorRows are what leaders of partitions are asked, who may not coordinate the group.
var offCoordinatorRows = []namedRow{
	{"ShareFetch off the coordinator", fetchRow},
	{"ShareFetch with acks off the coordinator", fetchAckRow},
	{"ShareAcknowledge off the coordinator", acknowledgeRow},
}

// TestThreeSecuredBrokers: nodes that do not coordinate a group ask ACLs for it too, and all are reached by TLS.
func TestThreeSecuredBrokers(t *testing.T) {
	if native() && !full() {
		t.Skip("on native with E2E_SIZE=full")
	}
	authority, err := suite.NewAuthority("authority")
	if err != nil {
		t.Fatal(err)
	}
	tg, err := startSecuredTarget(3, clusterSettings, authority)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeCluster(t, tg) })
	for i, row := range offCoordinatorRows {
		t.Run(row.name, func(t *testing.T) {
			w := offCoordinator(t, tg)
			row.test(w, row.make(w), w.tg.at(i%w.tg.count(), w.node))
		})
	}
	if native() {
		return
	}
	t.Run("TLS with node ports", func(t *testing.T) { speaksTLS(t, tg, authority, false) })
	t.Run("TLS by names", func(t *testing.T) { speaksTLS(t, tg, authority, true) })
}

// offCoordinator makes a world on three brokers, whose partition is led by another node than the group's coordinator.
func offCoordinator(t *testing.T, tg *target) *world {
	t.Helper()
	suite.Explain(t, "")
	w := &world{T: t, tg: tg}
	first, _, _ := strings.Cut(tg.bootstrap, ",")
	w.admin = w.dial(first)
	name := "OffCoordinator-" + w.unique()
	w.group = name + "-group"
	coordinator := int32(-1)
	w.until("the coordinator", 60*time.Second, func() error {
		at := w.findCoordinator(0, w.group)[0]
		coordinator = at.NodeID
		return kerr.ErrorForCode(at.ErrorCode)
	})
	leader := coordinator%int32(len(tg.kafka.NodeIDs)) + 1
	w.main = w.createPlacedTopic(name, nil, []int32{leader})
	w.set(w.group, "share.auto.offset.reset", "earliest")
	w.join(w.group, w.main)
	w.node = w.addressOf(leader)
	if at := w.findCoordinator(0, w.group)[0]; net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port))) == w.node {
		t.Fatalf("node %d leads the partition and coordinates the group", leader)
	}
	return w
}
