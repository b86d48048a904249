//go:build e2e

package conformance

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

// sniSuffix is the domain of nodes by name.
const sniSuffix = "kshare.test"

// speaksTLS starts a replica that takes TLS alone, with a port per node or one for all of them, whose names clients give,
// and has clients consume what lies on all brokers.
func speaksTLS(t *testing.T, tg *target, authority *harness.Authority, byName bool) {
	pair, err := authority.Sign("kshare", "127.0.0.1", "*."+sniSuffix)
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{"--listen-tls-cert", pair.Cert, "--listen-tls-key", pair.Key}
	for _, key := range slices.Sorted(maps.Keys(shareSettings)) {
		flags = append(flags, "--broker-config", key+"="+shareSettings[key])
	}
	if byName {
		flags = append(flags, "--sni-suffix", sniSuffix)
	}
	rs, err := suite.StartReplicas(1, tg.kafka, tg.redis, flags...)
	if err != nil {
		t.Fatal(err)
	}
	defer rs.Close()
	suite.Explain(t, "TLS")
	w := inCluster(t, tg, nil, []int32{1}, []int32{2}, []int32{3})
	for p := range int32(3) {
		w.produce(w.p(p), 1)
	}
	w.granted("alice", onTopic(opRead, w.main))
	kinds := []client.Kind{client.Franz{Suite: suite}, client.Java{Suite: suite, Version: suite.Version("KAFKA_NEW")}, client.Python{Suite: suite}}
	login := client.Login{Mechanism: "SCRAM-SHA-512", User: "alice", Password: passwords["alice"], CA: authority.CA}
	bootstrap := rs.Bootstrap
	if byName {
		bootstrap = strings.Replace(bootstrap, "127.0.0.1", "bootstrap."+sniSuffix, 1)
		login.Host = "127.0.0.1"
		// librdkafka asks the system for addresses, which has none for these names.
		kinds = []client.Kind{kinds[0], client.Java{Suite: suite, Version: suite.Version("KAFKA_NEW"), Flags: []string{"-Djdk.net.hosts.file=" + w.hostsFile()}}}
	}
	for _, kind := range kinds {
		w.within(kind.Name(), func(w *world) {
			w.group += "-" + kind.Name()
			w.set(w.group, "share.auto.offset.reset", "earliest")
			w.granted("alice", onGroup(opRead, w.group))
			c := w.consumesAll(kind, client.Config{Name: "TLS-" + w.group, Bootstrap: bootstrap, Group: w.group, Topic: w.main.name, Explicit: true, Login: &login}, 3)
			if err := c.Close(); err != nil {
				w.Error(err)
			}
		})
	}
}

// hostsFile tells the names of kshare's nodes.
func (w *world) hostsFile() string {
	w.Helper()
	names := []string{"bootstrap." + sniSuffix}
	for _, id := range w.tg.kafka.NodeIDs {
		names = append(names, fmt.Sprintf("broker-%d.%s", id, sniSuffix))
	}
	file := filepath.Join(suite.Dir, "hosts-of-kshare")
	if err := os.WriteFile(file, []byte("127.0.0.1 "+strings.Join(names, " ")+"\n"), 0o644); err != nil {
		w.Fatal(err)
	}
	return file
}
