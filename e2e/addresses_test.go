//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/harness"
)

// What administrators ask for names addresses in text. Through kshare it is the same
// text with kshare's addresses; that upstream's are nowhere else is what every test
// looks for (see use).

// throughKshare is what kshare makes of text about a node that upstream told.
func (tg *target) throughKshare(t *testing.T, node int32, text string) string {
	t.Helper()
	if !strings.Contains(text, harness.UpstreamHost) {
		t.Errorf("no upstream address in what the brokers say: %s", text)
	}
	of := tg.kafka.Addresses()
	text = addressPattern.ReplaceAllStringFunc(text, func(addr string) string {
		if id, ok := of[addr]; ok {
			return tg.replicas.NodeAddr(id)
		}
		return addr
	})
	return strings.ReplaceAll(text, "PLAINTEXT://:9092", "PLAINTEXT://"+tg.replicas.NodeAddr(node)) // the default
}

func TestBrokerConfigsSameAsDirectButForAddresses(t *testing.T) {
	needReplicas(t)
	tg := use(t)
	for _, id := range tg.kafka.NodeIDs {
		seen := tg.runTool(t, tg.kafka.Version, []string{configsTool(tg.kafka.Version), "--describe", "--all", "--entity-type", "brokers", "--entity-name", fmt.Sprint(id)})
		seen["direct"] = sortLines(tg.throughKshare(t, id, seen["direct"]))
		seen["kshare"] = sortLines(seen["kshare"])
		compare(t, fmt.Sprintf("configs of broker %d", id), seen)
	}
}

func TestRefusedBrokerConfigSameAsDirectButForAddresses(t *testing.T) {
	needReplicas(t)
	tg := use(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	id := tg.kafka.NodeIDs[0]
	seen := map[string]string{}
	for _, p := range tg.paths() {
		cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(p.bootstrap, ",")...), kgo.DisableClientMetrics())
		must(t, err)
		defer cl.Close()
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		req.ValidateOnly = true
		res := kmsg.NewIncrementalAlterConfigsRequestResource()
		res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeBroker, fmt.Sprint(id)
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		c.Name, c.Value = "listener.security.protocol.map", kmsg.StringPtr("OTHER:PLAINTEXT")
		res.Configs = append(res.Configs, c)
		req.Resources = append(req.Resources, res)
		resp, err := req.RequestWith(ctx, cl)
		must(t, err)
		if resp.Resources[0].ErrorMessage == nil {
			t.Fatalf("by way of %s: no message, code %d", p.name, resp.Resources[0].ErrorCode)
		}
		seen[p.name] = *resp.Resources[0].ErrorMessage
	}
	seen["direct"] = tg.throughKshare(t, id, seen["direct"])
	compare(t, "the message", seen)
}

func TestMetadataQuorumToolSameAsDirectButForAddresses(t *testing.T) {
	needReplicas(t)
	tg := use(t)
	const quorumTool = "org.apache.kafka.tools.MetadataQuorumCommand"
	status := tg.runTool(t, tg.kafka.Version, []string{quorumTool, "describe", "--status"})
	for name, out := range status { // all but what moves on between two looks
		status[name] = strings.Join(slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool {
			return strings.HasPrefix(line, "HighWatermark:") || strings.HasPrefix(line, "MaxFollowerLag")
		}), "\n")
	}
	status["direct"] = tg.throughKshare(t, tg.kafka.NodeIDs[0], status["direct"])
	compare(t, "describe --status", status)

	replication := tg.runTool(t, tg.kafka.Version, []string{quorumTool, "describe", "--replication"})
	for name, out := range replication {
		var nodes []string
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 2 {
				nodes = append(nodes, fmt.Sprint(f[0], f[1], f[len(f)-1])) // node, directory, role
			}
		}
		replication[name] = strings.Join(nodes, "\n")
	}
	compare(t, "describe --replication", replication)
	if n := strings.Count(replication["kshare"], "\n"); n != len(tg.kafka.NodeIDs) {
		t.Errorf("%d nodes: %s", n, replication["kshare"])
	}
}
